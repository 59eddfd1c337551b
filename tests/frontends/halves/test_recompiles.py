"""Compilations over sizes, through both entry points; what PyTorch cannot trace; limits reported in one line."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch._dynamo.exc import InternalTorchDynamoError

import graphweave
from graphweave.core.log import _warned
from graphweave.frontends.dynamo import captured as door
from tests.frontends.halves.recompile_programs import CASES, SIZES
from tests.frontends.halves.recompiles import class_of, count, doors
from tests.support import assert_matches, by_default, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

MOST = {"compile": 3, "backend": 4}
"""Upper limit on compilations by door. `backend` compiles none and one edge apart (`capture_settings.ONE_APART`)."""
BY_BACKEND = [name for name in CASES if name not in ("JumpingKnowledge lstm", "lazy SAGE")]
"""Programs for both doors. The others need a setting that lets LSTMs be traced, or a run before the trace, which only
`graphweave.compile` has."""


def _counts(name: str, through: str) -> None:
    found = count(name, doors(through))
    assert not found.wrong
    assert (found.breaks, found.eager) == (0, 0)
    assert 1 <= found.compilations <= MOST[through], found.reasons


@pytest.mark.parametrize("name", by_default(CASES, "f differences"))
def test_five_sets_of_sizes_take_at_most_three_compilations(name: str) -> None:
    _counts(name, "compile")


@pytest.mark.parametrize("name", by_default(["JumpingKnowledge lstm", "GraphUNet"], "JumpingKnowledge lstm"))
def test_what_pytorch_leaves_to_python_is_one_graph(name: str) -> None:
    torch.manual_seed(0)
    model, args = CASES[name].make(), CASES[name].arguments(SIZES[0])
    with torch.no_grad():
        torch.testing.assert_close(graphweave.compile(model)(*args), model(*args))
    counts = graphweave.counters()
    assert (counts["compilations"], counts["graph_breaks"], counts["eager_fallbacks"]) == (1, 0, 0)


@pytest.mark.parametrize("name", by_default(BY_BACKEND, "f without_loops", "f graph_means"))
def test_as_few_through_the_plain_door(name: str) -> None:
    _counts(name, "backend")


def test_the_bench_names_the_reason_of_a_recompilation() -> None:
    found = count("f sums", graphweave.compile)
    assert [what for what, _ in found.reasons] == ["strides", "no rows, or few"]
    assert class_of("f: 0/0: tensor 'args[0]' stride mismatch at index 0. expected 8, actual 16") == "strides"


def test_settings_of_the_plain_door_end_with_the_compilation() -> None:
    config = torch._dynamo.config
    before = (config.capture_scalar_outputs, config.assume_static_by_default, config.allow_rnn)

    def f(x: Tensor, i: Tensor) -> Tensor:
        return x[i[i > 0]].sin()

    compiled = torch.compile(f, backend="graphweave", fullgraph=True)
    for rows in (5, 9):
        x, i = features(rows, 3), torch.arange(rows)
        torch.testing.assert_close(compiled(x, i), f(x, i))
    assert graphweave.counters()["compilations"] == 1
    assert (config.capture_scalar_outputs, config.assume_static_by_default, config.allow_rnn) == before


def test_other_backends_keep_pytorchs_settings() -> None:
    seen: list[bool] = []

    def backend(module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        seen.append(torch._dynamo.config.capture_scalar_outputs)
        return module.forward

    torch.compile(torch.sin, backend="graphweave")(torch.ones(2))
    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert seen == [False]


def test_a_trace_that_fails_with_the_settings_is_made_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, where AOTAutograd cannot tell a slice's size, PyTorch's own settings break the graph before it."""
    from graphweave.frontends.dynamo import backend

    compiled, traces = backend._compiled, []

    def failing(*args: Any) -> Any:
        traces.append(torch._dynamo.config.capture_scalar_outputs)
        if traces[-1]:
            raise AssertionError("should have been constant, but got u0")
        return compiled(*args)

    monkeypatch.setattr(backend, "_compiled", failing)
    x = features(4, 3)
    torch.testing.assert_close(torch.compile(lambda x: x.sin() * 2, backend="graphweave")(x), x.sin() * 2)
    assert traces == [True, False]


def _first_of_some(x: Tensor, dst: Tensor) -> Tensor:
    return x + dst[dst > 0][:1].expand(len(x), *dst.shape).sum(1, keepdim=True)


def test_a_size_that_data_decides_and_that_must_be_1_is_left_to_python() -> None:
    """PyTorch refuses an `expand` of data-dependent size while it traces, before it calls a backend."""
    x, dst = features(4, 3), torch.arange(5)
    compiled = torch.compile(_first_of_some, backend="graphweave", dynamic=True)
    torch.testing.assert_close(compiled(x, dst), _first_of_some(x, dst))
    assert graphweave.counters()["compilations"] >= 1


