"""Long rows of a fused push, divided: a piece of one is a row of its own, added to it afterwards.

The kernel is the same, over an index that names pieces. Edges of a piece are of as few types as can be, since there is
a product for each type in a row: all pieces of a row have hardly more products than it has undivided.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphweave.runtime import formats, long_rows
from graphweave.runtime.index import Index


@dataclass(frozen=True, slots=True)
class TypedPieces:
    """Pieces come behind the `num_rows` rows; there are `num_all` of both. `divided`: a row, and the first and last + 1
    of its pieces."""

    num_rows: int
    num_all: int
    divided: tuple[tuple[int, int, int], ...]

    def rows_of(self, targets: Tensor) -> Tensor:
        """The row of each row or piece."""
        if not self.divided:
            return targets
        own = torch.arange(self.num_all, dtype=targets.dtype)
        for row, first, last in self.divided:
            own[first:last] = row
        return own.index_select(0, targets)

    def folded(self, out: Tensor) -> Tensor:
        """`out` [rows and pieces, ...] -> [rows, ...]: pieces are added to their rows, in a fixed order."""
        for row, first, last in self.divided:
            out[row] = _sum(out[first:last])
        return out[: self.num_rows]


def typed_pieces(types: Index, rows: Index, wide: bool = False) -> tuple[TypedPieces, Tensor]:
    """The pieces of the rows of edges with a type and a row each; and for each edge its row, or its piece [edges].

    Without long rows (see `long_rows.py`) there are no pieces.
    """
    csr, values = formats.csr(rows, wide), formats.flat(rows, wide)
    found = long_rows.cut(csr)
    if found is None:
        return TypedPieces(rows.rows, rows.rows, ()), values
    long, size = found
    perm = formats.perm(rows, wide)
    values, kinds = values.clone(), formats.flat(types, wide)
    divided: list[tuple[int, int, int]] = []
    first = rows.rows
    for row in long.tolist():
        here = torch.arange(int(csr.indptr[row]), int(csr.indptr[row + 1]))
        edges = here if perm is None else perm.index_select(0, here)
        by_type = torch.argsort(kinds.index_select(0, edges), stable=True)
        last = first + -(-here.numel() // size)
        values[edges[by_type].long()] = (first + torch.arange(here.numel()) // size).to(values.dtype)
        divided.append((row, first, last))
        first = last
    return TypedPieces(rows.rows, first, tuple(divided)), values


def _sum(parts: Tensor) -> Tensor:
    """The sum of all rows, by halves: the bits depend on no number of threads, which PyTorch does not promise."""
    while (num := parts.shape[0]) > 1:
        half = (num + 1) // 2
        upper, parts = parts[half:], parts[:half].clone()
        parts[: num - half] += upper
    return parts[0]
