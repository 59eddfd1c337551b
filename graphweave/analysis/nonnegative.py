"""Which integers cannot be negative, by how they are computed: an index of these never counts from the end."""

from __future__ import annotations

from collections.abc import Sequence

from graphweave.analysis.maps import elements
from graphweave.core.calls import Elements
from graphweave.ir.message.nodes import (
    Aten,
    Broadcast,
    Chosen,
    Const,
    DistinctRow,
    Node,
    Order,
    Permute,
    Pull,
    Ref,
    Reshape,
    Slice,
)

_POSITIONS = (Elements.positions, Elements.places, Elements.numbered, Elements.shuffled)


def nonnegative(nodes: Sequence[Node], ref: Ref) -> bool:
    """Whether no element of `ref` is negative: positions that a sort or a mask gives, rows among distinct
    ones, numbers from 0 on, constants, and
    what is picked from these. False if that is not known."""
    match nodes[ref]:
        case Const(value):
            return value >= 0
        case Aten() | Order() | Chosen():
            return elements(nodes, ref) in _POSITIONS
        case DistinctRow():
            return True
        case Pull(x) | Reshape(x) | Permute(x) | Broadcast(x) | Slice(x):
            return nonnegative(nodes, x)
        case _:
            return False
