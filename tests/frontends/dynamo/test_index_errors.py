"""An index out of range raises IndexError with the value and the range, before any memory is touched."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
import torch_geometric.nn
from torch import Tensor

import graphweave
from graphweave.core.errors import IndexRangeError
from graphweave.nn import TypedLinear
from tests.support import assert_matches, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def spread(x: Tensor, edge_index: Tensor) -> Tensor:
    message = x.index_select(0, edge_index[0]).tanh()
    return torch.zeros_like(x).index_add(0, edge_index[1], message)


def bracket(x: Tensor, edge_index: Tensor) -> Tensor:
    """Square brackets count negative rows from the end, as PyTorch does."""
    return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]].tanh())


def _bad(row: int, value: int) -> Tensor:
    index = random_graph(6, 6, 12)
    index[row, 5] = value
    return index


@pytest.mark.parametrize("row", [0, 1], ids=["gather", "scatter"])
@pytest.mark.parametrize("value", [6, 987654321, -1, -(2**40)])
def test_value_and_range_are_named(row: int, value: int) -> None:
    compiled = graphweave.compile(spread)
    with pytest.raises(IndexError) as caught:
        compiled(features(6, 3), _bad(row, value))
    assert str(value) in str(caught.value)
    assert "5" in str(caught.value) or "6" in str(caught.value)


def test_int32_indices_are_checked() -> None:
    with pytest.raises(IndexError, match="4000000"):
        graphweave.compile(spread)(features(6, 3), _bad(0, 4000000).int())


def test_a_good_call_follows_a_bad_one() -> None:
    compiled = graphweave.compile(spread)
    with pytest.raises(IndexError):
        compiled(features(6, 3), _bad(0, 77))
    assert_matches(compiled, spread, features(6, 3), random_graph(6, 6, 12))


def test_index_checked_again_after_an_edit_in_place() -> None:
    compiled = graphweave.compile(spread)
    index = random_graph(6, 6, 12)
    compiled(features(6, 3), index)
    index[0, 3] = 66
    with pytest.raises(IndexError, match="66"):
        compiled(features(6, 3), index)


def test_index_checked_again_for_fewer_rows() -> None:
    """The same index tensor is in range for 50 rows and out of range for 40."""
    compiled = graphweave.compile(spread)
    index = random_graph(50, 50, 300)
    index[:, 0] = 49
    compiled(features(50, 3), index)
    with pytest.raises(IndexError, match="49"):
        compiled(features(40, 3), index)


def test_negative_rows_in_brackets_wrap() -> None:
    assert_matches(graphweave.compile(bracket), bracket, features(6, 3), _bad(0, -2))


def test_negative_rows_that_are_filled_wrap() -> None:
    """Of PyTorch's calls with an index, brackets and `index_fill` count from the end, and no others."""

    def filled(x: Tensor, index: Tensor) -> Tensor:
        return (x * 1.5).index_fill(0, index[0], 1.0)

    compiled = graphweave.compile(filled)
    assert_matches(compiled, filled, features(6, 3), _bad(0, -2))
    with pytest.raises(IndexError, match="-7"):
        compiled(features(6, 3), _bad(0, -7))


@pytest.mark.parametrize("rows", [None, 6], ids=["any number of rows", "a number known"])
def test_more_rows_than_there_are_found_in_the_index(rows: int | None) -> None:
    """`bincount` finds as many rows as the largest number says. That there are as many as in x is an assumption of the
    capture, without which the space of the sums would have too many rows, and an index too many would be in range."""

    def mean(x: Tensor, index: Tensor) -> Tensor:
        base = x.new_zeros(x.shape[0] if rows is None else rows, x.shape[1])
        return base.index_add(0, index[1], x[index[0]]) / torch.bincount(index[1])[:, None]

    compiled = graphweave.compile(mean)
    index = torch.arange(6).repeat(2, 3)
    assert_matches(compiled, mean, features(6, 3), index)
    with pytest.raises((IndexError, RuntimeError)):
        compiled(features(6, 3), torch.cat([index, torch.tensor([[0], [41]])], 1))


