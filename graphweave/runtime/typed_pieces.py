"""Long rows of a scatter of typed products, divided: a piece of one is a row of its own, added to it afterwards.

The kernel is the same, over an index that names pieces. Edges of a piece are of as few types as can be, since there is
a product for each type in a row: all pieces of a row have hardly more products than it has undivided.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from graphweave.runtime import formats, long_rows
from graphweave.runtime.index import Index


@dataclass(frozen=True, slots=True)
class TypedPieces:
    index: Index
    """The row of each edge; of edges of divided rows their piece. Pieces come behind the `num_rows` rows."""

    num_rows: int

    divided: tuple[tuple[int, int, int], ...]
    """A row, and the first and last + 1 of its pieces."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.index.values,)

    def folded(self, out: Tensor) -> Tensor:
        """`out` [rows and pieces, ...] -> [rows, ...]: pieces are added to their rows, in a fixed order."""
        for row, first, last in self.divided:
            out[row] = _sum(out[first:last])
        return out[: self.num_rows]


def typed_pieces(types: Index, rows: Index, wide: bool = False) -> TypedPieces | None:
    """Of edges with a type and a row each; None where no row is long (see `long_rows.py`)."""
    csr = formats.csr(rows.values, rows.rows, rows.wrap, wide)
    if not long_rows.is_long(csr.max_degree, csr.num_rows, csr.num_edges):
        return None
    key = "typed_pieces", types.key, rows.key, wide, long_rows.LONG, long_rows.SHARE, long_rows.PIECE
    tensors = types.values, rows.values
    return cast(TypedPieces, formats.cached(key, tensors, lambda: _build(types, rows, csr, wide)))


def _build(types: Index, rows: Index, csr: formats.CsrFormat, wide: bool) -> TypedPieces:
    perm = formats.perm(rows.values, rows.rows, rows.wrap, wide)
    degree = csr.indptr.diff().long()
    long = (degree > long_rows.shortest(csr.num_rows, csr.num_edges)).nonzero().flatten()
    size = long_rows.piece_size(int(degree[long].sum()))
    values, kinds = rows.flat(wide).clone(), types.flat(wide)
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
    return TypedPieces(Index(values, first), rows.rows, tuple(divided))


def _sum(parts: Tensor) -> Tensor:
    """Of all rows, by halves: the same bits for any number of threads, which PyTorch's own sum does not promise."""
    while (num := parts.shape[0]) > 1:
        half = (num + 1) // 2
        upper, parts = parts[half:], parts[:half].clone()
        parts[: num - half] += upper
    return parts[0]
