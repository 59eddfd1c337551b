"""Divides long rows into pieces. A long row would keep one thread busy while the others wait.

The choice depends only on the degrees of the graph, not on the number of threads, so results always have the same bits.
Most graphs have no long row, which the largest degree tells at no cost.
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
"""A divided row has more edges than this, so that it takes longer than the launches of the kernels that divide it."""

SHARE = 64
"""A divided row has more than 1 / SHARE of all rows and edges. With a smaller one, other threads have enough work."""

PIECE = 1 << 10
"""Minimum number of edges of a piece, except for the last piece of a row."""

MAX_PIECES = 256
"""Limit on the pieces of all divided rows together, not counting one more for each row."""

PARTS_BYTES = 64 << 20
"""Limit in bytes on the partial sums of all pieces together. Rows of wide grams therefore have fewer pieces."""


@dataclass(frozen=True, slots=True)
class Weight:
    """How heavy rows are in a kernel. `work` is that of an edge, 1 if the edge is only added up; `leaves` are the bytes
    of the partial sum that a piece of a row leaves."""

    work: int = 1
    leaves: int = 0


PRODUCTS = 4
"""Work of an edge whose row is multiplied by a matrix. It makes rows with fewer edges long, and gives them fewer and
smaller pieces. The real ratio is larger, but a piece may leave a partial sum as large as the matrix."""

SUMS = Weight()
"""The weight of rows whose edges are only added up."""


@dataclass(frozen=True, slots=True)
class Division:
    """Which rows are divided, and into how many pieces: the structure of `native/row_pieces.cpp`."""

    longest: int
    """A divided row has more edges than this."""

    share: int
    """A divided row has more than 1 / share of all rows and edges."""

    most_pieces: int
    """Limit on the pieces of all divided rows together, not counting one more for each row."""

    least_edges: int
    """Minimum number of edges of a piece, except for the last piece of a row."""

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        return self.longest, self.share, self.most_pieces, self.least_edges


def division(weight: Weight = SUMS) -> Division:
    """The division of rows of this weight."""
    pieces = max(1, min(MAX_PIECES // weight.work, PARTS_BYTES // max(weight.leaves, 1)))
    return Division(LONG // weight.work, SHARE, pieces, max(PIECE // weight.work, 1))


@dataclass(frozen=True, slots=True)
class LongRows:
    """The divided rows of a CSR and their pieces, and the chunks of all other rows."""

    pieces: RowPieces

    chunks: Tensor
    """int64: row boundaries of the CSR's chunks, in which divided rows are marked as skipped (see `launch.py`)."""

    max_degree: int
    """The largest number of edges of a row that is not divided; 0 if all rows are divided."""

    is_all: bool
    """Whether all rows are divided."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (*self.pieces.tensors, self.chunks)


def is_long(degree: int, num_rows: int, num_edges: int, weight: Weight = SUMS) -> bool:
    return degree > shortest(num_rows, num_edges, weight)


def shortest(num_rows: int, num_edges: int, weight: Weight = SUMS) -> int:
    """The largest number of edges of a row that is not divided."""
    by = division(weight)
    return max(by.longest, (num_rows + num_edges) // by.share)


def piece_size(num_edges: int, weight: Weight = SUMS) -> int:
    """The largest number of edges of a piece, if all divided rows have `num_edges` edges together."""
    by = division(weight)
    return max(by.least_edges, -(-num_edges // by.most_pieces))


def rows_to_divide(csr: formats.CsrFormat, weight: Weight = SUMS) -> tuple[Tensor, int] | None:
    """The rows that are divided, and the largest number of edges of a piece; None if no row is long."""
    if not is_long(csr.max_degree, csr.num_rows, csr.num_edges, weight):
        return None
    degree = csr.indptr.diff().long()
    row = (degree > shortest(csr.num_rows, csr.num_edges, weight)).nonzero().flatten()
    return row, piece_size(int(degree[row].sum()), weight)


def long_rows(index: Index, wide: bool, weight: Weight = SUMS, chunks: Tensor | None = None) -> LongRows | None:
    """The long rows of the CSR of `index`; None if there are none. `chunks` are the chunks of the other rows, by
    default the CSR's own."""
    csr = formats.csr(index, wide)
    found = rows_to_divide(csr, weight)
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
