"""Branches on data that only raise become checks, and those that only filter by a mask are taken always."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
import graphweave.dgl as dgl
from graphweave import function as fn
from tests.support import features, random_graph

F64 = torch.float64
SIZES = ((6, 20), (9, 40), (5, 7))

DOORS: dict[str, Callable[[Any], Any]] = {
    "graphweave.compile": graphweave.compile,
    "torch.compile": lambda f: torch.compile(f, backend="graphweave", fullgraph=True),
}
doors = pytest.mark.parametrize("door", DOORS)


def counts() -> tuple[int, int, int]:
    now = graphweave.counters()
    return now["compilations"], now["graph_breaks"], now["eager_fallbacks"]


class DGLError(Exception):
    pass


class Layer(nn.Module):
    """As DGL's own layers begin."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.allow_zero_in_degree = nn.Linear(4, 4).double(), False

    def forward(self, graph: dgl.DGLGraph, x: Tensor) -> Tensor:
        with graph.local_scope():
            if not self.allow_zero_in_degree:  # noqa: SIM102
                if (graph.in_degrees() == 0).any():
                    raise DGLError("There are 0-in-degree nodes in the graph. Add self-loops.")
            graph.ndata["h"] = self.lin(x)
            graph.update_all(fn.copy_u("h", "m"), fn.sum("m", "h"))
            return graph.ndata["h"]


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Layer(), Layer()

    def forward(self, graph: dgl.DGLGraph, x: Tensor) -> Tensor:
        return self.second(graph, self.first(graph, x).relu())


@doors
def test_a_check_of_degrees_in_a_local_scope(door: str, fresh_compiler: None) -> None:
    torch.manual_seed(0)
    model = TwoLayers()
    compiled = DOORS[door](model)
    for nodes, edges in SIZES:
        src, dst = random_graph(nodes, nodes, edges)
        graph = dgl.add_self_loop(dgl.graph((src, dst), num_nodes=nodes))
        for _ in range(2):
            torch.testing.assert_close(compiled(graph, x := features(nodes, 4, F64)), model(graph, x))
    seen = counts()
    assert seen[0] <= 2, seen
    assert seen[1:] == (0, 0)
    lonely = dgl.graph(([0, 1], [1, 2]), num_nodes=3)
    for _ in range(2):
        with pytest.raises(DGLError, match="There are 0-in-degree nodes"):
            compiled(lonely, features(3, 4, F64))
    torch.testing.assert_close(compiled(graph, x), model(graph, x))
    assert counts() == seen


def positive(x: Tensor) -> Tensor:
    if (x <= 0).any():
        raise ValueError("positive numbers")
    return x.log()


def all_finite(x: Tensor) -> Tensor:
    if torch.isfinite(x).all():
        return x + 1
    raise KeyError("not finite")


def computed(x: Tensor) -> Tensor:
    largest = x.max()
    if largest > 5:
        raise OverflowError(f"{largest} is over 5")
    return x * 2


def number(x: Tensor) -> Tensor:
    if int(x.sum()) > 100:
        raise IndexError("over 100")
    return x * 2


def either(x: Tensor) -> Tensor:
    if (x > 100).any() or (x < -100).any():
        raise ArithmeticError("out of range")
    return x * 2


RAISES: list[tuple[Callable[[Tensor], Tensor], float, type[Exception], str]] = [
    (positive, -1.0, ValueError, "positive numbers"),
    (all_finite, float("nan"), KeyError, "not finite"),
    (computed, 7.0, OverflowError, "largest.*test_branches.py"),
    (number, 1000.0, IndexError, "over 100"),
    (either, 1000.0, ArithmeticError, "out of range"),
    (either, -1000.0, ArithmeticError, "out of range"),
]


@doors
@pytest.mark.parametrize(("f", "wrong", "error", "message"), RAISES)
def test_a_branch_that_raises(
    f: Any, wrong: float, error: type[Exception], message: str, door: str, fresh_compiler: None
) -> None:
    compiled = DOORS[door](f)
    good = features(6, 4, F64).abs() + 0.1
    torch.testing.assert_close(compiled(good), f(good))
    bad = good.clone()
    bad[2, 1] = wrong
    with pytest.raises(error):
        f(bad)
    with pytest.raises(error, match=message):
        compiled(bad)
    torch.testing.assert_close(compiled(good), f(good))
    assert counts() == (1, 0, 0)


