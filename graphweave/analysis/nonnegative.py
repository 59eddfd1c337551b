"""Which integers cannot be negative, by how they are computed: an index of these never counts from the end."""

from __future__ import annotations

from collections.abc import Sequence

from graphweave.analysis.maps import elements
from graphweave.core.calls import Elements
from graphweave.ir.message import nodes as ir

_POSITIONS = (Elements.positions, Elements.places, Elements.numbered, Elements.shuffled)


def nonnegative(nodes: Sequence[ir.Node], ref: ir.Ref) -> bool:
    """Whether no element of `ref` is negative: positions that a sort or a mask gives, rows among distinct
    ones, numbers from 0 on, constants, and
    what is picked from these. False if that is not known."""
    match nodes[ref]:
        case ir.Const(value):
            return value >= 0
        case ir.Aten() | ir.Order() | ir.Chosen():
            return elements(nodes, ref) in _POSITIONS
        case ir.DistinctRow():
            return True
        case ir.Pull(x) | ir.Reshape(x) | ir.Permute(x) | ir.Broadcast(x) | ir.Slice(x):
            return nonnegative(nodes, x)
        case _:
            return False
