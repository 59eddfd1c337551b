"""Rows grouped by type and cut into parts of one type each, so that a program of a GPU takes a part, whatever the skew.

How many parts there are is known on the device alone, therefore tables have room for the most there can be, and an
unused entry says so: nothing here waits for the device. Tables are int64 and small; cached as those of `formats.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from graphweave.runtime import formats
from graphweave.runtime.index import Index


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


@dataclass(frozen=True, slots=True)
class TypedParts:
    kinds: Tensor
    """[parts] the type; -1 where the entry is unused."""

    begins: Tensor
    """[parts] the first position, in the order of `formats.csr(types)`."""

    targets: Tensor
    """[parts] where a sum over the part belongs: the row of its type, or number of types + its slot."""

    folds: Folds

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.kinds, self.begins, self.targets, *self.folds.tensors


def typed_parts(types: Index, size: int, wide: bool = False) -> TypedParts:
    """Parts of at most `size` rows of one type: as many as rows / size and types, at most."""
    key = "typed_parts", types.key, size, wide
    return cast(TypedParts, formats.cached(key, (types.values,), lambda: _build(types, size, wide)))


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


def _build(types: Index, size: int, wide: bool) -> TypedParts:
    num_rows, num_types = types.values.numel(), types.rows
    indptr = formats.csr(types.values, num_types, types.wrap, wide).indptr.long()
    most = num_rows // size + min(num_types, num_rows) if num_types else 0
    counts = (indptr.diff() + (size - 1)) // size
    ends = counts.cumsum(0)
    part = torch.arange(most, device=indptr.device)
    kind = torch.searchsorted(ends, part, right=True)
    used = kind < num_types
    kind = torch.where(used, kind, 0)
    rank = part - (ends - counts).index_select(0, kind)
    needed, first = several(counts)
    slot = num_types + first.index_select(0, kind) + rank
    split = num_rows // (size + 1)  # types of more than one part
    return TypedParts(
        kinds=torch.where(used, kind, -1),
        begins=indptr.index_select(0, kind) + rank * size,
        targets=torch.where(needed.index_select(0, kind) > 0, slot, kind),
        folds=folds_of(needed, first, min(split, most), num_rows // size + split),
    )
