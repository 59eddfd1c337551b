"""Declared benchmarks: options, checks, choice of cases, continued records, and the runner on cases of its own."""

from __future__ import annotations

import json
import weakref
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bench.case import EXACT, IN_FLOAT64, NEARBY, Bench, Case, Check, Numbers, Peers
from bench.options import Among, options_from
from bench.record import Record
from bench.runner import chosen_of, run, take_small_sizes
from bench.steps import Asked, Result, Step, result_of


def build(count: int) -> Peers:
    x = torch.linspace(-1, 2, count)

    def broken() -> Step:
        raise ValueError("no such thing")

    return {
        "eager": lambda: lambda: x * 2,
        "graphweave": lambda: lambda: x + x,
        "wrong": lambda: lambda: x * 3,
        "broken": broken,
        EXACT: lambda: lambda: x.double() * 2,
    }


def cases_of(*peers: str) -> Bench:
    def cases(options: Namespace) -> Iterator[Case]:
        for name in ("twice", "again"):
            yield Case(name, build, peers, Check(1e-6, exact=True), {"count": options.count}, {"count": 3})

    return Bench("bench.twice", None, cases, {"count": 9}, repeats=2, threads=torch.get_num_threads())


def recorded(bench: Bench, path: Path, *argv: str) -> tuple[int, dict[str, dict[str, dict[str, object]]]]:
    code = run(bench, [*argv, "--out", str(path)])
    return code, json.loads(path.read_text())["results"]


def test_peers_are_checked_and_timed(tmp_path: Path) -> None:
    code, results = recorded(cases_of("eager", "graphweave"), tmp_path / "a.json", "--quick")
    assert code == 0
    assert list(results) == ["twice", "again"]
    for one in results["twice"].values():
        assert one["status"] == "ok"
        assert {"first", "error", "median", "q1", "q3", "min", "repeats", "steps"} <= set(one)


def test_a_wrong_peer_is_not_timed_and_fails_the_run(tmp_path: Path) -> None:
    code, results = recorded(cases_of("eager", "wrong", "broken"), tmp_path / "a.json", "--cases", "twice")
    assert code == 1
    assert list(results) == ["twice"]
    assert str(results["twice"]["wrong"]["status"]).startswith("wrong: output[0] is off by")
    assert "median" not in results["twice"]["wrong"]
    assert results["twice"]["broken"] == {"status": "ValueError: no such thing"}


def test_systems_are_chosen_and_the_reference_need_not_be(tmp_path: Path) -> None:
    _, results = recorded(cases_of("eager", "graphweave"), tmp_path / "a.json", "--systems", "graphweave")
    assert list(results["twice"]) == ["graphweave"]
    assert results["twice"]["graphweave"]["status"] == "ok"


def test_peers_of_dgl_slow_ones_and_refused_ones_are_results(tmp_path: Path) -> None:
    def cases(options: Namespace) -> Iterator[Case]:
        yield Case(
            "twice", build, ("eager", "graphweave", "dgl"), Check(1e-6), {"count": 9}, inputs=lambda count: {},
            refusal=lambda peer, count: "too large" if peer == "graphweave" else None,
        )  # fmt: skip

    bench = Bench("bench.twice", None, cases, repeats=5, threads=torch.get_num_threads(), dgl="bench.no", slow=0.0)
    _, results = recorded(bench, tmp_path / "a.json", "--dgl-python", str(tmp_path / "python"))
    found = results["twice"]
    assert found["eager"]["repeats"] == 3
    assert found["graphweave"] == {"status": "too large"}
    assert str(found["dgl"]["status"]).startswith("needs DGL: python of --dgl-python is absent")


def test_a_peer_whose_step_takes_long_has_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def step_of(peer: str) -> Step:
        def step() -> Tensor:
            calls.append(peer)
            return torch.ones(3) * 2

        return step

    def cases(options: Namespace) -> Iterator[Case]:
        yield Case("twice", lambda: {peer: partial(step_of, peer) for peer in names}, names, Check(1e-6, "graphweave"))

    names = ("graphweave", "eager")
    monkeypatch.setattr("bench.runner.SLOW_SECONDS", 1e-9)
    bench = Bench("bench.twice", None, cases, repeats=2, threads=torch.get_num_threads(), slow=0.0)
    _, results = recorded(bench, tmp_path / "a.json")
    slow = results["twice"]["eager"]
    assert calls.count("eager") == 2, "its first call, and the one that gives its result and its time"
    assert slow["median"] == slow["q1"] == slow["q3"] == slow["warm"]
    assert slow["repeats"] == 1


