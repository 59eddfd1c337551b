"""Rows that a function sorts, chooses by a mask, or keeps the largest of each segment of: one call of native code each,
made once for a graph where it depends on that alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch_geometric.nn.pool.select.topk import topk

import graphweave
from graphweave.compiler.plan import Plan
from graphweave.core import orders
from graphweave.execute.executable import Executable
from graphweave.ir.message.nodes import Aten, Chosen, Order, Program
from graphweave.runtime.orders import choose_rows, order_rows
from tests.support import assert_matches, by_default, features, random_graph, threads

F64 = torch.float64

# ---------------------------------------------------------------- native code


def numbers(dtype: torch.dtype, rows: int, seed: int) -> Tensor:
    """Few different numbers, so that many are equal, and with floats what is awkward to order."""
    drawn = torch.randint(9, (rows,), generator=torch.Generator().manual_seed(seed))
    if dtype.is_floating_point:
        of = torch.tensor([-0.0, 0.0, torch.inf, -torch.inf, torch.nan, -torch.nan, 1e-3, -2.0, 300.0], dtype=F64)
    else:
        of = torch.tensor([0, 1, 5, 2, 127, 0, 3, 1, 77] if dtype in (torch.bool, torch.uint8) else
                          [0, -1, 127, -128, 5, 3, -3, 0, 1])  # fmt: skip
        if dtype in (torch.int64, torch.int32):
            of = of * 9_999_999
    return of[drawn].to(dtype)


DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_sorted_as_pytorch_sorts_them(dtype: torch.dtype) -> None:
    for rows in (0, 1, 2, 700, 40_000):
        one, other = numbers(dtype, rows, 0), numbers(torch.int64, rows, 1)
        for keys, falls in (
            ((one,), (False,)),
            ((one,), (True,)),
            ((other, one), (False, True)),
            ((one,) * 2, (True,) * 2),
        ):
            assert torch.equal(order_rows(keys, falls), orders.order_rows(keys, falls)), (rows, falls)


def test_keys_may_lie_anywhere_in_memory() -> None:
    wide = features(50, 6, F64)
    keys = (wide[:, 3], torch.arange(3)[:, None].expand(3, 50)[1], torch.arange(100)[::2].flip(0))
    assert torch.equal(order_rows(keys, (True, False, True)), orders.order_rows(keys, (True, False, True)))


def test_large_numbers_are_told_apart_in_each_byte() -> None:
    key = torch.tensor([1 << shift for shift in range(63)] + [-(1 << shift) for shift in range(64)])[
        torch.randperm(127)
    ]
    assert torch.equal(order_rows((key,), (False,)), key.argsort())


@pytest.mark.parametrize("rows", [0, 1, 9, 100_000])
def test_the_rows_of_a_mask_are_listed_in_order(rows: int) -> None:
    drawn = torch.rand(rows, generator=torch.Generator().manual_seed(0))
    for mask in (drawn < 0.3, drawn < 0, drawn <= 1, (drawn < 0.5).repeat_interleave(2)[::2]):
        for count in (1, 2, 3):
            with threads(count):
                assert torch.equal(choose_rows(mask), mask.nonzero().squeeze(1))


def test_no_order_depends_on_the_number_of_threads() -> None:
    key, group = numbers(torch.float32, 50_000, 2), numbers(torch.int64, 50_000, 3)
    found = []
    for count in (1, 2, 5):
        with threads(count):
            found.append(order_rows((group, key), (False, True)))
    assert all(torch.equal(found[0], other) for other in found[1:])


# ---------------------------------------------------------------- programs


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch, fresh_compiler: None) -> list[Plan]:
    """The plans of all programs that are compiled."""
    made: list[Plan] = []
    original = Executable.__init__

    def init(self: Executable, plan: Plan, *args: Any, **options: Any) -> None:
        made.append(plan)
        original(self, plan, *args, **options)

    monkeypatch.setattr(Executable, "__init__", init)
    return made


def nodes_of(plans: list[Plan], kind: type) -> list[Any]:
    return [node for plan in plans for node in plan.program.nodes if isinstance(node, kind)]


def best_rows(x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
    """The sums of the neighbours of the better half of each graph's nodes, weighted by what makes them better."""
    sums = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
    score = sums.sum(1)
    kept = topk(score, 0.5, batch)
    return sums[kept] * score[kept].tanh()[:, None]


def batched(nodes: int, edges: int, graphs: int) -> tuple[Tensor, Tensor, Tensor]:
    batch = torch.arange(nodes) * graphs // max(nodes, 1)
    return features(nodes, 4, F64), random_graph(nodes, nodes, edges), batch


SIZES = ((9, 30, 3), (14, 40, 4), (7, 0, 2), (1, 2, 1), (30, 100, 1))


