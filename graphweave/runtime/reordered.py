"""Rows of a tensor in another order, kept for as long as the tensor stays the same: features of a whole graph."""

from __future__ import annotations

from torch import Tensor

from graphweave.core.counters import bump
from graphweave.runtime.kept_rows import KeptRows


class RowsInOrder:
    """`reordered(x, index)` is x[index], [rows, ...], for a permutation `index` [rows] of integers.

    Nobody but the compiler may edit the index. The result, which nobody may edit, is made once
    if x stays as it is (see `kept_rows`).
    """

    def __init__(self) -> None:
        self._kept = KeptRows()

    def __call__(self, x: Tensor, index: Tensor) -> Tensor:
        found = self._kept.find(x, index)
        if found is not None:
            return found
        bump("reorderings")
        return self._kept.make(lambda rows: rows.index_select(0, index), x, index)

    def clear(self) -> None:
        self._kept.clear()


reordered = RowsInOrder()
"""The one that compiled programs share."""