def test_the_memory_of_a_slow_peer_is_free_before_the_next_one_starts(tmp_path: Path) -> None:
    class Twice:
        def __call__(self) -> Tensor:
            return torch.ones(3) * 2

    alive: weakref.WeakValueDictionary[str, Twice] = weakref.WeakValueDictionary()
    before: dict[str, list[str]] = {}

    def started(peer: str) -> Step:
        before.setdefault(peer, list(alive))
        alive[peer] = step = Twice()
        return step

    names = ("eager", "graphweave", "other")

    def cases(options: Namespace) -> Iterator[Case]:
        yield Case("twice", lambda: {peer: partial(started, peer) for peer in names}, names, Check(1e-6))

    bench = Bench("bench.twice", None, cases, repeats=2, threads=torch.get_num_threads(), slow=0.0)
    _, results = recorded(bench, tmp_path / "a.json")
    assert before == {"eager": [], "other": [], "graphweave": []}
    assert [results["twice"][peer]["repeats"] for peer in names] == [3, 2, 3]


def test_what_judges_and_is_not_measured_runs_before_all_and_its_memory_is_free(tmp_path: Path) -> None:
    class Ones:
        def __call__(self) -> Tensor:
            return torch.ones(3)

    alive: weakref.WeakValueDictionary[str, Ones] = weakref.WeakValueDictionary()
    before: list[tuple[str, list[str]]] = []

    def started(peer: str) -> Step:
        before.append((peer, list(alive)))
        if peer == "broken":
            raise ValueError("too large")
        alive[peer] = step = Ones()
        return step

    def cases(options: Namespace) -> Iterator[Case]:
        check = Check(1e-6, "judge", others={"other": "broken"})
        names = ("graphweave", "other", "judge", "broken")
        yield Case("ones", lambda: {peer: partial(started, peer) for peer in names}, names[:2], check)

    bench = Bench("bench.ones", None, cases, repeats=1, threads=torch.get_num_threads())
    _, results = recorded(bench, tmp_path / "a.json")
    assert before == [("judge", []), ("broken", []), ("other", []), ("graphweave", [])]
    assert results["ones"]["graphweave"]["status"] == "ok"
    assert results["ones"]["other"] == {"status": "broken cannot judge: ValueError: too large"}


def test_a_peer_of_another_function_has_a_reference_of_its_own(tmp_path: Path) -> None:
    def cases(options: Namespace) -> Iterator[Case]:
        yield Case("twice", build, ("eager", "wrong"), Check(1e-6, others={"wrong": "wrong"}), {"count": 9})
        yield Case("again", build, ("graphweave",), Check(1e-6, "broken", otherwise="graphweave"), {"count": 9})
        yield Case("never", build, ("graphweave",), Check(1e-6, "broken"), {"count": 9})

    bench = Bench("bench.twice", None, cases, repeats=1, threads=torch.get_num_threads())
    _, results = recorded(bench, tmp_path / "a.json")
    assert {one["status"] for one in (*results["twice"].values(), *results["again"].values())} == {"ok"}
    assert results["never"]["graphweave"] == {"status": "broken cannot judge: ValueError: no such thing"}


def test_a_reference_that_failed_is_not_started_again(tmp_path: Path) -> None:
    started: list[str] = []

    def step_of(peer: str) -> Step:
        started.append(peer)
        if peer == "eager":
            raise ValueError("too large")
        return lambda: torch.ones(3)

    names = ("graphweave", "other", "eager")

    def cases(options: Namespace) -> Iterator[Case]:
        check = Check(1e-6, otherwise="other")
        yield Case("ones", lambda: {peer: partial(step_of, peer) for peer in names}, names, check)

    bench = Bench("bench.twice", None, cases, repeats=1, threads=torch.get_num_threads())
    _, results = recorded(bench, tmp_path / "a.json")
    assert started == ["eager", "other", "graphweave"]
    assert [results["ones"][peer]["status"] for peer in names] == ["ok", "ok", "ValueError: too large"]