def test_too_negative_rows_in_brackets_raise() -> None:
    with pytest.raises(IndexError, match="-7"):
        graphweave.compile(bracket)(features(6, 3), _bad(0, -7))


def test_no_rows_to_index() -> None:
    with pytest.raises(IndexError):
        graphweave.compile(spread)(features(0, 3), torch.zeros(2, 4, dtype=torch.int64))


def propagated(x: Tensor, edge_index: Tensor) -> Tensor:
    """A degree depends on the graph alone, so that the prelude is what meets a bad destination first."""
    ones = torch.ones(edge_index.shape[1], dtype=x.dtype)
    degree = torch.zeros(x.shape[0], dtype=x.dtype).index_add(0, edge_index[1], ones)
    return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]]) / degree.clamp(min=1)[:, None]


@pytest.mark.parametrize("row", [0, 1], ids=["source", "destination"])
@pytest.mark.parametrize("fn", [spread, propagated])
@pytest.mark.parametrize("plain", [False, True], ids=["ours", "plain"])
def test_both_ends_are_named_alike(fn: Callable[[Tensor, Tensor], Tensor], row: int, plain: bool) -> None:
    """The error names the user's argument, the value, position, range, the user's line, and what to do."""
    compiled = torch.compile(fn, backend="graphweave") if plain else graphweave.compile(fn)
    with pytest.raises(IndexRangeError) as caught:
        compiled(features(6, 3), _bad(row, 77))
    said = str(caught.value)
    assert said.startswith(f"edge_index[{row}]: index 77 at position 5 is out of range for 6 rows; expected ")
    assert f"<= index < 6. It is used at {os.path.relpath(__file__)}:" in said
    assert said.endswith("Correct it, or give what it indexes more rows.")


@pytest.mark.parametrize("row", [0, 1], ids=["source", "destination"])
@pytest.mark.parametrize("name", ["SAGEConv", "GATConv", "GCNConv"])
def test_both_ends_are_named_in_layers(name: str, row: int) -> None:
    """GAT and GCN first make an index of their own: they drop self-loops and add others."""
    layer = getattr(torch_geometric.nn, name)(3, 3)
    with pytest.raises(
        IndexRangeError, match=r"edge_index.*: index 77 at position \d+ is out of range for 6 rows"
    ) as e:
        graphweave.compile(layer)(features(6, 3), _bad(row, 77))
    assert "It is used at torch_geometric/" in str(e.value) and "site-packages" not in str(e.value)


def test_what_is_left_to_pytorch_names_its_index() -> None:
    def chosen(x: Tensor, which: Tensor) -> Tensor:
        return torch.sort(x, dim=0).values.t().index_select(1, which)

    with pytest.raises(IndexRangeError, match=r"^which: index 9 at position 1 is out of range for 6 rows"):
        graphweave.compile(chosen)(features(6, 3), torch.tensor([0, 9]))


def test_types_of_typed_products_are_named() -> None:
    x, types = features(6, 3), torch.tensor([0, 1, 4, 1, 0, 2])
    said = "index 4 at position 2 is out of range for 3 "
    with pytest.raises(IndexRangeError, match=said):
        graphweave.compile(TypedLinear(3, 4, 3))(x, types)
    with pytest.raises(IndexRangeError, match=said):
        TypedLinear(3, 4, 3)(x, types)


def test_graphs_name_both_ends() -> None:
    for row, end in enumerate(("src", "dst")):
        src, dst = _bad(row, 77)
        with pytest.raises(IndexRangeError, match=f"graph, {end}: index 77 at position 5 is out of range for 6 nodes"):
            graphweave.graph((src, dst), num_nodes=6)


def test_labels_are_named() -> None:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(x, y)

    with pytest.raises(IndexRangeError, match="y: index 5 at position 3 is out of range for 3 columns"):
        graphweave.compile(loss)(features(6, 3), torch.tensor([0, 1, 2, 5, 0, 1]))