def test_what_pytorchs_tracer_fails_for_is_left_to_python_once_and_told() -> None:
    """PyTorch cannot trace a view of a sparse tensor, whose base has no strides, if sizes are symbols."""
    values = torch.eye(3).to_sparse_csr().values()
    with pytest.raises((IndexError, InternalTorchDynamoError)):  # the second in PyTorch 2.11
        torch.compile(_twice, backend="graphweave", dynamic=True, fullgraph=True)(values)
    compiled = torch.compile(_twice, backend="graphweave", dynamic=True)
    with pytest.warns(
        UserWarning, match=r"_twice .*test_recompiles.py:\d+\) runs eagerly, since PyTorch could not trace"
    ):
        torch.testing.assert_close(compiled(values), values * 2)
    torch.testing.assert_close(compiled(values), values * 2)
    assert graphweave.counters()["eager_fallbacks"] == 1


def _twice(values: Tensor) -> Tensor:
    return values * 2


def test_what_eager_refuses_keeps_its_own_error_through_the_plain_door() -> None:
    compiled = torch.compile(lambda x, i: x[i > 0] @ x, backend="graphweave", dynamic=True)
    with pytest.raises(Exception, match=r"shapes cannot be multiplied|size"):
        compiled(features(4, 3), torch.arange(4))


class Broken(nn.Module):
    """A graph break between two layers, so that the code of both halves is shared by all of this class."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lin = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.lin(x).tanh()
        torch._dynamo.graph_break()
        return h * 2


@pytest.mark.skipif("recompile_limit" not in door._EACH_APART, reason="torch.compile of PyTorch 2.11 has no such limit")
def test_many_widths_of_a_layer_behind_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch counts compilations by code, which all layers of a class share: each compiled layer counts on its own."""
    monkeypatch.setattr(door, "_EACH_APART", {**door._EACH_APART, "recompile_limit": 2})
    with warnings.catch_warnings(record=True) as said, torch.no_grad():
        compilations = []
        for width in (2, 3, 4, 5):
            before = graphweave.counters()["compilations"]
            graphweave.compile(Broken(width))(features(5, width))
            compilations.append(graphweave.counters()["compilations"] - before)
    assert len(set(compilations)) == 1 and compilations[0] >= 2, compilations
    assert not said


def test_more_widths_than_pytorchs_limit_of_one_function() -> None:
    compiled = graphweave.compile(lambda x: x * 2)
    for width in range(2, 13):
        compiled(features(3, width))
    assert graphweave.counters()["compilations"] == 11


@pytest.mark.skipif("recompile_limit" not in door._EACH_APART, reason="torch.compile of PyTorch 2.11 has no such limit")
def test_a_limit_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(door, "_EACH_APART", {**door._EACH_APART, "recompile_limit": 2})
    monkeypatch.setattr(logging.getLogger("torch._dynamo"), "propagate", True)
    _warned.clear()

    def doubled(x: Tensor) -> Tensor:
        return x * 2

    compiled = graphweave.compile(doubled)
    with pytest.warns(UserWarning, match=r"traced_doubled .* was compiled 2 times.*others run eagerly") as said:
        for width in (2, 3, 4, 5):
            compiled(features(3, width))
    assert len(said) == 1 and "\n" not in str(said[0].message)
    assert not [r for r in caplog.records if "recompile_limit" in r.getMessage()]


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = pyg.SAGEConv((-1, -1), 5), nn.LazyBatchNorm1d()
        self.plain, self.lin = nn.BatchNorm1d(5), nn.LazyLinear(2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x.mul_(0.5)
        return self.lin(self.plain(self.norm(self.conv((x, x), edge_index))).relu())


def test_a_lazy_model_is_made_as_eager_mode_makes_it() -> None:
    models = [Lazy(), Lazy()]
    outputs, inputs = [], []
    for run in (models[0], graphweave.compile(models[1])):
        torch.manual_seed(3)
        inputs.append(features(9, 4))
        outputs.append(run(inputs[-1], random_graph(9, 9, 30)))
    torch.testing.assert_close(outputs[1], outputs[0])
    torch.testing.assert_close(inputs[1], inputs[0])  # multiplied once, not twice
    assert models[0].state_dict().keys() == models[1].state_dict().keys()
    for name, value in models[0].state_dict().items():
        torch.testing.assert_close(models[1].state_dict()[name], value, msg=name)
    counts = graphweave.counters()
    assert (counts["compilations"], counts["graph_breaks"], counts["eager_fallbacks"]) == (1, 0, 0)


def test_rows_written_into_a_constant_index() -> None:
    """The result has a row for each edge of a map, the zeros that it is written into do not: an importer IndexError."""

    def f(x: Tensor) -> Tensor:
        index = torch.zeros(4, dtype=torch.long)
        index[1:] = torch.arange(3)
        return x[index] * 2

    def g(x: Tensor) -> Tensor:
        index = torch.zeros(4, dtype=torch.long)
        index[1] = 2
        return x[index] * 2

    for fn in (f, g):
        assert_matches(graphweave.compile(fn), fn, features(5, 3, torch.float64))
    assert graphweave.counters()["eager_fallbacks"] == 0
