"""Rows so long that one thread would be busy with one of them while the others wait: which, and in what pieces.

Chosen from the degrees of the graph alone, never from the number of threads: a result has the same bits for any.
Most graphs have no such row: that is known from the largest degree, and costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from graphweave.runtime import formats
from graphweave.runtime.index import Index
from graphweave.runtime.row_pieces import RowPieces, row_pieces

LONG = 1 << 14
"""Edges that a divided row has at least: it takes longer than the launches of what it is divided into."""

SHARE = 64
"""A divided row has more than this part of all rows and edges: a smaller one hides behind the work of other threads."""

PIECE = 1 << 10
"""Edges of a piece, at least where rows are cut into few."""

MAX_PIECES = 256
"""Pieces that all divided rows together are cut into, one more for each row."""

PARTS_BYTES = 64 << 20
"""All pieces together leave at most so many bytes: wide grams are cut into fewer pieces."""


@dataclass(frozen=True, slots=True)
class Weight:
    """What rows weigh in a kernel: `work` of an edge, 1 where it is added, and bytes that a piece of a row `leaves`."""

    work: int = 1
    leaves: int = 0


PRODUCTS = 4
"""Work of an edge whose row is multiplied by a matrix: rows are long sooner, their pieces are smaller, and fewer. It is
more, but a piece may leave a sum as large as that matrix."""

SUMS = Weight()


@dataclass(frozen=True, slots=True)
class LongRows:
    pieces: RowPieces

    chunks: Tensor
    """int64: the chunks of the CSR, in which the divided rows are left out: see `launch.py`."""

    max_degree: int
    """The most edges of a row that is not divided; 0 where all are."""

    is_all: bool
    """All rows are divided."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (*self.pieces.tensors, self.chunks)


def is_long(degree: int, num_rows: int, num_edges: int, weight: Weight = SUMS) -> bool:
    return degree > shortest(num_rows, num_edges, weight)


def shortest(num_rows: int, num_edges: int, weight: Weight = SUMS) -> int:
    """Edges that a row may have without being divided."""
    return max(LONG // weight.work, (num_rows + num_edges) // SHARE)


def piece_size(num_edges: int, weight: Weight = SUMS) -> int:
    """Edges of a piece of divided rows that have `num_edges` together."""
    pieces = max(1, min(MAX_PIECES // weight.work, PARTS_BYTES // max(weight.leaves, 1)))
    return max(PIECE // weight.work, -(-num_edges // pieces), 1)


def cut(csr: formats.CsrFormat, weight: Weight = SUMS) -> tuple[Tensor, int] | None:
    """The rows that are divided, and the edges of a piece; None where no row is long."""
    if not is_long(csr.max_degree, csr.num_rows, csr.num_edges, weight):
        return None
    degree = csr.indptr.diff().long()
    row = (degree > shortest(csr.num_rows, csr.num_edges, weight)).nonzero().flatten()
    return row, piece_size(int(degree[row].sum()), weight)


def long_rows(index: Index, wide: bool, weight: Weight = SUMS, chunks: Tensor | None = None) -> LongRows | None:
    """What the rows of the CSR of `index` are divided into; None where no row is long. `chunks` are those of the other
    rows, the CSR's own if None."""
    csr = formats.csr(index, wide)
    found = cut(csr, weight)
    if found is None:
        return None
    own = csr.chunks if chunks is None else chunks
    key = ("long_rows", index.key, wide, weight, None if own is csr.chunks else tuple(own.tolist()))
    return cast(LongRows, formats.cached(key, (index.values,), lambda: _build(index, csr, own, wide, *found)))


def _build(index: Index, csr: formats.CsrFormat, chunks: Tensor, wide: bool, row: Tensor, size: int) -> LongRows:
    pieces = row_pieces(index, wide, row.numel(), size)
    starts = torch.cat([chunks, row, row + 1]).unique()
    left_out = torch.where(torch.isin(starts, row), ~starts, starts)
    rest = csr.indptr.diff().index_fill(0, row, 0)
    return LongRows(pieces, left_out, int(rest.max()), row.numel() == csr.num_rows)
