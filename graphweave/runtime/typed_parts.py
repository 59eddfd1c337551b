"""Rows that are the sum of several parts, which a kernel folds.

Only the device knows how many there are. So the tables have room for as many as are possible, unused entries are
marked, and nothing here waits for the device. The tables are int64 and small.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Folds:
    """Rows that are the sum of several parts. Each part has a slot, a row of memory after all rows."""

    rows: Tensor
    """[folds]: the row."""

    begins: Tensor
    """[folds]: the first slot of the row."""

    ends: Tensor
    """[folds]: the end of the row's slots, exclusive; equal to `begins` if the entry is unused."""

    slots: int
    """Upper limit on the number of slots."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.rows, self.begins, self.ends


def several(parts: Tensor) -> tuple[Tensor, Tensor]:
    """How many slots each row needs (none for a single part), and the row's first slot. `parts` [rows] counts the
    parts."""
    needed = torch.where(parts > 1, parts, 0)
    return needed, needed.cumsum(0) - needed


def folds_of(needed: Tensor, first: Tensor, most: int, slots: int) -> Folds:
    """The rows that need slots, at most `most` of them. `needed` and `first` are the results of `several`."""
    rank = (needed > 0).cumsum(0)
    row = torch.searchsorted(rank, torch.arange(1, most + 1, device=needed.device))
    found = row < needed.numel()
    row = torch.where(found, row, 0)
    begins = torch.where(found, first.index_select(0, row), 0)
    return Folds(row, begins, begins + torch.where(found, needed.index_select(0, row), 0), slots)