def test_the_result_in_float64_judges_where_no_reference_runs(tmp_path: Path) -> None:
    def step_of(peer: str) -> Step:
        if peer in ("eager", "dgl"):
            raise ValueError("too large")
        value = 2.0 if peer == "wrong" else 1.0
        return lambda: torch.full((3,), value, dtype=torch.float64 if peer == "exact" else torch.float32)

    names = ("graphweave", "wrong", "eager", "dgl", "exact")

    def cases(options: Namespace) -> Iterator[Case]:
        prepared = {peer: partial(step_of, peer) for peer in names}
        check = Check(1e-6, exact=True, otherwise="dgl")
        yield Case("alone", lambda: prepared, names[:2], check)
        yield Case("with peers", lambda: prepared, names[:4], check)
        yield Case(
            "of another function", lambda: prepared, names[:1], Check(1e-6, exact=True, others={names[0]: "dgl"})
        )

    bench = Bench("bench.ones", None, cases, repeats=1, threads=torch.get_num_threads())
    _, results = recorded(bench, tmp_path / "a.json")
    for case in ("alone", "with peers"):
        assert results[case]["graphweave"]["status"] == "ok"
        assert results[case]["wrong"]["status"].startswith("wrong: output[0] is off by 1.0e+00")
    assert results["with peers"]["eager"]["status"] == "ValueError: too large"
    assert results["of another function"]["graphweave"]["status"] == "dgl cannot judge: ValueError: too large"


def test_notes_that_fail_are_an_answer(tmp_path: Path) -> None:
    def noted(peer: str, step: Step) -> dict[str, object]:
        return {"twice": float(step()[0]) * 2} if peer == "eager" else {"twice": step().nothing}

    def cases(options: Namespace) -> Iterator[Case]:
        yield Case("twice", build, ("eager", "graphweave"), Check(1e-6), {"count": 9}, notes=noted)

    bench = Bench("bench.twice", None, cases, repeats=1, threads=torch.get_num_threads())
    _, results = recorded(bench, tmp_path / "a.json")
    assert results["twice"]["eager"]["twice"] == -4.0
    assert str(results["twice"]["graphweave"]["notes"]).startswith("AttributeError")


def measured(count: int) -> dict[str, object]:
    return {"status": "wrong: it is odd" if count % 2 else "ok", "count": count}


@pytest.mark.parametrize("here", [True, False])
def test_numbers_are_those_of_a_function(here: bool, tmp_path: Path) -> None:
    shown: list[str] = []

    def cases(options: Namespace) -> Iterator[Numbers]:
        yield Numbers("even", measured, {"count": 4}, {"count": 2}, here=here)
        yield Numbers("odd", measured, {"count": 4}, {"count": 3}, here=True)
        yield Numbers("never", measured, {"count": 4}, missing="no file")

    bench = Bench("bench.twice", None, cases, show=lambda results, options: shown.extend(results))
    code, results = recorded(bench, tmp_path / "a.json", "--quick", "--threads", str(torch.get_num_threads()))
    assert code == 1 and shown == ["even", "odd", "never"]
    assert results["even"] == {"status": "ok", "count": 2}
    assert results["never"] == {"status": "skipped: no file"}


def test_the_peak_of_a_step_is_that_of_one_more_call() -> None:
    asked = Asked(lambda: lambda: torch.ones(1 << 24))
    asked.first()
    assert 0.9 < asked.peak() / (1 << 26) < 1.5


def test_float32_is_judged_by_float64_where_it_differs() -> None:
    near, far, true = (Result((torch.tensor([value, 1.0]),), {}) for value in (1.0, 1.1, 1.09))
    check = Check(1e-3, exact=True)
    assert check.verdict(far, near)["status"].startswith("wrong")
    assert check.verdict(far, near, lambda peer: Result((true.outputs[0].double(),), {}))["status"] == "ok"


