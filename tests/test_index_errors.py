"""An index out of range raises IndexError with the value and the range, before any memory is touched."""

from __future__ import annotations

import pytest
import torch
from support import assert_matches, features, random_graph
from torch import Tensor

import graphweave

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


def test_too_negative_rows_in_brackets_raise() -> None:
    with pytest.raises(IndexError, match="-7"):
        graphweave.compile(bracket)(features(6, 3), _bad(0, -7))


def test_no_rows_to_index() -> None:
    with pytest.raises(IndexError):
        graphweave.compile(spread)(features(0, 3), torch.zeros(2, 4, dtype=torch.int64))
