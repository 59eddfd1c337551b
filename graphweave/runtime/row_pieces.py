"""The rows of most edges, cut into pieces of about equally many: which rows, which edges, on the device of the index.

Nothing here waits for the device, so that how many pieces there are is not known: the tables have room for the most
there can be, the rest are pieces of no edges. Cached as the formats of `formats.py` are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from graphweave.runtime import formats
from graphweave.runtime.index import Index


@dataclass(frozen=True, slots=True)
class RowPieces:
    """Of dtype int32, or int64 if wide. `slots` of the rows by degree are divided, each into one piece at least."""

    slot_row: Tensor
    """[slots] the row of each slot."""

    slots: Tensor
    """[slots + 1] the first piece of each slot."""

    piece_slot: Tensor
    """[pieces] the slot of each piece."""

    piece_row: Tensor
    """[pieces] its row."""

    pieces: Tensor
    """[pieces + 1] the first of each piece's edges, counted over all pieces."""

    piece_shift: Tensor
    """[pieces] from there to the position in the rows' CSR."""

    num_edges: int
    """How many edges all pieces have, at most: a device is not asked."""

    slot_piece: Tensor | None = None
    """[pieces] the pieces of slot after slot, where they are not numbered so."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        more = () if self.slot_piece is None else (self.slot_piece,)
        return self.slot_row, self.slots, self.piece_slot, self.piece_row, self.pieces, self.piece_shift, *more


def row_pieces(index: Index, wide: bool, slots: int, size: int) -> RowPieces:
    """The `slots` (at least 1) rows of most edges that `index` names, in pieces of at most `size` edges."""
    key = ("row_pieces", index.key, wide, slots, size)
    return cast(RowPieces, formats.cached(key, (index.values,), lambda: _build(index, wide, slots, size)))


def _build(index: Index, wide: bool, slots: int, size: int) -> RowPieces:
    indptr = formats.csr(index, wide).indptr
    row = formats.by_degree(index, wide).narrow(0, 0, slots)
    degree = indptr.diff().index_select(0, row)
    count = ((degree + (size - 1)) // size).clamp(min=1)
    first = _starts(count)
    piece = torch.arange(slots + index.num_edges // size, device=indptr.device)
    slot = torch.searchsorted(first.narrow(0, 1, slots), piece, right=True).clamp(max=slots - 1)
    done = (piece - first.index_select(0, slot)) * size
    length = (degree.index_select(0, slot) - done).clamp(0, size) * (piece < first.narrow(0, slots, 1))
    start = _starts(length)
    begin = indptr.index_select(0, row).index_select(0, slot) + done
    kind = indptr.dtype
    shift = begin - start.narrow(0, 0, piece.numel())
    num_edges = int(start[-1]) if indptr.device.type == "cpu" else index.num_edges
    row_of_piece = row.index_select(0, slot)
    return RowPieces(
        row.to(kind), first.to(kind), slot.to(kind), row_of_piece.to(kind), start.to(kind), shift.to(kind), num_edges
    )


def _starts(counts: Tensor) -> Tensor:
    """Their sums from the first on, with 0 before."""
    return torch.cat([counts.new_zeros(1, dtype=torch.int64), counts.cumsum(0, dtype=torch.int64)])
