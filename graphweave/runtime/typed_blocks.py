"""Edges in the order in which the kernel of a fused push walks them: by row block, then by type, then by row.

A row block has few enough rows that they stay in cache while products are added to them, and enough edges that types
repeat: a matrix is then read once for all edges of its type. The tables take 4 bytes for each edge, another 4 for each
edge and gathered tensor, and 8 for each pair of type and row that has edges. They are cached like the formats of
`formats.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from graphweave.runtime import formats
from graphweave.runtime.index import Index
from graphweave.runtime.push_tables import PushTables
from graphweave.runtime.typed_pieces import TypedPieces, typed_pieces

BLOCK_BYTES = 1 << 19
"""A row block's rows of the result have at most about this many bytes, a quarter of a second-level cache."""

BLOCKS = 32
"""There are at least this many row blocks for threads to share, unless blocks would have fewer than about `BLOCK_EDGES`
edges."""

BLOCK_EDGES = 2048
"""Row blocks have at least about this many edges on average, unless `BLOCK_BYTES` demands smaller blocks."""


@dataclass(frozen=True, slots=True)
class TypedBlocks(PushTables):
    """Push tables for the CPU. There is at least one block, which is empty if there are no rows. `pair_row` equals
    `pair_target` if no row is divided."""

    pieces: TypedPieces


def num_blocks(edges: int, rows: int, row_bytes: int) -> int:
    """The number of row blocks for rows of `row_bytes` bytes. It is a power of two, so that layers of similar width
    share the order of edges."""
    wanted = max(rows * row_bytes // BLOCK_BYTES, min(BLOCKS, edges // BLOCK_EDGES), 1)
    return 1 << (wanted - 1).bit_length()


def typed_blocks(types: Index, rows: Index, most: int, wide: bool = False) -> TypedBlocks:
    """The tables of edges that each have a type and a row, in at most `most` blocks with about equally many rows and
    edges."""
    key = "typed_blocks", types.key, rows.key, most, wide
    tensors = types.values, rows.values
    return cast(TypedBlocks, formats.cached(key, tensors, lambda: _build(types, rows, most, wide)))


def _build(types: Index, rows: Index, most: int, wide: bool) -> TypedBlocks:
    pieces, row = typed_pieces(types, rows, wide)
    perm: Tensor | None
    if pieces.divided:
        of_rows, perm = formats.grouped(Index(row, pieces.num_all), wide)
    else:
        of_rows = formats.csr(rows, wide).indptr
        perm = formats.perm(rows, wide)
    kind = formats.flat(types, wide)
    if perm is not None:
        row, kind = row.index_select(0, perm), kind.index_select(0, perm)
    bounds = _bounds(of_rows, most)
    at = torch.arange(pieces.num_all, device="cpu")
    block = torch.searchsorted(bounds[1:], at, right=True, out_int32=not wide)
    # fits, since the caller would otherwise have set `wide`
    key = block.index_select(0, row).mul_(types.rows).add_(kind)
    blocks, dtype = bounds.numel() - 1, row.dtype
    of_keys, order = formats.grouped(Index(key, blocks * types.rows), wide)
    row = row.index_select(0, order)
    used = of_keys.diff().nonzero().flatten()  # keys that have edges, which are the groups
    starts = torch.zeros(row.numel(), dtype=torch.bool, device="cpu")
    starts[1:] = row[1:] != row[:-1]
    starts[of_keys[used].long()] = True
    first = starts.nonzero().flatten()
    edges = torch.cat([first, first.new_tensor([row.numel()])]).to(dtype)
    target = row.index_select(0, first)
    groups = torch.cat([of_keys[used], of_keys[-1:]])
    return TypedBlocks(
        block=bounds.to(dtype),
        groups=torch.searchsorted(used, torch.arange(blocks + 1, device="cpu") * types.rows).to(dtype),
        pairs=torch.searchsorted(edges, groups).to(dtype),
        edges=edges,
        group_type=(used % max(types.rows, 1)).to(dtype),
        pair_target=target,
        pair_row=pieces.rows_of(target),
        order=order if perm is None else perm.index_select(0, order),
        pieces=pieces,
    )


def _bounds(indptr: Tensor, num_blocks: int) -> Tensor:
    num_rows = indptr.numel() - 1
    reached = indptr.long() + torch.arange(num_rows + 1, device="cpu")
    goals = torch.arange(num_blocks + 1, device="cpu") * int(reached[-1]) // num_blocks
    bounds = torch.searchsorted(reached, goals)
    bounds[0], bounds[-1] = 0, num_rows
    return torch.unique_consecutive(bounds) if num_rows else torch.zeros(2, dtype=torch.int64, device="cpu")
