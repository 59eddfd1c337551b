"""Which integers cannot be negative, by how they are computed: an index of these never counts from the end."""

from __future__ import annotations

from collections.abc import Sequence

from graphweave.ir.message.nodes import Aten, Broadcast, Const, Node, Operand, Permute, Pull, Ref, Reshape, Slice

_POSITIONS = frozenset({"aten.nonzero.default", "aten.argsort.default", "aten.argsort.stable", "aten.argmax.default"})
"""Calls that give positions of rows."""

_POSITIONS_SECOND = frozenset(
    {"aten.sort.default", "aten.sort.stable", "aten.topk.default", "aten.max.dim", "aten.min.dim"}
)
"""Calls whose second result are positions of rows."""


def nonnegative(nodes: Sequence[Node], ref: Ref) -> bool:
    """Whether no element of `ref` is negative: positions that a sort or a mask gives, numbers in order, constants, and
    what is picked from these. False if that is not known."""
    match nodes[ref]:
        case Const(value):
            return value >= 0
        case Aten(target) if target in _POSITIONS:
            return True
        case Aten("aten.arange.default"):
            return True
        case Aten("builtin.getitem", (Operand(called), 1)):
            several = nodes[called]
            return isinstance(several, Aten) and several.target in _POSITIONS_SECOND
        case Pull(x) | Reshape(x) | Permute(x) | Broadcast(x) | Slice(x):
            return nonnegative(nodes, x)
        case _:
            return False
