"""The rows with the most edges, divided into pieces of about equally many edges, on the device of the index.

Nothing here waits for the device, so the host does not know how many pieces there are: the tables have room for as many
as are possible, and unused pieces have no edges. They are cached like the formats of `formats.py`.
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
    """Tables of dtype int32, or int64 if wide. Each divided row has a slot, and at least one piece."""

    slot_row: Tensor
    """[slots]: the row of each slot."""

    slots: Tensor
    """[slots + 1]: the first piece of each slot."""

    piece_slot: Tensor
    """[pieces]: the slot of each piece."""

    piece_row: Tensor
    """[pieces]: the row of each piece."""

    pieces: Tensor
    """[pieces + 1]: the number of each piece's first edge, counting the edges of all pieces one after the other."""

    piece_shift: Tensor
    """[pieces]: what is added to that number to get the edge's position in the CSR of the rows."""

    num_edges: int
    """Edges of all pieces on the CPU. An upper limit on a GPU, which is not asked."""

    slot_piece: Tensor | None = None
    """[pieces]: the pieces of the first slot, then those of the second, and so on; None if pieces are numbered this
    way."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        more = () if self.slot_piece is None else (self.slot_piece,)
        return self.slot_row, self.slots, self.piece_slot, self.piece_row, self.pieces, self.piece_shift, *more


def row_pieces(index: Index, wide: bool, slots: int, size: int) -> RowPieces:
    """The `slots` rows (at least one) with the most edges that `index` names, in pieces of at most `size` edges."""
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
    """The running sums of `counts`, with 0 in front."""
    return torch.cat([counts.new_zeros(1, dtype=torch.int64), counts.cumsum(0, dtype=torch.int64)])
