"""Rows after rows, rows in place of other rows, and the gradients of slices of rows: kernels, through both doors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch_geometric.utils import add_remaining_self_loops, to_dense_batch

import graphweave
from graphweave.compiler.report import collect
from tests.pyg.zoo import DOORS
from tests.support import AWKWARD, SEVERAL, assert_matches, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

N, E, W = 13, 41, 6
EDGES = random_graph(N, N, E, seed=7)


def mean_of_neighbours(message: Tensor, dst: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like).index_add(0, dst, message)


class Loops(torch.nn.Module):
    """Messages with attributes of edges, to which self-loops with a number, or with the mean of the others, are
    added."""

    def __init__(self, fill: float | str) -> None:
        super().__init__()
        self.fill = fill
        self.weight = torch.nn.Parameter(features(W, W, torch.float64, 3))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        index, attr = add_remaining_self_loops(edge_index, edge_attr, self.fill, x.size(0))
        return mean_of_neighbours((x[index[0]] + attr @ self.weight).tanh(), index[1], x)


def left_on_edges(report: Any) -> list[str]:
    return [note.why for graph in report.graphs for note in graph.fallbacks if note.on_edges]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("fill", [2.5, 0.0])
def test_self_loops_with_a_number(fill: float, door: str) -> None:
    eager, module = Loops(fill), Loops(fill)
    compiled = DOORS[door](module)
    with collect() as report:
        for graph in SEVERAL if door == "compile" else SEVERAL[-1:]:
            x = features(graph.num_nodes, W, torch.float64)
            attr = features(graph.edge_index.size(1), W, torch.float64, 2)
            x.requires_grad_(), attr.requires_grad_()
            assert_matches(
                compiled, eager, x, graph.edge_index, attr, module=eager, compiled_module=module, label=graph.name
            )
    made = {note.what for one in report.graphs for note in one.fallbacks if note.on_edges}
    assert made <= ({"aten.new_full.default"} if door == "plain" else set())  # the result of a graph before a break


def concatenated(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Rows of three tensors and of a number, after one another, and slices of them."""
    rows = torch.cat([a.sin(), torch.full((b.size(0), W), 1.5, dtype=a.dtype), b.exp(), a.new_zeros(2, W), c])
    return rows[a.size(0) :].tanh() * 2


@pytest.mark.parametrize("door", DOORS)
def test_rows_after_rows(door: str) -> None:
    compiled: Callable[..., Any] = (
        graphweave.compile(concatenated) if door == "compile"
        else torch.compile(concatenated, backend="graphweave", dynamic=True)
    )  # fmt: skip
    with collect() as report:
        for rows in ((5, 7, 9), (6, 8, 11)):
            args = [features(n, W, torch.float64, n).requires_grad_() for n in rows]
            assert_matches(compiled, concatenated, *args)
    assert left_on_edges(report) == []


SLICES: dict[int, Callable[[Tensor], Tensor]] = {
    1: lambda h: h[2:].exp() + h[1:-1],
    3: lambda h: h[2::3].exp() + h[1:-1:3],
}


@pytest.mark.parametrize("step", SLICES)
def test_gradient_of_a_slice_of_rows(step: int) -> None:
    def f(x: Tensor, edge_index: Tensor) -> Tensor:
        return SLICES[step](torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]].sin()))

    compiled = graphweave.compile(f)
    with collect() as report:
        assert_matches(compiled, f, features(N, W, torch.float64).requires_grad_(), EDGES)
    assert [(n.what, n.why) for g in report.graphs for n in g.fallbacks] == []


def test_of_rows_for_one_place_the_last_is_taken() -> None:
    def f(x: Tensor, m: Tensor, i: Tensor) -> Tensor:
        return x.exp().index_put((i,), m * 2)

    compiled = graphweave.compile(f)
    for graph in AWKWARD[3:]:
        edges = graph.edge_index
        x = features(graph.num_nodes, W, torch.float64).requires_grad_()
        m = features(edges.size(1), W, torch.float64, 2).requires_grad_()
        assert_matches(compiled, f, x, m, edges[1], label=graph.name)


def test_embedding_gradient_with_padding_is_pushed() -> None:
    table = torch.nn.Embedding(N, W, padding_idx=2).double()
    same = torch.nn.Embedding(N, W, padding_idx=2).double()
    same.load_state_dict(table.state_dict())
    compiled = graphweave.compile(same)
    with collect() as report:
        assert_matches(compiled, table, EDGES[0], module=table, compiled_module=same)
    assert [(n.what, n.why) for g in report.graphs for n in g.fallbacks] == []


@pytest.mark.parametrize("door", DOORS)
def test_cross_products_are_row_by_row(door: str) -> None:
    def f(a: Tensor, b: Tensor) -> Tensor:
        return torch.linalg.cross(a, b).norm(dim=-1) + torch.cross(a, b, dim=1)[:, 0]

    compiled: Any = graphweave.compile(f) if door == "compile" else torch.compile(f, backend="graphweave", dynamic=True)
    with collect() as report:
        assert_matches(compiled, f, *(features(N, 3, torch.float64, k).requires_grad_() for k in (1, 2)))
    assert [(n.what, n.why) for g in report.graphs for n in g.fallbacks] == []


def test_attention_over_edge_attributes_of_added_loops() -> None:
    eager = pyg.GATConv(W, 4, heads=2, edge_dim=3, fill_value=0.5).double()
    module = pyg.GATConv(W, 4, heads=2, edge_dim=3, fill_value=0.5).double()
    module.load_state_dict(eager.state_dict())
    compiled = graphweave.compile(module)
    with collect() as report:
        x, attr = features(N, W, torch.float64).requires_grad_(), features(E, 3, torch.float64, 2).requires_grad_()
        assert_matches(compiled, eager, x, EDGES, attr, module=eager, compiled_module=module)
    assert left_on_edges(report) == []


@pytest.mark.parametrize("door", DOORS)
def test_of_equal_extremes_the_first_is_the_place(door: str) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        most, least = x.max(dim=1), x.min(dim=1, keepdim=True)
        return most.values * 2 - least.values.sin()[:, 0], most.indices, least.indices

    compiled: Any = graphweave.compile(f) if door == "compile" else torch.compile(f, backend="graphweave", dynamic=True)
    x = features(N, W, torch.float64).round()  # many are equal
    assert_matches(compiled, f, x.clone().requires_grad_())
    x[3, 2:4], x[5] = float("nan"), float("-inf")
    for got, want in zip(compiled(x), f(x), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("door", DOORS)
def test_rows_of_a_dense_batch_are_pulled(door: str) -> None:
    """The mask of a dense batch has two dims, and both of them vary."""

    def f(x: Tensor, batch: Tensor, w: Tensor) -> Tensor:
        rows, mask = to_dense_batch(x, batch)
        return torch.softmax(rows @ w, dim=-1)[mask] * x

    compiled: Any = graphweave.compile(f) if door == "compile" else torch.compile(f, backend="graphweave", dynamic=True)
    with collect() as report:
        for counts in ((3, 1, 6), (2, 5, 4, 4)):
            batch = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
            x = features(len(batch), W, torch.float64).requires_grad_()
            assert_matches(compiled, f, x, batch, features(W, W, torch.float64, 3).requires_grad_())
    moved = {n.what for g in report.graphs for n in g.fallbacks if "index" in n.what}
    assert moved == set() or door == "plain"