def test_the_largest_rows_of_segments_take_one_order(plans: list[Plan]) -> None:
    compiled = graphweave.compile(best_rows)
    for sizes in SIZES:
        assert_matches(compiled, best_rows, *batched(*sizes), label=str(sizes))
    (order,) = set(nodes_of(plans, Order))
    assert order.descending == (False, True)
    assert nodes_of(plans, Chosen)
    assert not [n for n in nodes_of(plans, Aten) if "sort" in n.target or "nonzero" in n.target]


LAYERS: dict[str, Callable[[], torch.nn.Module]] = {
    "TopKPooling": lambda: pyg.TopKPooling(4, ratio=0.5),
    "TopKPooling of two": lambda: pyg.TopKPooling(4, ratio=2),
    "TopKPooling by a score": lambda: pyg.TopKPooling(4, min_score=0.2),
    "SAGPooling": lambda: pyg.SAGPooling(4, ratio=0.6),
    "ASAPooling": lambda: pyg.ASAPooling(4, ratio=0.5, add_self_loops=True),
}


class Pooled(torch.nn.Module):
    """A pooling layer, a sum over the neighbours that are kept, and one row for each graph."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer.double()

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x, (src, dst), _, batch, *_ = self.layer(x, edge_index, batch=batch)
        x = x + torch.zeros_like(x).index_add(0, dst, x[src])
        return pyg.global_mean_pool(x, batch, 4)


@pytest.fixture
def double() -> Iterator[None]:
    """ASAPooling makes weights of edges of the default type."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("door", by_default(["graphweave.compile", "torch.compile"], "graphweave.compile"))
@pytest.mark.parametrize("name", by_default(LAYERS, "TopKPooling"))
def test_pooling_layers_are_one_graph(name: str, door: str, fresh_compiler: None, double: None) -> None:
    torch.manual_seed(0)
    model = Pooled(LAYERS[name]())
    ours = door == "graphweave.compile"
    compiled = graphweave.compile(model) if ours else torch.compile(model, backend="graphweave", fullgraph=True)
    for sizes in SIZES if ours else SIZES[:2]:
        assert_matches(compiled, model, *batched(*sizes), module=model, label=f"{name} {sizes}")
    counts = graphweave.counters()
    assert (counts["graph_breaks"], counts["eager_fallbacks"]) == (0, 0)


def test_the_first_rows_of_segments_are_kept_without_padding(plans: list[Plan]) -> None:
    layer = pyg.SortAggregation(3)

    def readout(x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return layer(torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]]) + x, batch)

    compiled = graphweave.compile(readout)
    for sizes in SIZES[:3]:
        assert_matches(compiled, readout, *batched(*sizes), label=str(sizes))
    (order,) = set(nodes_of(plans, Order))
    assert order.descending == (False, True)
    assert (graphweave.counters()["compilations"], graphweave.counters()["graph_breaks"]) == (1, 0)


def test_what_native_code_orders_and_chooses_is_not_left_to_pytorch(fresh_compiler: None) -> None:
    def first_rows(x: Tensor) -> Tensor:
        order = x.sum(1).argsort(descending=True, stable=True)
        return x[order][x[order, 0] > 0] * 2

    compiled, x = graphweave.compile(first_rows), features(30, 4, F64)
    compiled(x)
    before = graphweave.counters()["fallback_calls"]
    torch.testing.assert_close(compiled(x), first_rows(x))
    assert graphweave.counters()["fallback_calls"] == before
    report = graphweave.explain(first_rows, x)
    assert ([g.native for g in report.graphs], [g.fallbacks for g in report.graphs]) == ([2], [()])
    assert ", 2 native calls" in str(report)


def test_equal_rows_are_kept_in_their_order(fresh_compiler: None) -> None:
    """PyTorch leaves open which of them a sort puts first unless it is asked to be stable."""

    def first(x: Tensor, batch: Tensor) -> Tensor:
        return topk(x.round(), 2, batch) * 1.0

    compiled = graphweave.compile(first, options={"verify": True})
    for nodes in (12, 30):
        x, batch = features(nodes, 1, F64).flatten(), torch.arange(nodes) % 4
        order = orders.order_rows((batch, x.round()), (False, True))
        wanted = torch.cat([order[batch[order] == graph][:2] for graph in range(4)])
        assert torch.equal(compiled(x, batch), wanted * 1.0)


def test_an_order_of_the_graph_is_made_once(plans: list[Plan]) -> None:
    def by_destination(x: Tensor, edge_index: Tensor) -> Tensor:
        order = edge_index[1].argsort(stable=True)
        return torch.zeros_like(x).index_add(0, edge_index[1][order], x[edge_index[0][order]])

    compiled = graphweave.compile(by_destination)
    graph = random_graph(9, 9, 40)
    x = features(9, 4, F64).requires_grad_()
    torch.testing.assert_close(compiled(x, graph), by_destination(x, graph))
    prelude: list[Program] = [plan.prelude.program for plan in plans if plan.prelude is not None]
    assert any(isinstance(node, Order) for program in prelude for node in program.nodes)
    before = graphweave.counters()["hoist_builds"]
    compiled(x, graph)
    assert graphweave.counters()["hoist_builds"] == before
