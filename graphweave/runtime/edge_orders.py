"""Orders of the edges of a row other than that of the user, and pieces of rows whose edges share a part of the sources.

Made once for a graph and cached as the formats of `formats.py` are. On the CPU.
"""

from __future__ import annotations

from typing import Literal, cast

import torch
from torch import Tensor

from graphweave.runtime import formats
from graphweave.runtime.index import Index
from graphweave.runtime.long_rows import LongRows
from graphweave.runtime.row_pieces import RowPieces

EdgeKey = Literal["source", "degree"]


def ordered_edges(index: Index, source: Index, by: EdgeKey, wide: bool = False) -> Tensor:
    """[num_edges], dtype of indptr: the edge at each position of the CSR of `index`, those of a row by their `source`.

    "source" is increasing rows of `source`; "degree" is decreasing numbers of edges that have the same source. Equal
    ones stay in the user's order.
    """
    key = ("ordered_edges", index.key, source.key, by, wide)
    return cast(Tensor, formats.cached(key, (index.values, source.values), lambda: _ordered(index, source, by, wide)))


def ordered_column(index: Index, source: Index, other: Index, by: EdgeKey, wide: bool = False) -> Tensor:
    """The rows that `other` gives the edges in the order of `ordered_edges`, checked; dtype of indptr."""
    key = ("ordered_column", index.key, source.key, other.key, by, wide)
    tensors = index.values, source.values, other.values

    def build() -> Tensor:
        order = ordered_edges(index, source, by, wide)
        return formats.flat(other, wide).index_select(0, order)

    return cast(Tensor, formats.cached(key, tensors, build))


def source_pieces(index: Index, source: Index, parts: int, wide: bool = False) -> LongRows:
    """Every row of the CSR of `index` in pieces, one for each of `parts` equal ranges of sources that it has edges of.

    The edges are in the order "source", so that a piece is a run of a row's positions. Pieces are in the order of their
    range, then of their row: who goes through them reads one range of sources after the other (Zhang et al., "Making
    caches work for graph analytics", 2017; Hu et al., "FeatGraph", 2020, figure 6). A row has at least one piece.
    """
    key = ("source_pieces", index.key, source.key, parts, wide)
    tensors = index.values, source.values
    return cast(LongRows, formats.cached(key, tensors, lambda: _pieces(index, source, parts, wide)))


def _ordered(index: Index, source: Index, by: EdgeKey, wide: bool) -> Tensor:
    rows, sources = formats.flat(index, wide).long(), formats.flat(source, wide).long()
    rank = sources if by == "source" else -torch.bincount(sources, minlength=source.rows)[sources]
    order = torch.argsort(rank, stable=True)
    order = order[torch.argsort(rows[order], stable=True)]
    return order.to(torch.int64 if wide else torch.int32)


def _pieces(index: Index, source: Index, parts: int, wide: bool) -> LongRows:
    csr = formats.csr(index, wide)
    rows, edges = csr.num_rows, csr.num_edges
    kind = csr.indptr.dtype
    size = max(1, -(-source.rows // parts))
    column = ordered_column(index, source, source, "source", wide).long()
    row = torch.repeat_interleave(torch.arange(rows), csr.indptr.diff().long())
    group = torch.div(column, size, rounding_mode="floor") * max(rows, 1) + row  # by range, then by row
    bare = (csr.indptr.diff() == 0).nonzero().flatten()  # rows without edges have one piece, in the first range
    found, length = torch.cat([group, bare]).unique(return_counts=True)
    piece_row = found % max(rows, 1)
    length = length - torch.isin(found, bare).long()
    pieces = torch.cat([length.new_zeros(1), length.cumsum(0)])
    by_row = torch.argsort(piece_row, stable=True)
    first = torch.cat([length.new_zeros(1), length[by_row].cumsum(0)[:-1]])  # position in the CSR, row by row
    begin = torch.empty_like(length)
    begin[by_row] = first[: length.numel()]
    slots = torch.cat([length.new_zeros(1), torch.bincount(piece_row, minlength=rows).cumsum(0)])
    table = RowPieces(
        torch.arange(rows).to(kind), slots.to(kind), piece_row.to(kind), piece_row.to(kind), pieces.to(kind),
        (begin - pieces[:-1]).to(kind), edges, by_row.to(kind),
    )  # fmt: skip
    return LongRows(table, torch.tensor([~0, rows]), 0, True)
