"""The tables that the kernel of a fused push walks: row blocks, groups of one type, pairs of type and row, edges."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields
from typing import cast

from torch import Tensor

from graphweave.runtime import formats
from graphweave.runtime.index import Index


@dataclass(frozen=True, slots=True)
class PushTables:
    """The tables are int32, or int64 if wide. A piece of a divided row counts as a row."""

    block: Tensor
    """[blocks + 1]: the first row of each row block. The kernel clears the rows of a block."""

    groups: Tensor
    """[blocks + 1]: the first group of each block. A group is the edges of one type; no group is without edges."""

    pairs: Tensor
    """[groups + 1]: the first pair of each group. A pair is the edges of one row, whose sum is multiplied once."""

    edges: Tensor
    """[pairs + 1]: the first position of each pair."""

    group_type: Tensor
    """[groups]: the type of each group."""

    pair_target: Tensor
    """[pairs]: the row of each pair, or the piece of a divided row."""

    pair_row: Tensor
    """[pairs]: the row of each pair."""

    order: Tensor
    """[edges]: the edge at each position."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        held = (getattr(self, f.name) for f in fields(self))
        return tuple(t for v in held for t in ((v,) if isinstance(v, Tensor) else getattr(v, "tensors", ())))


def column(found: PushTables, types: Index, rows: Index, other: Index, how: Hashable, wide: bool) -> Tensor:
    """The row that `other` names for the edge at each position of `found`. The tables `found` are made from `types` and
    `rows`; `how` is the key of the way in which they divide rows."""
    key = "push_column", types.key, rows.key, other.key, how, wide
    tensors = types.values, rows.values, other.values
    return cast(Tensor, formats.cached(key, tensors, lambda: formats.flat(other, wide).index_select(0, found.order)))
