"""Tuning: the same results, nothing changed for the user, a budget that holds, and a store that can be trusted."""

from __future__ import annotations

import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweave
from graphweave import ops
from graphweave.compiler.report import RacedCandidate
from graphweave.core.errors import IndexRangeError, SettingsError
from graphweave.core.schedule import Schedule
from graphweave.core.settings import override
from graphweave.data import rmat
from graphweave.frontends.dynamo import tuned
from graphweave.tuning import search, store
from graphweave.tuning.candidates import candidates
from graphweave.tuning.choice import Choice, ProgramForm
from graphweave.tuning.note import Outcome
from tests import patience
from tests.programs.graphs import zoo

BUDGET = 60.0
"""More than any search here takes."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store for each test, and few candidates, so that a search takes little time."""
    monkeypatch.setattr(store, "directory", lambda: tmp_path / "tuning")
    monkeypatch.setattr(search, "candidates", lambda *_: (Schedule(prefetch=4), Schedule(unroll=2)))
    monkeypatch.setattr(tuned, "_ORDERS", ("degree",))
    return tmp_path / "tuning"


def gcn(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, dst, x[src])


def attention(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    weight = torch.tanh((x[src] * x[dst]).sum(1, keepdim=True))
    return torch.zeros_like(x).index_add(0, dst, weight * x[src])


def graph(nodes: int = 300, edges: int = 2000, width: int = 32) -> tuple[Tensor, Tensor, Tensor]:
    src, dst = rmat(nodes, edges, 1)
    return torch.randn(nodes, width, generator=torch.Generator().manual_seed(2)), src, dst


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"))


# ---------------------------------------------------------------- results


def assert_alike(got: Tensor, want: Tensor) -> None:
    """Equal to float32's precision, relative to the largest element, as sums of hundreds of terms are."""
    exact = want.detach().double()
    assert (got.detach().double() - exact).abs().max() <= 1e-5 * exact.abs().max()


def test_results_and_gradients_are_those_of_eager_mode() -> None:
    x, src, dst = graph()
    x.requires_grad_()
    before = graphweave.counters()["eager_fallbacks"]
    made = graphweave.tune(attention, x, src, dst, budget=BUDGET)
    exact = x.detach().double().requires_grad_()
    attention(exact, src, dst).pow(2).sum().backward()
    out = made(x, src, dst)
    out.pow(2).sum().backward()
    assert x.grad is not None and exact.grad is not None
    assert_alike(out, attention(exact, src, dst))
    assert_alike(x.grad, exact.grad)
    assert graphweave.counters()["eager_fallbacks"] == before


@pytest.mark.slow
@pytest.mark.parametrize("case", zoo(), ids=lambda case: case.name)
def test_awkward_graphs_are_tuned_like_others(case: Any) -> None:
    if not case.square:
        pytest.skip("the model has one set of nodes")
    x = torch.randn(case.num_src, 33, generator=torch.Generator().manual_seed(0), requires_grad=True)
    made = graphweave.tune(attention, x, case.src, case.dst, budget=BUDGET)
    exact = x.detach().double().requires_grad_()
    got, want = made(x, case.src, case.dst), attention(exact, case.src, case.dst)
    assert got.shape == want.shape
    if got.numel():
        assert_alike(got, want)


def test_a_choice_found_is_applied(folder: Path) -> None:
    x, src, dst = graph()
    graphweave.compile(gcn, options={"schedule": "tune", "budget": BUDGET})(x, src, dst)
    (path,) = files(folder)
    kept = json.loads(path.read_text())["body"]
    wanted = Choice(forward=Schedule(prefetch=5, feature_tile=8))
    store.save(kept["key"], {**kept["found"], "choice": wanted.to_dict(), "finished": True})
    torch._dynamo.reset()
    told = graphweave.explain(graphweave.compile(gcn, options={"schedule": "tune"}), x, src, dst)
    loops = told.graphs[0].kernels[0].loops
    assert "_column[k + 5]]" in loops and "sweep f < 4" in loops
    assert "forward=Schedule(feature_tile=8, prefetch=5)" in told.text() and "found before" in told.text()


def two_layers(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    h = torch.tanh(gcn(x, src, dst))
    return torch.zeros_like(x).index_add(0, dst, torch.sin(h[src]))


def test_one_kernel_is_tuned_by_its_name(folder: Path) -> None:
    """The others follow their own schedule, or the compiler's choice; another name is another search."""
    x, src, dst = graph()
    last = f"{Path(__file__).name}:{two_layers.__code__.co_firstlineno + 2}"
    asked = {"inference_0": Schedule(prefetch=7), last: "tune"}  # the first kernel computes a part of the line, too
    told = graphweave.explain(graphweave.compile(two_layers, options={"schedule": asked}), x, src, dst)
    (note,) = told.tunings
    assert {one.choice for one in note.raced} == {"forward"} and len(note.raced) > 1
    (path,) = files(folder)
    kept = json.loads(path.read_text())["body"]
    wanted = Choice(forward=Schedule(prefetch=5))
    store.save(kept["key"], {**kept["found"], "choice": wanted.to_dict(), "finished": True})
    torch._dynamo.reset()
    run = graphweave.compile(two_layers, options={"schedule": asked})
    first, second = (kernel.loops for kernel in graphweave.explain(run, x, src, dst).graphs[0].kernels)
    assert "_column[k + 7]]" in first and "_column[k + 5]]" in second
    assert_alike(run(x, src, dst), two_layers(x.double(), src, dst))
    graphweave.compile(two_layers, options={"schedule": {"inference_0": "tune"}})(x, src, dst)
    assert len(files(folder)) == 2


def test_explain_shows_predicted_and_measured() -> None:
    x, src, dst = graph()
    told = graphweave.explain(graphweave.tune(gcn, x, src, dst, budget=BUDGET), x, src, dst)
    (note,) = told.tunings
    assert note.measured is not None and note.untuned_measured is not None and note.measured > 0
    assert note.predicted is not None and note.predicted > 0
    assert note.measured <= note.untuned_measured
    assert "ms measured" in told.text() and "predicted; untuned" in told.text()
    raced = {one.name: one for one in note.raced if one.choice == "forward"}
    assert "untuned" in raced and len(raced) > 1 and all(one.predicted > 0 < one.measured for one in note.raced)


def test_a_program_with_calls_of_pytorch_is_tuned() -> None:
    """A mask of edges is no kernel's, but calls of PyTorch, which the first run of a candidate records."""

    def without_loops(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        kept = src != dst
        src, dst = src[kept], dst[kept]
        return torch.zeros_like(x).index_add(0, dst, torch.tanh(x[src]))

    x, src, dst = graph()
    told = graphweave.explain(graphweave.tune(without_loops, x, src, dst, budget=BUDGET), x, src, dst)
    (note,) = told.tunings
    assert not note.why and note.measured is not None


# ---------------------------------------------------------------- nothing changes


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Linear(32, 16)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        h = nn.functional.dropout(self.norm(self.weight(x)), 0.5, self.training)
        return torch.zeros_like(h).index_add(0, dst, h[src])


def test_parameters_buffers_gradients_and_random_state_stay() -> None:
    torch.manual_seed(0)
    model, inputs = Normed(), graph()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    made = graphweave.tune(model, *inputs, budget=BUDGET)
    assert torch.equal(torch.get_rng_state(), random)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(inputs[0], graph()[0])
    torch.manual_seed(1)
    drawn = made(*inputs)
    torch.manual_seed(1)
    torch._dynamo.reset()
    model.load_state_dict(before)
    assert_alike(drawn, graphweave.compile(model)(*inputs))


def test_counters_count_no_run_of_a_search() -> None:
    x, src, dst = graph()
    graphweave.reset_counters()
    graphweave.compile(gcn, options={"schedule": "tune", "budget": BUDGET})(x, src, dst)
    counted = graphweave.counters()
    assert counted["kernel_launches"] == 1 and counted["tunings"] == 1


def test_an_index_out_of_range_is_the_users_error() -> None:
    x, src, dst = graph()
    src[3] = 1000
    with pytest.raises(IndexRangeError, match="1000"):
        graphweave.compile(gcn, options={"schedule": "tune", "budget": BUDGET})(x, src, dst)


# ---------------------------------------------------------------- the budget


def test_a_budget_that_is_too_small_leaves_the_compilers_choice(folder: Path) -> None:
    x, src, dst = graph()
    with pytest.warns(UserWarning, match="runs untuned: the budget of 0.001 s"):
        made = graphweave.tune(gcn, x, src, dst, budget=1e-3)
    assert_alike(made(x, src, dst), gcn(x, src, dst))
    assert files(folder) == []


@pytest.mark.parametrize("budget", [0.3, 1.0])
def test_a_search_ends_with_its_budget(
    budget: float, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The untuned call takes what it takes; a search adds nothing beyond the budget."""
    monkeypatch.setattr(search, "candidates", candidates)
    x, src, dst = graph(3000, 60_000, 64)
    start = time.perf_counter()
    graphweave.compile(gcn)(x, src, dst)
    untuned = time.perf_counter() - start
    torch._dynamo.reset()
    start = time.perf_counter()
    told = graphweave.explain(graphweave.compile(gcn, options={"schedule": "tune", "budget": budget}), x, src, dst)
    taken = time.perf_counter() - start
    (note,) = told.tunings
    assert note.seconds < 1.1 * budget + patience.seconds(0.1)
    assert taken < 1.1 * budget + 2 * untuned + patience.seconds(0.5)
    assert capfd.readouterr().err == "", "a pipe is told nothing"


@pytest.mark.parametrize("budget", [0, -1.0, True, "60", None, float("nan")])
def test_what_is_no_budget_is_refused(budget: Any) -> None:
    with pytest.raises(SettingsError, match="budget must be a number of seconds above 0"):
        graphweave.tune(gcn, *graph(), budget=budget)
    with pytest.raises(SettingsError, match="budget must be a number of seconds above 0"):
        graphweave.compile(gcn, options={"schedule": "tune", "budget": budget})


# ---------------------------------------------------------------- the store


def tuned_once(*inputs: Tensor) -> dict[str, int]:
    """What is counted while a function is compiled anew, tuned and called."""
    torch._dynamo.reset()
    graphweave.reset_counters()
    graphweave.compile(gcn, options={"schedule": "tune", "budget": BUDGET})(*inputs)
    return graphweave.counters()


def test_similar_graphs_are_not_measured_again_and_others_are() -> None:
    assert tuned_once(*graph(300, 2000))["tunings"] == 1
    assert tuned_once(*graph(310, 2050))["tuning_hits"] == 1
    assert tuned_once(*graph(3000, 2000))["tunings"] == 1
    assert tuned_once(*graph(300, 2000, width=16))["tunings"] == 1


def damage_file(path: Path, damage: str) -> None:
    """Cuts the file, changes a number in it, or writes `damage` in its place."""
    text = path.read_text()
    if damage == "cut":
        path.write_text(text[: len(text) // 2])
    elif damage == "altered":
        path.write_text(text.replace('"tried": ', '"tried": 1'))
        assert path.read_text() != text
    else:
        path.write_text(damage)


@pytest.mark.parametrize("damage", ["", "{", '{"digest": "0", "body": {}}', "[]", "cut", "altered"])
def test_a_damaged_file_is_ignored(folder: Path, damage: str) -> None:
    key = {"program": "p", "machine": "m"}
    store.save(key, Outcome(measured=1.0, untuned_measured=1.0, tried=2).to_dict())
    assert store.load(key) is not None
    (path,) = files(folder)
    damage_file(path, damage)
    assert store.load(key) is None


@pytest.mark.parametrize("damage", ["altered", "meaningless"])
def test_what_a_damaged_file_had_is_measured_again(folder: Path, damage: str) -> None:
    inputs = graph()
    tuned_once(*inputs)
    (path,) = files(folder)
    if damage == "meaningless":
        store.save(json.loads(path.read_text())["body"]["key"], {"choice": {"form": {"compact": 7}}})
    else:
        damage_file(path, damage)
    assert tuned_once(*inputs)["tunings"] == 1
    assert tuned_once(*inputs)["tuning_hits"] == 1


def test_what_another_machine_version_or_program_found_is_ignored(folder: Path) -> None:
    inputs = graph()
    tuned_once(*inputs)
    (path,) = files(folder)
    text = path.read_text()
    key = json.loads(text)["body"]["key"]
    assert store.load(key) is not None
    for part in ("machine", "graph", "program", "results", "options"):
        held = json.loads(text)
        held["body"]["key"][part] += " other"
        held["digest"] = store._digest(held["body"])
        path.write_text(json.dumps(held))
        assert store.load(key) is None, part
    assert tuned_once(*inputs)["tunings"] == 1


def test_a_search_that_its_budget_ended_is_continued_with_a_larger_one() -> None:
    key = {"program": "p"}
    store.save(key, Outcome(measured=1.0, untuned_measured=1.0, finished=False, budget=1.0).to_dict())
    held = store.load(key)
    assert held is not None and Outcome.from_dict(held).budget == 1.0


def _tune_in_a_process(folder: str) -> None:
    torch.set_num_threads(1)
    with override(cache_dir=Path(folder)):
        for width in (8, 16):
            graphweave.compile(gcn, options={"schedule": "tune", "budget": 1.0})(*graph(width=width))
            for turn in range(200):
                store.save({"turn": str(turn % 5)}, {"width": width, "turn": turn, "text": "x" * 2000})


@pytest.mark.slow
def test_two_processes_tune_into_one_store(folder: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_tune_in_a_process, args=(str(folder.parent),)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(patience.seconds())
        assert process.exitcode == 0
    for path in files(folder):
        body = json.loads(path.read_text())["body"]
        assert store.load(body["key"]) == body["found"], path
    assert len(files(folder)) == 7 and not list(folder.glob("*.tmp"))


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "tuning").write_text("a file in its place")
    assert tuned_once(*graph())["tunings"] == 1


@pytest.mark.parametrize(
    "choice",
    [
        Choice(),
        Choice(ProgramForm(True, False, "degree"), Schedule(feature_tile=(2, 8)), Schedule(prefetch=0)),
    ],
)
def test_choices_go_through_json(choice: Choice) -> None:
    assert Choice.from_dict(json.loads(json.dumps(choice.to_dict()))) == choice
    outcome = Outcome(choice, 1.0, 2.0, tried=1, raced=(RacedCandidate("forms", "untuned", 1.0, 2.0),))
    assert Outcome.from_dict(json.loads(json.dumps(outcome.to_dict()))) == outcome


# ---------------------------------------------------------------- operators


def test_operators_take_the_word() -> None:
    x, src, dst = graph()
    with pytest.raises(SettingsError, match=r"'auto', the compiler's own choice, 'tune', or a graphweave\.Schedule"):
        ops.spmm((src, dst), "copy_u", src=x, schedule="best")
    graphweave.reset_counters()
    out = ops.spmm((src, dst), "copy_u", src=x, schedule="tune")
    assert graphweave.counters()["tunings"] == 1
    assert_alike(out, gcn(x, src, dst))