def test_float32_is_judged_by_what_rounding_of_the_inputs_moves() -> None:
    """The gradient of a maximum: 1 at one of two messages that nearly tie, and 0 at the other."""
    first, second = (torch.tensor(value, dtype=torch.float64) for value in ([1.0, 0.0], [0.0, 1.0]))
    got, want = (Result((value.float(),), {}) for value in (second, first))
    same = dict.fromkeys(IN_FLOAT64, Result((first,), {}))
    moved = same | {NEARBY[-1]: Result((second,), {})}
    check = Check(1e-3, exact=True, nearby=True)
    assert check.verdict(got, want, moved.__getitem__)["status"] == "ok"
    assert check.verdict(got, want, same.__getitem__)["status"].startswith("wrong")
    assert replace(check, nearby=False).verdict(got, want, moved.__getitem__)["status"].startswith("wrong")


def test_gradients_that_a_peer_lacks_are_not_compared() -> None:
    one = torch.ones(2)
    want = Result((one,), {"a": one, "b": one})
    assert Check(1e-6).verdict(Result((one,), {"a": one}), want)["status"] == "ok"
    assert Check(1e-6).verdict(Result((one,), {"a": 2 * one}), want)["status"].startswith("wrong: grad of a")


def test_a_record_is_continued_on_the_same_machine_alone(tmp_path: Path) -> None:
    path, about = tmp_path / "a.json", {"benchmark": "a", "sizes": (1, 2)}
    Record(path, about)["one"] = 1
    continued = Record(path, about, resume=True)
    continued["two"] = 2
    assert "one" in continued and Record(path, about, resume=True).results == {"one": 1, "two": 2}
    assert Record(path, about).results == {}
    with pytest.raises(SystemExit, match="measured with other sizes"):
        Record(path, {**about, "sizes": (3,)}, resume=True)
    found = json.loads(path.read_text())
    found["machine"]["cpu"] = "another"
    path.write_text(json.dumps(found))
    with pytest.raises(SystemExit, match="measured with other cpu"):
        Record(path, about, resume=True)


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ((), ["gat", "gatv2", "gcn"]),
        (("gat",), ["gat"]),
        (("g",), ["gat", "gatv2", "gcn"]),
        (("gcn", "gatv"), ["gatv2", "gcn"]),
    ],
)
def test_names_of_cases_are_whole_or_beginnings(wanted: Sequence[str], names: list[str]) -> None:
    cases = [Case(name, build, (), Check(0.0)) for name in ("gat", "gatv2", "gcn")]
    assert [case.name for case in chosen_of(cases, wanted)] == names


def test_a_name_that_no_case_has_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"no case is named sage\. There are: gcn"):
        chosen_of([Case("gcn", build, (), Check(0.0))], ["sage"])


def test_defaults_declare_options() -> None:
    given = {
        "models": Among(("gcn", "gat")),
        "door": Among(("a", "b"), "a"),
        "edges": (1, 2),
        "wide": True,
        "folder": Path,
    }
    empty = options_from([], "", **given)
    assert (empty.models, empty.door, empty.edges, empty.wide, empty.folder) == (
        ("gcn", "gat"),
        "a",
        (1, 2),
        True,
        None,
    )
    argv = ["--models", "gat", "--door", "b", "--edges", "3", "4", "--no-wide", "--folder", "x", "--threads", "1"]
    full = options_from(argv, "", **given)
    assert (full.models, full.door, full.edges, full.wide, full.folder) == (["gat"], "b", [3, 4], False, Path("x"))
    assert full.threads == 1
    with pytest.raises(SystemExit):
        options_from(["--models", "other"], "", **given)


def test_a_result_may_be_any_tree_of_arrays() -> None:
    value: Tensor = torch.ones(2, requires_grad=True)
    array, tensor = result_of([value.detach().numpy(), {"a": value}]).outputs
    assert torch.equal(array, tensor)
    assert not tensor.requires_grad


def test_a_quick_run_tells_its_own_sizes() -> None:
    options = Namespace(epochs=200, graphs=("a", "b"), quick=True)
    take_small_sizes(options, [Numbers("one", len, {"epochs": 200}, {"epochs": 2, "graphs": "tiny", "other": 1})])
    assert options == Namespace(epochs=2, graphs=("a", "b"), quick=True)
