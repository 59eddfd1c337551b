"""Formats of a graph whose rows and edges are visited in another order than the user's, for kernels on the CPU.

They are made once for a graph and cached like the formats of `formats.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from graphweave.core.locality import cuthill_mckee, hilbert
from graphweave.core.schedule import EdgeOrder, RowOrder
from graphweave.runtime import formats
from graphweave.runtime.index import Index
from graphweave.runtime.long_rows import LongRows
from graphweave.runtime.row_pieces import RowPieces


@dataclass(frozen=True, slots=True)
class EdgeOrders:
    """Formats over the rows of `index`, whose edges gather rows of `source` (None if they gather nothing).

    `rows`, `edges` and `partitions` are those of a `Schedule`. `one_space` says that row i of `index` is also row i of
    `source`. The formats have 64 bits if `wide`, else 32.
    """

    index: Index
    source: Index | None
    rows: RowOrder = "given"
    edges: EdgeOrder = "given"
    partitions: int | None = None
    one_space: bool = False
    wide: bool = False

    @property
    def in_pieces(self) -> bool:
        return self.partitions is not None or self.edges == "hilbert"

    def row_order(self) -> Tensor:
        """[rows]: the row that is computed at each turn."""
        return cast(Tensor, self._cached("row_order", lambda: torch.argsort(self._row_rank()).to(self._dtype)))

    def indptr(self) -> Tensor:
        """[rows + 1]: the first position of each turn's row, if rows are not divided into pieces."""

        def build() -> Tensor:
            degree = formats.csr(self.index, self.wide).indptr.diff().index_select(0, self.row_order())
            return torch.cat([degree.new_zeros(1), degree.cumsum(0, dtype=self._dtype)])

        return cast(Tensor, self._cached("indptr", build))

    def edge_at(self) -> Tensor:
        """[num_edges]: the edge at each position. Positions are those of `indptr`; if rows are in pieces, those of the
        CSR of `index`."""

        def build() -> Tensor:
            order = self._visited()
            if self.in_pieces:
                order = order[torch.argsort(self._rows_of(order), stable=True)]
            return order.to(self._dtype)

        return cast(Tensor, self._cached("edge_at", build))

    def column(self, other: Index) -> Tensor:
        """[num_edges]: the row to which `other` sends the edge at each position."""

        def build() -> Tensor:
            return formats.flat(other, self.wide).index_select(0, self.edge_at())

        return cast(Tensor, self._cached(("column", other.key), build, other.values))

    def pieces(self) -> LongRows:
        """All rows divided into pieces, in the order in which they are visited. Every row has at least one piece.

        A piece is a run of edges of one row. With `partitions`, sources are divided into that many equal ranges, a
        piece has the edges whose sources lie in one range, and ranges are visited one after the other (Zhang et al.,
        "Making caches work for graph analytics", 2017; Hu et al., "FeatGraph", 2020, figure 6). With "hilbert", ranges
        of rows and of sources, or single rows and sources without `partitions`, are visited along a Hilbert curve.
        """
        return cast(LongRows, self._cached("pieces", self._pieces))

    # -------------------------------------------------------- how they are made

    @property
    def _dtype(self) -> torch.dtype:
        return torch.int64 if self.wide else torch.int32

    def _cached(self, what: object, build: Callable[[], Tensor | LongRows], *more: Tensor) -> Tensor | LongRows:
        source = self.source
        of = self.index.key, None if source is None else source.key
        key = ("edge_orders", what, *of, self.rows, self.edges, self.partitions, self.one_space, self.wide)
        tensors = (self.index.values, *(() if source is None else (source.values,)), *more)
        return cast("Tensor | LongRows", formats.cached(key, tensors, build))

    def _rows_of(self, edges: Tensor) -> Tensor:
        return formats.flat(self.index, self.wide).long()[edges]

    def _sources(self) -> Tensor:
        assert self.source is not None, "an order of edges is one by their sources"
        return formats.flat(self.source, self.wide).long()

    def _row_rank(self) -> Tensor:
        """[rows] int64: the turn of each row."""
        count = self.index.rows
        if self.rows == "locality":
            ranks = self._locality()[0]
            return torch.argsort(torch.argsort(ranks))
        if self.rows == "degree":
            order = torch.argsort(-formats.csr(self.index, self.wide).indptr.diff().long(), stable=True)
            return torch.argsort(order)
        return torch.arange(count, device="cpu")

    def _locality(self) -> tuple[Tensor, Tensor]:
        rows, sources = formats.flat(self.index, self.wide).long(), self._sources()
        assert self.source is not None
        return cuthill_mckee(rows, sources, self.index.rows, self.source.rows, self.one_space)

    def _edge_rank(self) -> Tensor:
        """[num_edges] int64: a row's edges are sorted by this rank, equal ones in the user's order."""
        if self.edges == "given":
            return torch.zeros(self.index.num_edges, dtype=torch.int64, device="cpu")
        sources = self._sources()
        if self.edges == "degree":
            return -torch.bincount(sources)[sources] if sources.numel() else sources
        return self._locality()[1][sources] if self.edges == "locality" else sources

    def _visited(self) -> Tensor:
        """[num_edges]: the edges in the order in which they are visited."""
        order = torch.argsort(self._edge_rank(), stable=True)
        order = order[torch.argsort(self._row_rank()[self._rows_of(order)], stable=True)]
        if not self.in_pieces:
            return order
        rows, sources = self._rows_of(order), self._sources()[order]
        if self.partitions is not None:
            assert self.source is not None
            sources = torch.div(sources, _range(self.source.rows, self.partitions), rounding_mode="floor")
            rows = torch.div(rows, _range(self.index.rows, self.partitions), rounding_mode="floor")
        block = hilbert(rows, sources) if self.edges == "hilbert" else sources
        return order[torch.argsort(block, stable=True)]

    def _pieces(self) -> LongRows:
        csr, order = formats.csr(self.index, self.wide), self._visited()
        num_rows, row = csr.num_rows, self._rows_of(order)
        new = torch.ones_like(row, dtype=torch.bool)
        new[1:] = row.diff() != 0
        if self.partitions is not None:
            new[1:] |= self._range_changes(order)
        start = new.nonzero().flatten()
        length = torch.cat([start, start.new_tensor([row.numel()])]).diff()
        bare = (csr.indptr.diff() == 0).nonzero().flatten()  # rows without edges have one piece, after all others
        piece_row, length = torch.cat([row[start], bare]), torch.cat([length, torch.zeros_like(bare)])
        pieces = torch.cat([length.new_zeros(1), length.cumsum(0)])
        by_row = torch.argsort(piece_row, stable=True)
        begin = torch.empty_like(length)
        begin[by_row] = torch.cat([length.new_zeros(1), length[by_row].cumsum(0)])[:-1]
        slots = torch.cat([length.new_zeros(1), torch.bincount(piece_row, minlength=num_rows).cumsum(0)])
        kind = csr.indptr.dtype
        table = RowPieces(
            torch.arange(num_rows, device="cpu").to(kind), slots.to(kind), piece_row.to(kind), piece_row.to(kind),
            pieces.to(kind),
            (begin - pieces[:-1]).to(kind), csr.num_edges, by_row.to(kind),
        )  # fmt: skip
        return LongRows(table, torch.tensor([~0, num_rows], device="cpu"), 0, True)

    def _range_changes(self, order: Tensor) -> Tensor:
        """[num_edges - 1]: whether an edge's source lies in another range than the source of the edge visited
        before."""
        assert self.source is not None and self.partitions is not None
        size = _range(self.source.rows, self.partitions)
        return torch.div(self._sources()[order], size, rounding_mode="floor").diff() != 0


def _range(rows: int, parts: int) -> int:
    """The number of rows in each of `parts` equal ranges; the last range may have fewer."""
    return max(1, -(-rows // parts))
