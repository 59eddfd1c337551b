"""Rows that are the sum of several parts, which a kernel folds.

How many there are is known on the device alone, therefore tables have room for the most there can be, and an unused
entry says so: nothing here waits for the device. Tables are int64 and small.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Folds:
    """Rows that are the sum of several parts; each part has a slot, a row of memory behind all rows."""

    rows: Tensor
    """[folds] the row."""

    begins: Tensor
    """[folds] its first slot."""

    ends: Tensor
    """[folds] the slot behind its last; equal to `begins` where the entry is unused."""

    slots: int
    """There are at most so many."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.rows, self.begins, self.ends


def several(parts: Tensor) -> tuple[Tensor, Tensor]:
    """Of [rows] counts of parts: how many slots each row needs (none for a single part), and its first slot."""
    needed = torch.where(parts > 1, parts, 0)
    return needed, needed.cumsum(0) - needed


def folds_of(needed: Tensor, first: Tensor, most: int, slots: int) -> Folds:
    """The rows that need slots, at most `most` of them, by the results of `several`."""
    rank = (needed > 0).cumsum(0)
    row = torch.searchsorted(rank, torch.arange(1, most + 1, device=needed.device))
    found = row < needed.numel()
    row = torch.where(found, row, 0)
    begins = torch.where(found, first.index_select(0, row), 0)
    return Folds(row, begins, begins + torch.where(found, needed.index_select(0, row), 0), slots)
