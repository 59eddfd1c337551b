"""`graphweave.check`: right programs pass, wrong ones are found, and nothing of the user's changes."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import graphweave
from graphweave.certificate.certificate import Certificate
from graphweave.certificate.judge import TIMES_EAGER, TOLERANCE, judge
from graphweave.certificate.program_copy import ProgramCopy
from graphweave.certificate.random_numbers import DrawnAs, default_dtype
from graphweave.certificate.step import StepValues
from graphweave.cli.main import main
from graphweave.core.errors import DataError, SettingsError
from graphweave.core.settings import override
from graphweave.frontends.importing import importer
from graphweave.frontends.importing.context import Context
from tests.pages.test_pages import read
from tests.support import features, random_graph

check = functools.partial(graphweave.check, seconds=0.05)
SRC, DST = random_graph(30, 30, 120)


@pytest.fixture(autouse=True)
def not_stored(fresh_compiler: None) -> Iterator[None]:
    """What a test plants in the compiler must not be kept on disk for others."""
    with override(store_compilations=False):
        yield


class Normed(nn.Module):
    """Sums of neighbours, with running statistics and dropout."""

    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        self.lin, self.norm, self.dropout = nn.Linear(4, 4), nn.BatchNorm1d(4), dropout

    def forward(self, x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        h = F.dropout(self.norm(self.lin(x)).tanh(), self.dropout, self.training)
        return torch.zeros_like(h).index_add(0, dst, h[src] * 2).relu()


@functools.cache
def normed() -> tuple[Normed, Tensor, dict[str, Any], Certificate]:
    """A model in training, its input, what it was before, and its certificate, with a second graph."""
    torch.manual_seed(0)
    model, x = Normed(), features(30, 4).requires_grad_()
    model.lin.bias.grad = torch.ones(4)
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    other = features(20, 4).requires_grad_()
    found = check(model, x, SRC, DST, others=[(other, *random_graph(20, 20, 50))])
    assert torch.equal(state, torch.get_rng_state())
    return model, x, before, found


def test_a_right_model_passes_and_is_left_as_it_was() -> None:
    model, x, before, found = normed()
    assert found.ok and found.problems == () and found.reference == "eager mode in float64"
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(model.lin.bias.grad, torch.ones(4)) and model.lin.weight.grad is None and x.grad is None
    assert model.training and model.lin.weight.dtype == torch.float32 and model.norm.num_batches_tracked == 0


def test_every_value_is_judged_on_all_data() -> None:
    found = normed()[-1]
    names = {"result", "norm.running_mean, afterwards", "norm.running_var, afterwards",
             "norm.num_batches_tracked, afterwards",
             *(f"gradient of {name}" for name in ("lin.weight", "lin.bias", "norm.weight", "norm.bias"))}  # fmt: skip
    for data in (0, 1):
        assert {value.name for value in found.values if value.data == data} == names | {"gradient of x"}
    for value in found.values:
        assert value.allowed in (0.0, TOLERANCE[torch.float32], TIMES_EAGER * value.eager.relative)
        assert value.compiled.relative <= value.allowed < 1e-4 and value.ties == 0
    assert 0 < max(value.eager.ulps for value in found.values) < math.inf


def test_random_numbers_are_those_of_eager_mode() -> None:
    assert normed()[-1].randomness == "the same numbers in all runs, drawn by the positions of rows"


def test_it_says_what_was_compiled_and_what_it_took() -> None:
    found = normed()[-1]
    parts = found.compiled
    assert parts.graphs == 1 and parts.kernels >= 2 and parts.graph_breaks == 0 and parts.eager == ()
    assert parts.compilations == (1, 0, 0) and parts.recompiled == ()
    assert found.repeats.twice and found.repeats.eager_twice
    times = found.break_even
    assert times.first_call_seconds > times.compiled_step_seconds > 0 < times.eager_step_seconds
    assert found.inductor.step_seconds is None and "inductor=True" in found.inductor.why
    assert found.versions["torch"] == torch.__version__ and found.machine["cpu"]["threads"] >= 1
    assert all(peak is None or peak >= 0 for peak in found.peak_bytes)


def test_it_prints_as_text() -> None:
    found = normed()[-1]
    text = str(found)
    assert text.startswith(f"Normed ({found.where}): passed\n")
    for words in ("gradient of lin.weight", "other data 1", "two runs give the same bits", "left to PyTorch",
                  "compiling", "torch " + torch.__version__,
                  "nothing by a second call, nothing by other data 1"):  # fmt: skip
        assert words in text
    assert max(map(len, text.splitlines())) < 160


def test_it_is_plain_data(tmp_path: Path) -> None:
    found = normed()[-1]
    found.save(tmp_path / "found.json")
    facts = json.loads((tmp_path / "found.json").read_text())
    assert facts == found.facts()
    assert facts["ok"] is True and facts["limits"]["times eager mode's own error"] == TIMES_EAGER
    assert len(facts["values"]) == len(found.values) and facts["values"][0]["compiled"]["relative"] is not None
    found.save(tmp_path / "found.txt")
    assert (tmp_path / "found.txt").read_text() == str(found)
    with pytest.raises(SettingsError, match=r"saved as .html, .json or .txt \(got .*png"):
        found.save(tmp_path / "found.png")


def test_the_page_stands_by_itself_and_escapes_names(tmp_path: Path) -> None:
    found = normed()[-1]
    hostile = "</script><img src=x onerror=alert(1)>"
    values = (dataclasses.replace(found.values[0], name=hostile, problem=hostile), *found.values)
    bad = dataclasses.replace(found, what=hostile, values=values)
    bad.save(tmp_path / "found.html")
    reader = read((tmp_path / "found.html").read_text())
    assert not any(name in ("img", "script") for name, _ in reader.found)
    assert reader.text.count("onerror") >= 4 and "FAILED, 1 problem" in reader.text
    for value in found.values:
        assert value.name in reader.text
    assert json.loads(bad.json())["problems"] == [f"{hostile}: {hostile}"]


# ---------------------------------------------------------------- what is wrong


def _wrong(cx: Context, node: torch.fx.Node) -> Any:
    return cx.value(node.args[0])


@pytest.mark.parametrize(
    ("call", "wrong"),
    [(torch.ops.aten.tanh.default, "result"), (torch.ops.aten.tanh_backward.default, "gradient of lin.weight")],
)
def test_what_the_compiler_reads_wrongly_is_found(call: Any, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(importer.HANDLERS, call, _wrong)
    found = check(Normed(dropout=0.0), features(30, 4), SRC, DST)
    assert not found.ok and any(said.startswith(f"{wrong}: ") for said in found.problems)
    named = {value.name: value for value in found.values}
    assert (named["result"].problem == "") == (wrong != "result")
    assert "numbers are wrong, the worst at [" in named[wrong].problem and named[wrong].compiled.relative > 0.01
    assert ": FAILED, " in str(found)


def _values(**tensors: Tensor) -> StepValues:
    return StepValues(tensors, frozenset(name for name in tensors if name.startswith("gradient")), draws=False)


def _judge(compiled: StepValues, eager: StepValues, exact: StepValues, spread: float = 0.0) -> Any:
    (value,) = judge(compiled, eager, exact, lambda name: torch.tensor(spread))
    return value


def test_a_tie_is_counted_and_no_mistake() -> None:
    """A gradient goes to one of two numbers that rounding makes the maximum, and to the other one in float64."""
    eager, compiled = torch.tensor([1.0, 0.0, 5.0]), torch.tensor([0.0, 1.0, 5.0])
    found = _judge(_values(out=compiled), _values(out=eager), _values(out=eager.double()), spread=1.0)
    assert found.ok and found.ties == 2 and found.compiled.absolute == 1.0
    found = _judge(_values(out=compiled), _values(out=compiled), _values(out=eager.double()))
    assert found.ok and found.ties == 2 and found.eager.absolute == 1.0  # eager mode has decided it so, too
    found = _judge(_values(out=compiled), _values(out=eager), _values(out=eager.double()))
    assert found.ties == 0 and found.problem == "2 of 3 numbers are wrong, the worst at [0]: 0 instead of 1"


def test_an_error_is_judged_beside_that_of_eager_mode() -> None:
    exact, eager = torch.tensor([1.0, 2.0]).double(), torch.tensor([1.001, 2.0])
    found = _judge(_values(out=torch.tensor([0.997, 2.0])), _values(out=eager), _values(out=exact))
    assert found.ok and found.allowed == pytest.approx(4 * 0.0005, rel=1e-3)
    assert found.compiled.relative == pytest.approx(0.0015, rel=1e-3)
    assert not _judge(_values(out=torch.tensor([0.99, 2.0])), _values(out=eager), _values(out=exact)).ok


@pytest.mark.parametrize(
    ("compiled", "said"),
    [
        (torch.tensor([1.0, math.nan]), "1 of 2 numbers are wrong, the worst at [1]: nan instead of inf"),
        (torch.tensor([[1.0, 2.0]]), "is float32 [1, 2]; in eager mode it is float32 [2]"),
        (torch.tensor([1, 2]), "is int64 [2]; in eager mode it is float32 [2]"),
        (None, "is missing; eager mode has it"),
    ],
)
def test_what_is_not_a_number_or_not_there_is_told(compiled: Tensor | None, said: str) -> None:
    eager = torch.tensor([1.0, math.inf])
    ours = _values() if compiled is None else _values(out=compiled)
    assert _judge(ours, _values(out=eager), _values(out=eager.double())).problem == said


def test_a_number_may_be_infinite_where_that_of_eager_mode_is() -> None:
    eager, exact = torch.tensor([math.inf, 1.0]), torch.tensor([1e300, 1.0], dtype=torch.float64)
    assert _judge(_values(out=eager.clone()), _values(out=eager), _values(out=exact)).ok


def test_a_gradient_that_is_missing_counts_as_zeros() -> None:
    name, zeros = "gradient of x", torch.zeros(2)
    assert _judge(_values(), _values(**{name: zeros}), _values(**{name: zeros.double()})).ok
    assert not _judge(_values(), _values(**{name: zeros + 1}), _values(**{name: zeros.double() + 1})).ok


# ---------------------------------------------------------------- programs of all kinds

WEIGHT = torch.tensor([0.5, -1.0, 2.0, 0.1], requires_grad=True)


def weighted(x: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, DST, (x * WEIGHT)[SRC].sigmoid())


def test_variables_of_a_function_are_copied_and_come_back() -> None:
    """A module in a closure, a global tensor, read by another function of the user's, and what is compiled already."""
    model = nn.Linear(4, 4)

    def loss(x: Tensor) -> dict[str, Tensor]:
        return {"loss": weighted(model(x)).square().mean(), "count": torch.tensor(3)}

    weight, global_weight = model.weight, WEIGHT
    found = check(graphweave.compile(loss), features(30, 4))
    assert found.ok and found.what == "loss" and found.randomness == "none are drawn" and found.uncopied == {}
    names = {"result['loss']", "result['count']", "gradient of model.weight", "gradient of model.bias",
             "gradient of WEIGHT"}  # fmt: skip
    assert {value.name for value in found.values} == names
    assert model.weight is weight and WEIGHT is global_weight and WEIGHT.grad is None


