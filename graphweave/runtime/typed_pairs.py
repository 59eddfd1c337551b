"""Edges by row block, then by type, then by row: the order in which a GPU walks them in a fused push.

This is for a GPU what `typed_blocks.py` is for a CPU. A row with very many edges is divided into *pieces*, which are
treated as rows until they are folded, so no program has much more work than the others.

Only the device knows how many pairs and groups there are. The tables have room for as many as are possible, so that
nothing here waits for the device. They take 16 bytes for each edge, twice that if wide, and are cached like the formats
of `formats.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from graphweave.runtime import formats
from graphweave.runtime.index import Index
from graphweave.runtime.push_tables import PushTables
from graphweave.runtime.typed_parts import Folds, folds_of, several


@dataclass(frozen=True, slots=True)
class PairSizes:
    """How edges are divided: about `block` edges in a row block, at most `piece` edges in a piece."""

    block: int
    piece: int


@dataclass(frozen=True, slots=True)
class TypedPairs(PushTables):
    """Push tables for a GPU, with at most blocks x types groups and at most as many pairs as edges. Unused entries are
    last and empty.

    `block` is all zero, since no kernel clears rows: the whole result is zeroed first, because several blocks may add
    to one row.
    """

    folds: Folds


def typed_pairs(types: Index, rows: Index, sizes: PairSizes, wide: bool = False) -> TypedPairs:
    """The tables of edges (at least one) that each have a type and a row."""
    key = "typed_pairs", types.key, rows.key, sizes, wide
    tensors = types.values, rows.values
    return cast(TypedPairs, formats.cached(key, tensors, lambda: _build(types, rows, sizes, wide)))


def _build(types: Index, rows: Index, sizes: PairSizes, wide: bool) -> TypedPairs:
    order, key, row, target, folds = _sorted(types, rows, sizes, wide)
    num, dtype = order.numel(), torch.int64 if wide else torch.int32
    blocks = -(-num // sizes.block)
    in_group = _changes(key)
    group = in_group.cumsum(0) - 1
    pair = (in_group | _changes(target)).cumsum(0) - 1
    edges = _firsts(pair, num)
    heads = _firsts(group, min(num, blocks * types.rows))
    bounds = torch.arange(blocks + 1, device=key.device) * types.rows
    return TypedPairs(
        block=torch.zeros(blocks + 1, dtype=dtype, device=key.device),
        groups=_reached(group, torch.searchsorted(key, bounds)).to(dtype),
        pairs=_reached(pair, heads).to(dtype),
        edges=edges.to(dtype),
        group_type=(_at(key, heads) % types.rows).to(dtype),
        pair_target=_at(target, edges).to(dtype),
        pair_row=_at(row, edges).to(dtype),
        order=order.to(dtype),
        folds=folds,
    )


def _sorted(types: Index, rows: Index, sizes: PairSizes, wide: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Folds]:
    """The edge, block * types + type, row and target at each position, and the rows to fold.

    In a group, targets are ascending, and edges of one target keep their order. The first edge of a piece decides to
    which block the piece belongs.
    """
    num, num_rows = rows.values.numel(), rows.rows
    indptr = formats.csr(rows, wide).indptr.long()
    perm = formats.perm(rows, wide)
    row, kind = formats.flat(rows, wide).long(), formats.flat(types, wide).long()
    at = torch.arange(num, device=row.device)
    order = at if perm is None else perm.long()
    row, kind = row.index_select(0, order), kind.index_select(0, order)
    start = indptr.index_select(0, row)
    needed, first = several((indptr.diff() + (sizes.piece - 1)) // sizes.piece)
    piece = (at - start) // sizes.piece
    slot = num_rows + first.index_select(0, row) + piece
    target = torch.where(needed.index_select(0, row) > 0, slot, row)
    block = (start + piece * sizes.piece) // sizes.block
    key, by = torch.sort(block * types.rows + kind, stable=True)
    longer = num // (sizes.piece + 1)  # rows with more than one piece
    folds = folds_of(needed, first, min(longer, num_rows), num // sizes.piece + longer)
    return order.index_select(0, by), key, row.index_select(0, by), target.index_select(0, by), folds


def _changes(values: Tensor) -> Tensor:
    """Whether each value differs from the one before it; true for the first."""
    first = torch.ones(1, dtype=torch.bool, device=values.device)
    return torch.cat([first, values.diff() != 0])


def _firsts(numbers: Tensor, most: int) -> Tensor:
    """[most + 1]: the first position of each of 0, 1, ... in `numbers`, which are ascending in steps of at most one."""
    return torch.searchsorted(numbers, torch.arange(most + 1, device=numbers.device))


def _at(values: Tensor, bounds: Tensor) -> Tensor:
    """The value at the first position of each interval that `bounds` delimits; any value for an empty interval."""
    starts = bounds.narrow(0, 0, bounds.numel() - 1)
    return values.index_select(0, starts.clamp(max=values.numel() - 1))


def _reached(numbers: Tensor, positions: Tensor) -> Tensor:
    """The number at each position. Positions after the last one get one more than the last number."""
    after = numbers.narrow(0, numbers.numel() - 1, 1) + 1
    return torch.cat([numbers, after]).index_select(0, positions)