def test_an_exception_that_the_function_catches_breaks_the_graph(fresh_compiler: None) -> None:
    def f(x: Tensor) -> Tensor:
        try:
            return positive(x)
        except ValueError:
            return x.exp()

    compiled = graphweave.compile(f)
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(compiled(x), f(x))
    assert graphweave.counters()["graph_breaks"] + graphweave.counters()["eager_fallbacks"] > 0


def filtered(x: Tensor, edges: Tensor, weight: Tensor) -> Tensor:
    mask = edges[0] != edges[1]
    if not mask.all():
        edges = edges[:, mask]
        weight = weight[mask]
    return torch.zeros_like(x).index_add(0, edges[1], x[edges[0]] * weight)


def filtered_at_once(x: Tensor, edges: Tensor, weight: Tensor) -> Tensor:
    keep = weight[:, 0] > 0
    if (~keep).any():
        edges, weight = edges[..., keep], weight[keep]
    return torch.zeros_like(x).index_add(0, edges[1], x[edges[0]] * weight)


@doors
@pytest.mark.parametrize("f", [filtered, filtered_at_once])
def test_a_branch_that_filters(f: Any, door: str, fresh_compiler: None) -> None:
    compiled = DOORS[door](f)
    for nodes, edges in SIZES:
        index = random_graph(nodes, nodes, edges)
        index[:, 0] = 1  # a self-loop
        for given in (index, index[:, index[0] != index[1]]):
            x, weight = features(nodes, 4, F64), features(given.shape[1], 1, F64)
            for w in (weight, weight.abs()):
                torch.testing.assert_close(compiled(x, given, w), f(x, given, w))
    assert counts() == (1, 0, 0)


def other_mask(x: Tensor, mask: Tensor, other: Tensor) -> Tensor:
    if not mask.all():
        x = x[other]
    return x * 2


def written(x: Tensor, mask: Tensor, other: Tensor) -> Tensor:
    if not mask.all():
        x = x[mask]
    x.mul_(2)
    return x + 1


def more(x: Tensor, mask: Tensor, other: Tensor) -> Tensor:
    if not mask.all():
        x = x[mask] + 1
    return x * 2


@pytest.mark.parametrize("f", [other_mask, written, more])
def test_a_branch_that_does_more_than_filter_is_followed(f: Any, fresh_compiler: None) -> None:
    compiled = graphweave.compile(f)
    half, whole = torch.arange(6) % 2 == 0, torch.ones(6, dtype=torch.bool)
    for mask in (half, whole):
        given, want = features(6, 4, F64), features(6, 4, F64)
        torch.testing.assert_close(compiled(given, mask, half), f(want, mask, half))
        torch.testing.assert_close(given, want)
    assert graphweave.counters()["graph_breaks"] > 0


class Graph:
    """A data object of the user's own."""

    def __init__(self, nodes: int, edges: Tensor) -> None:
        self.x, self.edge_index = features(nodes, 4, F64), edges


def with_loops(graph: Graph) -> Tensor:
    kept = graph.edge_index[:, graph.edge_index[0] != graph.edge_index[1]]
    loops = torch.arange(graph.x.size(0))
    index = torch.cat([kept, torch.stack([loops, loops])], dim=1)
    if index.numel() == 0:
        return graph.x.new_full((), -1.0)
    return torch.zeros_like(graph.x).index_add(0, index[1], graph.x[index[0]])


@doors
def test_whether_there_are_edges_or_self_loops(door: str, fresh_compiler: None) -> None:
    compiled = DOORS[door](with_loops)
    for nodes, edges in SIZES:
        graph = Graph(nodes, random_graph(nodes, nodes, edges))
        torch.testing.assert_close(compiled(graph), with_loops(graph))
    assert counts() == (1, 0, 0)
    one = Graph(1, torch.tensor([[0, 0], [0, 0]]))
    torch.testing.assert_close(compiled(one), with_loops(one))


def test_whether_there_are_edges_or_self_loops_of_no_nodes(fresh_compiler: None) -> None:
    empty = Graph(0, torch.empty(2, 0, dtype=torch.long))
    torch.testing.assert_close(graphweave.compile(with_loops)(empty), with_loops(empty))


def test_attention_over_a_data_object_of_ones_own(fresh_compiler: None) -> None:
    layer = pyg.GATConv(4, 3, heads=2).double()
    f = lambda graph: layer(graph.x, graph.edge_index)  # noqa: E731
    compiled = graphweave.compile(f)
    for nodes, edges in SIZES:
        graph = Graph(nodes, random_graph(nodes, nodes, edges))
        torch.testing.assert_close(compiled(graph), f(graph))
    assert counts() == (1, 0, 0)