def test_dicts_of_types_and_arguments_that_were_computed() -> None:
    def forward(x_dict: dict[str, Tensor], edges: dict[tuple[str, str], Tensor]) -> dict[str, Tensor]:
        out = {name: x * 0.5 for name, x in x_dict.items()}
        for (src, dst), (i, j) in edges.items():
            out[dst] = out[dst].index_add(0, j, x_dict[src][i].exp())
        return out

    x = {"paper": features(30, 4).requires_grad_() * 1, "author": features(20, 4)}
    edges = {("author", "paper"): random_graph(20, 30, 60), ("paper", "paper"): random_graph(30, 30, 90)}
    found = check(forward, x, edges=edges)
    assert found.ok
    assert {v.name for v in found.values} == {"result['paper']", "result['author']", "gradient of x_dict['paper']"}


def test_edits_in_place_are_compared_and_undone() -> None:
    def scaled(x: Tensor, total: Tensor) -> Tensor:
        total.add_(x.sum(0))
        return torch.zeros_like(x).index_add(0, DST, x[SRC] * total)

    total = torch.ones(4)
    found = check(scaled, features(30, 4), total)
    assert found.ok and torch.equal(total, torch.ones(4))
    assert {value.name for value in found.values} == {"result", "total, afterwards"}


def test_draws_in_another_order_are_judged_in_evaluation_mode() -> None:
    """Numbers for rows are drawn by their positions, those for weights in PyTorch's order."""

    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            weight = F.dropout(self.lin.weight, 0.5, self.training)
            return torch.zeros_like(x).index_add(0, DST, F.dropout(x @ weight, 0.5, self.training)[SRC])

    found = check(Dropped(), features(30, 4))
    assert found.ok and found.randomness.startswith("judged in evaluation mode")


