"""Divides long rows of a fused push into pieces: each piece is treated as a row, and is added to its row afterwards.

The kernel is the same, over an index that names pieces. The edges of a piece have as few types as possible: a row has
one product for each of its types, so all pieces together have hardly more products than the undivided row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphweave.runtime import formats, long_rows
from graphweave.runtime.index import Index


@dataclass(frozen=True, slots=True)
class TypedPieces:
    """Pieces are numbered after the `num_rows` rows; together there are `num_all`. For each divided row, `divided`
    holds the row, its first piece, and the end of its pieces, exclusive."""

    num_rows: int
    num_all: int
    divided: tuple[tuple[int, int, int], ...]

    def rows_of(self, targets: Tensor) -> Tensor:
        """The row to which each row or piece belongs."""
        if not self.divided:
            return targets
        own = torch.arange(self.num_all, dtype=targets.dtype, device="cpu")
        for row, first, last in self.divided:
            own[first:last] = row
        return own.index_select(0, targets)

    def folded(self, out: Tensor) -> Tensor:
        """`out` [rows and pieces, ...] -> [rows, ...]. Pieces are added to their rows in a fixed order."""
        for row, first, last in self.divided:
            out[row] = _sum(out[first:last])
        return out[: self.num_rows]


def typed_pieces(types: Index, rows: Index, wide: bool = False) -> tuple[TypedPieces, Tensor]:
    """The pieces of long rows, and for each edge its row or piece [edges]. Each edge has a type and a row.

    Without long rows (see `long_rows.py`) there are no pieces.
    """
    csr, values = formats.csr(rows, wide), formats.flat(rows, wide)
    found = long_rows.rows_to_divide(csr)
    if found is None:
        return TypedPieces(rows.rows, rows.rows, ()), values
    long, size = found
    perm = formats.perm(rows, wide)
    values, kinds = values.clone(), formats.flat(types, wide)
    divided: list[tuple[int, int, int]] = []
    first = rows.rows
    for row in long.tolist():
        here = torch.arange(int(csr.indptr[row]), int(csr.indptr[row + 1]), device="cpu")
        edges = here if perm is None else perm.index_select(0, here)
        by_type = torch.argsort(kinds.index_select(0, edges), stable=True)
        last = first + -(-here.numel() // size)
        values[edges[by_type].long()] = (first + torch.arange(here.numel(), device="cpu") // size).to(values.dtype)
        divided.append((row, first, last))
        first = last
    return TypedPieces(rows.rows, first, tuple(divided)), values


def _sum(parts: Tensor) -> Tensor:
    """The sum of all rows, by halves. Its bits do not depend on the number of threads, which PyTorch's own sum does not
    promise."""
    while (num := parts.shape[0]) > 1:
        half = (num + 1) // 2
        upper, parts = parts[half:], parts[:half].clone()
        parts[: num - half] += upper
    return parts[0]
