"""Bugs that PyTorch Geometric's convolutions and models have revealed, each in its smallest form."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import PNAConv

import graphweave
from tests.support import assert_matches, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")


@pytest.fixture(autouse=True)
def nothing_left_eager() -> Iterator[None]:
    """A graph that could not be compiled is a bug of its own here."""
    yield
    assert graphweave.counters()["eager_fallbacks"] == 0


def test_checks_of_the_graph_alone_and_nothing_else_to_remember() -> None:
    """A size read from an index is checked once per graph; no other value is."""

    def fn(x: Tensor, group: Tensor) -> Tensor:
        return x.new_zeros(int(group.max()) + 1, x.size(1)).index_add(0, group, x)

    compiled = graphweave.compile(fn)
    for groups, rows in ((3, 8), (5, 20)):
        assert_matches(compiled, fn, features(rows, 4), random_graph(groups, groups, rows)[0])


def test_rows_that_a_mask_picks_are_pulled() -> None:
    """Layers that drop self loops keep the features of the other edges: x[mask] is a pull, its gradient a push."""

    def fn(x: Tensor, w: Tensor, index: Tensor) -> Tensor:
        mask = index[0] != index[1]
        kept = index[:, mask]
        return torch.zeros_like(x).index_add(0, kept[1], x[kept[0]] * w[mask])

    compiled = graphweave.compile(fn)
    for rows, edges in ((6, 30), (4, 7), (1, 3), (5, 0)):
        assert_matches(compiled, fn, features(rows, 4), features(edges, 1, seed=3), random_graph(rows, rows, edges))
    left = [n.what for g in graphweave.explain(fn, features(6, 4), features(30, 1), random_graph(6, 6, 30)).graphs
            for n in g.fallbacks]  # fmt: skip
    assert "aten.index_put.default" not in left


def test_rows_written_where_a_mask_says_so() -> None:
    """Softmax relation by relation, each into its own edges."""

    def fn(x: Tensor, kind: Tensor) -> Tensor:
        out = x.cos()
        for k in range(2):
            mask = kind == k
            out[mask] = x[mask].exp() / (1 + x[mask].exp().sum(0))
        return out

    compiled = graphweave.compile(fn)
    for rows in (9, 1, 20):
        assert_matches(compiled, fn, features(rows, 3), random_graph(3, 3, rows)[0])


def test_addmm_with_factors() -> None:
    """Layers with identity maps mix their input and its product in one call, with factors that sum to 1."""

    def fn(x: Tensor, w: Tensor, index: Tensor) -> Tensor:
        out = torch.zeros_like(x).index_add(0, index[1], x[index[0]])
        return torch.addmm(out, out, w, beta=0.25, alpha=0.75)

    compiled = graphweave.compile(fn)
    arguments = features(7, 4), features(4, 4, seed=3), random_graph(7, 7, 20)
    assert_matches(compiled, fn, *arguments)
    assert not [n for g in graphweave.explain(fn, *arguments).graphs for n in g.fallbacks]


def test_one_row_against_all_through_plain_torch_compile() -> None:
    """Plain torch.compile does not guard sizes of 1, and a symbol of hint 1 would not be broadcast."""

    def fn(x: Tensor, row: Tensor, column: Tensor, index: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, index[1], (x * row)[index[0]]) * column

    compiled = torch.compile(fn, backend="graphweave", dynamic=True)
    for rows in (9, 5):
        arguments = features(rows, 4), features(1, 4, seed=2), features(rows, 1, seed=3), random_graph(rows, rows, 20)
        assert_matches(compiled, fn, *arguments)
    assert_matches(compiled, fn, features(5, 4), features(5, 4, seed=2), features(5, 4, seed=3), random_graph(5, 5, 20))


@pytest.mark.parametrize("edges", [2, 3])
def test_maxima_of_towers_over_as_many_edges(edges: int) -> None:
    """With two edges, whose number a branch of the user's compiles in, the forward multiplied messages by a call, and
    the backward in tiles: to the last bits, no message was the largest, and no gradient arrived."""
    torch.manual_seed(0)
    layer = PNAConv(8, 6, ["max"], ["identity"], torch.tensor([0, 4, 3]), towers=2, divide_input=True).double()

    def called(x: Tensor, edge_index: Tensor) -> Tensor:
        return layer(x, edge_index) * (5.0 if edge_index.size(1) == 2 else 1.0)

    edge_index = torch.tensor([[0, 4, 5], [0, 12, 12]])[:, :edges].contiguous()
    results = []
    for f in (called, torch.compile(called, backend="graphweave", dynamic=True)):
        x = features(20, 8, torch.float64).requires_grad_()
        results.append(torch.autograd.grad(f(x, edge_index).sin().sum(), [x, *layer.parameters()]))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other, one)