def test_what_runs_in_python_is_told() -> None:
    """A graph break with its line, and a program that does not run in float64."""

    def partly(x: Tensor) -> Tensor:
        h = torch.zeros_like(x).index_add(0, DST, x[SRC].sigmoid())
        if float(h.sum()) > 0:
            h = h @ torch.eye(4, dtype=torch.float32)
        return h.relu()

    found = check(partly, features(30, 4))
    assert found.ok
    assert found.compiled.graph_breaks >= 1 and "test_certificate.py" in found.compiled.breaks[0].where
    assert found.reference.startswith("eager mode in float32, since the program does not run in float64: ")


@pytest.mark.slow
def test_inductor_is_timed_if_asked_for() -> None:
    found = check(weighted, features(30, 4), inductor=True)
    assert found.inductor.why == "" and found.inductor.step_seconds is not None
    assert found.inductor.first_call_seconds > found.inductor.step_seconds > 0
    assert "by torch.compile's own backend, whose first took" in " ".join(str(found).split())


def test_state_in_python_is_told() -> None:
    calls = [0]

    def counted(x: Tensor) -> Tensor:
        calls[0] += 1
        return torch.zeros_like(x).index_add(0, DST, x[SRC]) + calls[0]

    found = check(counted, features(30, 4))
    assert calls == [0] and not found.repeats.eager_twice
    assert found.problems[0].startswith("eager mode itself gives other numbers in a second run")


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        (lambda: check(lambda x: x * 2, threading.Lock()), DataError, r"argument 1 \(lock\) cannot be copied"),
        (lambda: check(lambda x: x * 2, torch.ones(3), others=[torch.ones(2)]), SettingsError, "tuple of arguments"),
        (lambda: check(lambda x: None, torch.ones(3)), DataError, "a function that returns tensors"),
        (lambda: check(nn.LazyLinear(3), torch.ones(3)), DataError, "lazy module"),
        (lambda: check(lambda x: 1 // 0, torch.ones(3)), ZeroDivisionError, "division"),
    ],
)
def test_errors_say_what_to_do(wrong: Callable[[], Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        wrong()


def test_what_cannot_be_copied_is_named() -> None:
    lock = threading.Lock()

    def locked(x: Tensor) -> Tensor:
        with lock:
            return x * 2

    copied = ProgramCopy(locked, [((torch.ones(3),), {})])
    assert list(copied.uncopied) == ["lock"] and "cannot be copied by copy.deepcopy" in copied.uncopied["lock"]


@pytest.mark.parametrize(
    "draw",
    [
        torch.rand_like, torch.randn_like, lambda x: F.dropout(x.abs(), 0.4), lambda x: torch.rand(4),
        lambda x: x.clone().uniform_(), lambda x: torch.bernoulli(torch.full_like(x, 0.4)), F.gumbel_softmax,
        lambda x: torch.native_dropout(x, 0.4, True)[0], lambda x: torch.randint(9, (5,)),
    ],
)  # fmt: skip
def test_float64_draws_the_numbers_of_float32(draw: Callable[[Tensor], Tensor]) -> None:
    x = features(6, 4)
    torch.manual_seed(3)
    narrow = draw(x)
    torch.manual_seed(3)
    with default_dtype(torch.float64), DrawnAs(torch.float32):
        wide = draw(x.double())
    assert wide.dtype == (torch.float64 if narrow.is_floating_point() else narrow.dtype)
    torch.testing.assert_close(wide.to(narrow.dtype), narrow, rtol=1e-6, atol=1e-6)


# ---------------------------------------------------------------- the command line

SCRIPT = """
import torch

def summed(x, src, dst):
    return torch.zeros_like(x).index_add(0, dst, x[src].sigmoid())

def checked():
    return summed, torch.randn(9, 4), torch.arange(9), torch.arange(9).flip(0)

def nothing():
    return 3
"""


def test_the_command_checks_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, page = tmp_path / "script_to_check.py", tmp_path / "found.html"
    script.write_text(SCRIPT)
    assert main(["check", f"{script}:checked", "--seconds", "0.05", "-o", str(page)]) == 0
    assert capsys.readouterr().out.startswith("summed (") and "Certificate of summed" in page.read_text()
    for spec, said in ((f"{script}:nothing", "return model, x"), (f"{script}:missing", "has no function 'missing'"),
                       ("missing.py:checked", "SCRIPT.py:FUNCTION")):  # fmt: skip
        assert main(["check", spec]) == 2
        assert said in capsys.readouterr().err


def test_the_command_fails_if_a_value_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(importer.HANDLERS, torch.ops.aten.sigmoid.default, _wrong)  # type: ignore[arg-type]
    (tmp_path / "script_to_check.py").write_text(SCRIPT)
    assert main(["check", f"{tmp_path / 'script_to_check.py'}:checked", "--seconds", "0.05"]) == 1
    assert "FAILED" in capsys.readouterr().out
