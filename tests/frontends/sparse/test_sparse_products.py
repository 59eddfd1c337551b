"""The product of two sparse matrices as an operator: its values, gradients and errors, and the model that it serves."""

from __future__ import annotations

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor

import graphweave
from graphweave.frontends.sparse.sparse_products import sparse_product
from tests.support import assert_matches, features, random_graph


def entries(rows: int, cols: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Places of entries, some of them twice, and values, some of them 0."""
    return torch.randint(rows, (count,)), torch.randint(cols, (count,)), spread(count)


def spread(count: int) -> Tensor:
    """Signed values, a third of them 0."""
    return features(1, count, torch.float64)[0] * (torch.arange(count) % 3 > 0)


def dense(row: Tensor, col: Tensor, value: Tensor, rows: int, cols: int) -> Tensor:
    return value.new_zeros(rows, cols).index_put((row, col), value, accumulate=True)


@pytest.mark.parametrize("sizes", [(5, 4, 6, 9, 8), (1, 1, 1, 1, 1), (5, 4, 6, 0, 8), (7, 7, 7, 60, 60)])
def test_values_and_gradients_are_those_of_dense_matrices(sizes: tuple[int, int, int, int, int]) -> None:
    rows, inner, cols, *counts = sizes
    a, b = entries(rows, inner, counts[0]), entries(inner, cols, counts[1])
    leaves = (a[2].requires_grad_(), b[2].requires_grad_())
    row, col, value = sparse_product(*a, *b, rows, inner, cols)
    assert torch.unique(row * cols + col).numel() == row.numel()
    assert torch.equal(row, row.sort().values)
    want = dense(*a, rows, inner) @ dense(*b, inner, cols)
    got = dense(row, col, value, rows, cols)
    torch.testing.assert_close(got, want)
    weights = features(rows, cols, torch.float64)
    given, wanted = (torch.autograd.grad((y * weights).sum(), leaves) for y in (got, want))
    torch.testing.assert_close(given, wanted)


def test_the_operator_is_registered_as_pytorch_asks() -> None:
    a, b = entries(5, 4, 9), entries(4, 6, 8)
    a[2].requires_grad_()
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(sparse_product, (*a, *b, 5, 4, 6), test_utils=checks)


def test_an_index_out_of_range_is_refused() -> None:
    row, col, value = entries(5, 4, 9)
    with pytest.raises(ValueError, match="9 exceeds matrix dimension 5"):
        sparse_product(row.new_full((9,), 9), col, value, row, col, value, 5, 4, 4)


@pytest.mark.usefixtures("fresh_compiler")
def test_two_hops_of_a_graph_are_one_call_each() -> None:
    """GraphUNet multiplies its graph by itself; nothing sorts the pairs of edges."""
    torch.manual_seed(0)
    model = pyg.GraphUNet(4, 4, 3, depth=2).double()
    told = graphweave.explain(model, features(12, 4, torch.float64), random_graph(12, 12, 30))
    left = " ".join(str(note) for graph in told.graphs for note in graph.fallbacks)
    assert "graphweave.sparse_product" in left  # of the second graph, which features choose
    assert "_unique2" not in left
    assert_matches(
        graphweave.compile(model), model, features(15, 4, torch.float64), random_graph(15, 15, 40), module=model
    )
