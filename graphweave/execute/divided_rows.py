"""Kernels of divided rows and the tensors that they take, for every target (see `lower/divide.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from graphweave.ir.loop.nodes import Kernel
from graphweave.ir.loop.verify import verify
from graphweave.ir.message.aten import TORCH_DTYPE
from graphweave.lower.divide import NUM_HELD, NUM_PIECES, NUM_SLOTS, SLOT_PIECE, SLOTS, divided
from graphweave.lower.piece_walk import PIECES
from graphweave.runtime.row_pieces import RowPieces


def divided_kernels(kernel: Kernel) -> tuple[Kernel, ...]:
    """The verified kernels of divided rows in the order in which they run; none if `kernel` walks no edges."""
    parts = divided(kernel)
    return verified(() if parts is None else parts.kernels)


def verified(kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    for k in kernels:
        verify(k)
    return kernels


def num_rows(kernel: Kernel, table: RowPieces) -> int:
    """Rows of a divided kernel: pieces or slots."""
    return _counts(table)[kernel.sizes[0]]


def own_tensors(
    kernels: Iterable[Kernel], known: Iterable[str], table: RowPieces,
    empty: Callable[[tuple[int, ...], torch.dtype], Tensor],
) -> dict[str, Tensor]:  # fmt: skip
    """By name, the tables of pieces and scratch buffers for all CSRs and buffers of `kernels` that are not `known`."""
    out = {PIECES: table.pieces, SLOTS: table.slots}
    out.update((name, getattr(table, name)) for name in ("piece_row", "piece_shift", "piece_slot", "slot_row"))
    if table.slot_piece is not None:
        out[SLOT_PIECE] = table.slot_piece
    counts, known = _counts(table), set(known)
    for kernel in kernels:
        for b in kernel.buffers:
            if b.name not in out and b.name not in known:
                assert b.rows is not None
                out[b.name] = empty((counts[b.rows], *b.shape), TORCH_DTYPE[b.dtype])
    return out


def _counts(table: RowPieces) -> dict[str, int]:
    return {NUM_PIECES: table.piece_row.numel(), NUM_SLOTS: table.slot_row.numel(), NUM_HELD: table.num_edges}
