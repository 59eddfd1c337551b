"""Orders of rows by several keys, the rows that differ, those that a mask chooses, and running sums over rows, computed
by PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class DistinctRows(NamedTuple):
    """The different rows of several keys: `rows` says for each row which of them it is, int64 [rows], and `columns` has
    each key of all of them, int64 [distinct rows]."""

    rows: Tensor
    columns: tuple[Tensor, ...]


def order_rows(keys: Sequence[Tensor], descending: Sequence[bool]) -> Tensor:
    """The row at each place [rows], int64, if rows are sorted by `keys[0]` [rows], rows with equal ones by `keys[1]`,
    and so on; rows with equal keys keep their order. With `descending[k]` the largest come first. NaN counts as larger
    than any number."""
    order: Tensor | None = None
    for key, falls in reversed(list(zip(keys, descending, strict=True))):
        by = key if order is None else key.index_select(0, order)
        found = by.argsort(stable=True, descending=falls)
        order = found if order is None else order.index_select(0, found)
    assert order is not None, "an order has keys"
    return order


def distinct_rows(keys: Sequence[Tensor]) -> DistinctRows:
    """The different rows of integer `keys` [rows], in the order of `order_rows`."""
    order = order_rows(keys, [False] * len(keys))
    begins = torch.zeros_like(order, dtype=torch.bool)
    begins[:1] = True
    for key in keys:
        by = key.index_select(0, order)
        begins[1:] |= by[1:] != by[:-1]
    rows = torch.empty_like(order)
    rows[order] = begins.cumsum(0) - 1
    firsts = order[begins]
    return DistinctRows(rows, tuple(key[firsts].long() for key in keys))


def choose_rows(mask: Tensor) -> Tensor:
    """The rows for which `mask` [rows] is true, int64, in order."""
    return mask.nonzero().squeeze(1)


def running_sums(x: Tensor, reverse: bool) -> Tensor:
    """The sum of each row of `x` and all rows before it; with `reverse`, and all rows after it."""
    return x.flip(0).cumsum(0).flip(0) if reverse else x.cumsum(0)
