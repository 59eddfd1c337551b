"""Reducers of one's own: folded by kernels, equal to the function edge by edge, forward and every gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave
from graphweave import Schedule, ops
from graphweave.core.errors import DataError, IndexRangeError, IRError
from graphweave.core.types import UNIT, DType, OwnFold, Space
from graphweave.frontends.dynamo.own_reducers import own_reducer
from graphweave.ir.fold_rows import fold_rows
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import Input, MapOf, Program, Push, ToUnit, Type
from graphweave.ir.message.parse import parse
from graphweave.ir.message.show import show
from graphweave.ir.message.verify import verify
from graphweave.runtime.triton_kernel import interpreted
from tests.ops.edge_op_cases import folded
from tests.programs.examples import SPACES, E, V
from tests.programs.graphs import EdgeList, zoo
from tests.support import assert_matches, by_default

pytestmark = pytest.mark.usefixtures("fresh_compiler")

ZOO = {edges.name: edges for edges in zoo()}
FEW = [ZOO[name] for name in ("no_edges", "one_edge", "isolated", "hub_dst")]


def log_sum(x: Tensor, y: Tensor) -> Tensor:
    return torch.logaddexp(x, y)


def largest_magnitude(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x.abs() >= y.abs(), x, y)


def either(x: Tensor, y: Tensor) -> Tensor:
    """The probability that one of two independent events happens."""
    return x + y - x * y


def slope_of_either(x: Tensor, out: Tensor) -> Tensor:
    return (1 - out) / (1 - x)


def either_of_signs(x: Tensor, y: Tensor) -> Tensor:
    """(1 + x)(1 + y) - 1, which is flat where a value is -1."""
    return x + y + x * y


def halved_product(x: Tensor, y: Tensor) -> Tensor:
    return x * 0.5 * y


REDUCERS: dict[str, tuple[Any, ...]] = {
    "log_sum": (log_sum, -math.inf),
    "largest_magnitude": (largest_magnitude, 0.0),
    "either": (either, 0.0),
    "either_with_slope": (either, 0.0, slope_of_either),
}
DOORS: dict[str, Callable[..., Any]] = {
    "eager": lambda f: f,
    "compile": graphweave.compile,
    "plain": lambda f: torch.compile(f, backend="graphweave", dynamic=True),
}


def reference(reduce: Any, x: Tensor, y: Tensor, edges: EdgeList) -> Tensor:
    """`layer` edge by edge. Rows without edges have the identity, or -9 in place of -inf."""
    messages = (x.tanh()[edges.src] * y[edges.dst]).unbind(0) if len(edges.src) else []
    received: list[list[Tensor]] = [[] for _ in range(edges.num_dst)]
    for message, v in zip(messages, edges.dst.tolist(), strict=True):
        received[v].append(message)
    nothing = x.new_full(x.shape[1:], max(reduce[1], -9.0))
    rows = [folded(values, reduce[:2]) if values else nothing for values in received]
    whole = torch.stack(rows) if rows else x.new_zeros(0, *x.shape[1:])
    return whole + 0 * (x.sum() + y.sum())


def layer(reduce: Any, num_dst: int, x: Tensor, y: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    out = ops.reduce_edges(x.tanh()[src] * y[dst], dst, reduce, num_rows=num_dst)
    out = out.clamp(min=-9.0) if reduce[1] == -math.inf else out
    return out + 0 * (x.sum() + y.sum())


def leaves(edges: EdgeList, width: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x, y = (torch.randn(n, width, generator=generator, dtype=torch.float64) for n in (edges.num_src, edges.num_dst))
    return x, y


CASES = [f"{door} {name}" for door in DOORS for name in REDUCERS]


@pytest.mark.parametrize(
    "case", by_default(CASES, "eager either", "compile log_sum", "compile either", "plain either_with_slope")
)
def test_values_and_gradients_are_those_edge_by_edge(case: str) -> None:
    door, name = case.split()
    reduce = REDUCERS[name]
    graphs = FEW if case in ("compile log_sum", "eager either") else [ZOO["hub_dst"]]
    for edges in graphs:
        run = DOORS[door](lambda x, y, src, dst, n=edges.num_dst: layer(reduce, n, x, y, src, dst))
        for width, index in ((33, torch.int32), (1, torch.int64)):
            src, dst = edges.src.to(index), edges.dst.to(index)
            assert_matches(
                lambda x, y, run=run, src=src, dst=dst: run(x, y, src, dst),
                lambda x, y, edges=edges: reference(reduce, x, y, edges),
                *leaves(edges, width), label=f"{edges.name} {width}",
            )  # fmt: skip


def told(reduce: Any, schedule: Any = None, width: int = 16) -> graphweave.Explanation:
    edges = ZOO["hub_dst"]
    x, y = leaves(edges, width)
    run = graphweave.compile(
        lambda x, y, src, dst: ops.spmm(
            (src, dst), lambda src, dst, edge: src.tanh() * dst, reduce, src=x, dst=y
        ),
        options={"schedule": schedule},
    )  # fmt: skip
    return graphweave.explain(run, x.requires_grad_(), y.requires_grad_(), edges.src, edges.dst)


@pytest.mark.parametrize("name", by_default(REDUCERS, "largest_magnitude", "either"))
def test_nothing_of_edges_times_features_is_stored(name: str) -> None:
    said = told(REDUCERS[name])
    loops = said.text("loops")
    assert "own(" in loops and " graph breaks" not in str(said)
    assert not [line for line in loops.splitlines() if "[num_E0; 16]" in line]
    assert "calls of PyTorch" not in str(said)


FLAT = {"either": (either, 0.0, 1.0), "signs": (either_of_signs, 0.0, -1.0), "product": (halved_product, 2.0, 0.0)}
"""A reducer, its identity, and the value at which it is flat."""


@pytest.mark.parametrize(
    "case", by_default([f"{d} {n}" for d in DOORS for n in FLAT], "eager either", "compile product", "eager signs")
)
def test_gradients_where_the_function_is_flat(case: str) -> None:
    """Rows with none, one and several values at which the derivative in the others is 0, equal ones among them."""
    door, name = case.split()
    combine, identity, flat = FLAT[name]
    edges = ZOO["hub_dst"]
    of_source = torch.tensor([0.5, flat, -1.5, flat + 1e-9], dtype=torch.float64)
    x = of_source[torch.arange(edges.num_src) % 4][:, None] + torch.zeros(3)
    x[:, 1], x[1, 2] = torch.linspace(-1.3, 0.7, len(x)), flat
    run = DOORS[door](
        lambda x, src, dst: ops.reduce_edges(x[src], dst, (combine, identity), num_rows=edges.num_dst)
    )  # fmt: skip

    def by_edges(x: Tensor) -> Tensor:
        received = [x[edges.src[edges.dst == v]].unbind(0) for v in range(edges.num_dst)]
        nothing = x.new_full(x.shape[1:], identity)
        return torch.stack([folded(list(values), (combine, identity)) if values else nothing for values in received])

    assert_matches(lambda x: run(x, edges.src, edges.dst), by_edges, x, label=case)


def test_gradients_near_values_where_the_function_is_flat_are_as_exact_as_others() -> None:
    """A quotient by 1 - x would make an error of 3e-4 of the rounding of the result."""
    x = torch.tensor([0.25, 1 - 2**-12, 0.5, 1 - 2**-13, 0.125])
    index = torch.zeros(5, dtype=torch.int64)
    grads = []
    for values in (x.clone().requires_grad_(), x.double().requires_grad_()):
        ops.reduce_edges(values, index, (either, 0.0), num_rows=1).sum().backward()
        assert values.grad is not None
        grads.append(values.grad.double())
    torch.testing.assert_close(*grads, rtol=0, atol=2e-7)


@pytest.mark.parametrize("door", by_default(["eager", "compile"], "compile"))
def test_gradients_of_half_precision_where_the_function_is_flat(door: str) -> None:
    x = torch.tensor([0.5, 1, 0.75, 0.3, 1, 0.1, 0.9], dtype=torch.bfloat16)
    index = torch.tensor([0, 0, 1, 1, 2, 2, 2])
    run = DOORS[door](lambda x, index: ops.reduce_edges(x, index, (either, 0.0), num_rows=3))
    grads = []
    for values in (x.clone().requires_grad_(), x.double().requires_grad_()):
        (run if values.dtype is x.dtype else DOORS["eager"](run))(values, index).sum().backward()
        assert values.grad is not None
        grads.append(values.grad.double())
    torch.testing.assert_close(*grads, rtol=2e-2, atol=2e-2)


@pytest.mark.skipif(interpreted(), reason="partitions and tiles are fields of the CPU")
@pytest.mark.parametrize(
    "schedule",
    by_default(
        [Schedule(walk="divided"), Schedule(source_partitions=3), Schedule(feature_tile=8, unroll=2)],
        Schedule(source_partitions=3),
    ),
)
def test_schedules_change_no_values(schedule: Schedule) -> None:
    edges = ZOO["hub_dst"]
    run = graphweave.compile(
        lambda x, y, src, dst: layer(REDUCERS["log_sum"], edges.num_dst, x, y, src, dst), options={"schedule": schedule}
    )
    assert_matches(
        lambda x, y: run(x, y, edges.src, edges.dst),
        lambda x, y: reference(REDUCERS["log_sum"], x, y, edges), *leaves(edges, 16),
    )  # fmt: skip


def test_half_precision_is_folded_in_float32() -> None:
    edges = ZOO["hub_dst"]
    x, y = (t.bfloat16() for t in leaves(edges, 8))
    run = graphweave.compile(lambda x, y, src, dst: layer(REDUCERS["log_sum"], edges.num_dst, x, y, src, dst))
    want = reference(REDUCERS["log_sum"], x.double(), y.double(), edges)
    torch.testing.assert_close(run(x, y, edges.src, edges.dst).double(), want, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("door", by_default(["eager", "compile"], "compile"))
def test_gradients_of_gradients(door: str) -> None:
    edges = ZOO["hub_dst"]
    run = DOORS[door](lambda x, y: layer(REDUCERS["log_sum"], edges.num_dst, x, y, edges.src, edges.dst))
    grads = []
    for f in (run, lambda x, y: reference(REDUCERS["log_sum"], x, y, edges)):
        x, y = (t.requires_grad_() for t in leaves(edges, 3))
        (first,) = torch.autograd.grad(f(x, y).square().sum(), x, create_graph=True)
        grads.append(torch.autograd.grad(first.square().sum(), (x, y)))
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_gradients_of_gradients_of_functions_that_are_flat_somewhere_are_refused() -> None:
    x = torch.rand(4, dtype=torch.float64, requires_grad=True)
    out = fold_rows(x, torch.tensor([0, 0, 1, 0]), 2, str(own_reducer(either, 0.0)))
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="Give it a slope"):
        first.sum().backward()


def test_values_that_equal_the_result_share_its_gradient() -> None:
    x = torch.tensor([2.0, -3.0, -3.0, 1.0], requires_grad=True)
    ops.reduce_edges(x, torch.tensor([0, 0, 0, 0]), (largest_magnitude, 0.0), num_rows=1).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0.0, 0.5, 0.5, 0.0]


@pytest.mark.parametrize(
    ("function", "identity", "found"),
    [
        (torch.add, 0, "sum"),
        (lambda x, y: x * y, 1.0, "prod"),
        (lambda x, y: (x + y) / 2, 0.0, None),
        (torch.maximum, 0.0, None),
        (lambda x, y: x - y, 0.0, None),
        (lambda x, y: (x + y).softmax(0), 0.0, None),
        (
            lambda x, y: torch.where((x - 0.5).abs().maximum((y - 0.5).abs()) <= 0.5, x * y, torch.where(x <= y, x, y)),
            math.inf,
            None,
        ),
    ],
    ids=["sum", "product", "mean", "no identity", "not commutative", "mixes rows", "no derivative"],
)
def test_which_functions_kernels_fold(function: Any, identity: float, found: str | None) -> None:
    assert own_reducer(function, identity) == found


def test_a_number_that_a_function_closes_over_is_part_of_it() -> None:
    x, index = torch.tensor([0.5, 0.25]), torch.tensor([0, 0])

    def limited(limit: float) -> Tensor:
        return ops.reduce_edges(x, index, (lambda x, y: (x * limit) * y, 1 / limit), num_rows=1)

    assert [limited(2.0).item(), limited(4.0).item()] == [0.25, 0.5]


FOLD = OwnFold("maximum(x, y)", -math.inf)


def pushed(rows: Space, empty: float) -> Program:
    build = Builder()
    x, index = (build.add(Input(f"i{n}", Type(E, (), d))) for n, d in enumerate((DType.f32, DType.i64)))
    out = build.add(Push(x, build.add(ToUnit(E) if rows == UNIT else MapOf(index, rows)), FOLD, empty))
    return build.program([out], SPACES)


def test_the_formula_is_part_of_the_text_of_programs() -> None:
    program = pushed(V, -math.inf)
    verify(program)
    assert 'push.own("maximum(x, y)", -inf) %0' in show(program)
    assert parse(show(program)) == program


@pytest.mark.parametrize(("rows", "empty", "error"), [(V, 0.0, "is its identity"), (UNIT, -math.inf, "into rows")])
def test_programs_that_fold_otherwise_are_wrong(rows: Space, empty: float, error: str) -> None:
    with pytest.raises(IRError, match=error):
        verify(pushed(rows, empty))


def test_errors_name_the_argument() -> None:
    x, index = torch.randn(3, 2), torch.tensor([0, 5, 1])
    with pytest.raises(IndexRangeError, match="index 5 at position 1 is out of range for 2"):
        ops.reduce_edges(x, index, (log_sum, -math.inf), num_rows=2)
    with pytest.raises(DataError, match="the slope of reduce must be a function of two numbers"):
        ops.reduce_edges(x, index, (log_sum, -math.inf, lambda x, out: x.sum() + out), num_rows=6)
    with pytest.raises(DataError, match="reduce with a slope must be a commutative and associative function"):
        ops.reduce_edges(x, index, (torch.sub, 0.0, slope_of_either), num_rows=6)


@pytest.mark.parametrize("door", by_default(DOORS, "compile"))
def test_an_aggregation_of_pyg(door: str) -> None:
    pyg = pytest.importorskip("torch_geometric.nn")

    class LogSum(pyg.Aggregation):  # type: ignore[name-defined, misc]
        def forward(self, x: Tensor, index: Tensor, ptr: Any, dim_size: int, dim: int) -> Tensor:
            return ops.reduce_edges(x, index, (torch.logaddexp, -math.inf), num_rows=dim_size)

    class Layer(pyg.MessagePassing):  # type: ignore[name-defined, misc]
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            out: Tensor = self.propagate(edge_index, x=x)
            return out.clamp(min=-9.0)

        def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
            return x_j.tanh() * x_i

    edges, model = ZOO["hub_src"], Layer(aggr=LogSum())
    run = DOORS[door](lambda x, edge_index: model(x, edge_index))
    assert_matches(
        lambda x: run(x, torch.stack([edges.src, edges.dst])),
        lambda x: reference(REDUCERS["log_sum"], x, x, edges),
        leaves(edges, 5)[0],
    )
