"""Orders of rows by several keys, and the rows that a mask chooses, computed by PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


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


def choose_rows(mask: Tensor) -> Tensor:
    """The rows for which `mask` [rows] is true, int64, in order."""
    return mask.nonzero().squeeze(1)
