"""Edges by block of rows, then by type, then by row: the order in which a GPU walks them in a fused push.

What `typed_blocks.py` is on a CPU. A row of very many edges is cut into *pieces*, which are rows of their own until
they are folded, so no program has much more to do than the others.

How many pairs and groups there are is known on the device alone: tables have room for the most there can be, and
nothing here waits for the device. 16 bytes an edge, twice that if wide; cached as the formats of `formats.py` are.
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
class Cut:
    """How edges are shared out: about `block` in a block, at most `piece` in a piece."""

    block: int
    piece: int


@dataclass(frozen=True, slots=True)
class TypedPairs(PushTables):
    """There are as many groups as blocks x types and as many pairs as edges, the last of them empty.

    `block` is 0: no kernel clears rows, the whole result is 0 before, since pieces of a row are of several blocks.
    """

    folds: Folds


def typed_pairs(types: Index, rows: Index, cut: Cut, wide: bool = False) -> TypedPairs:
    """Of at least one edge, with a type and a row each."""
    key = "typed_pairs", types.key, rows.key, cut, wide
    tensors = types.values, rows.values
    return cast(TypedPairs, formats.cached(key, tensors, lambda: _build(types, rows, cut, wide)))


def _build(types: Index, rows: Index, cut: Cut, wide: bool) -> TypedPairs:
    order, key, row, target, folds = _sorted(types, rows, cut, wide)
    num, dtype = order.numel(), torch.int64 if wide else torch.int32
    blocks = -(-num // cut.block)
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


def _sorted(types: Index, rows: Index, cut: Cut, wide: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Folds]:
    """The edge, block * types + type, row and target at each position; in a group targets rise, edges of one as they
    came.

    A block starts with a piece: it is the piece's first edge that says which.
    """
    num, num_rows = rows.values.numel(), rows.rows
    indptr = formats.csr(rows, wide).indptr.long()
    perm = formats.perm(rows, wide)
    row, kind = formats.flat(rows, wide).long(), formats.flat(types, wide).long()
    at = torch.arange(num, device=row.device)
    order = at if perm is None else perm.long()
    row, kind = row.index_select(0, order), kind.index_select(0, order)
    start = indptr.index_select(0, row)
    needed, first = several((indptr.diff() + (cut.piece - 1)) // cut.piece)
    piece = (at - start) // cut.piece
    slot = num_rows + first.index_select(0, row) + piece
    target = torch.where(needed.index_select(0, row) > 0, slot, row)
    block = (start + piece * cut.piece) // cut.block
    key, by = torch.sort(block * types.rows + kind, stable=True)
    longer = num // (cut.piece + 1)  # rows of more than one piece
    folds = folds_of(needed, first, min(longer, num_rows), num // cut.piece + longer)
    return order.index_select(0, by), key, row.index_select(0, by), target.index_select(0, by), folds


def _changes(values: Tensor) -> Tensor:
    """Where a value differs from the one in front; the first does."""
    first = torch.ones(1, dtype=torch.bool, device=values.device)
    return torch.cat([first, values.diff() != 0])


def _firsts(numbers: Tensor, most: int) -> Tensor:
    """[most + 1] the first position of each of the numbers 0, 1, ..., which rise by one at most."""
    return torch.searchsorted(numbers, torch.arange(most + 1, device=numbers.device))


def _at(values: Tensor, bounds: Tensor) -> Tensor:
    """The value at the first position of each stretch that `bounds` bound; any value for those that are empty."""
    starts = bounds.narrow(0, 0, bounds.numel() - 1)
    return values.index_select(0, starts.clamp(max=values.numel() - 1))


def _reached(numbers: Tensor, positions: Tensor) -> Tensor:
    """The number at each position; behind the last position, one more than the last number."""
    after = numbers.narrow(0, numbers.numel() - 1, 1) + 1
    return torch.cat([numbers, after]).index_select(0, positions)
