"""Edges in the order in which a scatter of typed products walks them: by block of rows, then by type, then by row.

A block is some consecutive rows, so that what is added to them stays in cache, with edges enough that types repeat: a
matrix is then read once for all edges of its type. 8 bytes an edge, and 4 for each gathered tensor; cached as the
formats of `formats.py` are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from graphweave.runtime import formats
from graphweave.runtime.index import Index
from graphweave.runtime.typed_pieces import TypedPieces, typed_pieces


@dataclass(frozen=True, slots=True)
class TypedBlocks:
    bounds: Tensor
    """int64 [num_blocks + 1]: the first row of each block. One block at least, empty if no rows."""

    indptr: Tensor
    """[num_blocks * num_types + 1], int32 or int64 if wide: positions of the edges of each block and type."""

    order: Tensor
    """The edge at each position, of the dtype of indptr."""

    rows: Tensor
    """The row of the edge at each position, or the piece of a divided row."""

    pieces: TypedPieces

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.bounds, self.indptr, self.order, self.rows


def typed_blocks(types: Index, rows: Index, num_blocks: int, wide: bool = False) -> TypedBlocks:
    """Of edges with a type and a row each, for at most `num_blocks` blocks of about equal rows + edges."""
    key = "typed_blocks", types.key, rows.key, num_blocks, wide
    tensors = types.values, rows.values
    return cast(TypedBlocks, formats.cached(key, tensors, lambda: _build(types, rows, num_blocks, wide)))


def column(types: Index, rows: Index, other: Index, num_blocks: int, wide: bool = False) -> Tensor:
    """The row that `other` names for the edge at each position of `typed_blocks(types, rows, num_blocks, wide)`."""
    key = "typed_column", types.key, rows.key, other.key, num_blocks, wide
    order = typed_blocks(types, rows, num_blocks, wide).order
    tensors = types.values, rows.values, other.values
    return cast(Tensor, formats.cached(key, tensors, lambda: other.flat(wide).index_select(0, order)))


def _build(types: Index, rows: Index, num_blocks: int, wide: bool) -> TypedBlocks:
    pieces, row = typed_pieces(types, rows, wide)
    perm: Tensor | None
    if pieces.divided:
        of_rows, perm = formats.grouped(row, pieces.num_all, wide)
    else:
        of_rows = formats.csr(rows.values, rows.rows, rows.wrap, wide).indptr
        perm = formats.perm(rows.values, rows.rows, rows.wrap, wide)
    kind = types.flat(wide)
    if perm is not None:
        row, kind = row.index_select(0, perm), kind.index_select(0, perm)
    bounds = _bounds(of_rows, num_blocks)
    at = torch.arange(pieces.num_all)
    block = torch.searchsorted(bounds[1:], at, right=True, out_int32=not wide)
    key = block.index_select(0, row).mul_(types.rows).add_(kind)  # which fits, since the caller says so with `wide`
    indptr, order = formats.grouped(key, (bounds.numel() - 1) * types.rows, wide)
    row = row.index_select(0, order)
    return TypedBlocks(bounds, indptr, order if perm is None else perm.index_select(0, order), row, pieces)


def _bounds(indptr: Tensor, num_blocks: int) -> Tensor:
    num_rows = indptr.numel() - 1
    reached = indptr.long() + torch.arange(num_rows + 1)
    goals = torch.arange(num_blocks + 1) * int(reached[-1]) // num_blocks
    bounds = torch.searchsorted(reached, goals)
    bounds[0], bounds[-1] = 0, num_rows
    return torch.unique_consecutive(bounds) if num_rows else torch.zeros(2, dtype=torch.int64)
