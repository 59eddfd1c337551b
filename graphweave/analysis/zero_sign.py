"""Which values are never -0.0, so that adding 0.0 to them changes no bit (docs/design/identities.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphweave.core.types import Op
from graphweave.ir.message import nodes as ir

_MAX_DEPTH = 8
"""Values are followed through at most this many nested operations."""


def never_minus_zero(
    nodes: Sequence[ir.Node], types: Sequence[ir.ValueType], ref: ir.Ref, depth: int = _MAX_DEPTH
) -> bool:
    """Whether no element of `ref` is -0.0, whatever the inputs. False if that is not known.

    A sum begins with 0.0, and 0.0 + -0.0 is 0.0, so no sum of edges or of products is -0.0.
    """
    node, t = nodes[ref], types[ref]
    if isinstance(t, ir.Type) and not t.dtype.is_float:
        return True

    def never(x: ir.Ref) -> bool:
        return depth > 0 and never_minus_zero(nodes, types, x, depth - 1)

    match node:
        case ir.Const(value):
            return value != 0 or math.copysign(1, value) > 0
        case ir.Push():
            return node.is_plain_sum
        case ir.MatMul() | ir.AddMatMul() | ir.Gram() | ir.Random():
            return True
        case ir.Pointwise(op, args):
            return _pointwise(op, args, [never(a) for a in args])
        case ir.Cast(x):
            before = types[x]
            wider = isinstance(before, ir.Type) and isinstance(t, ir.Type) and before.dtype.itemsize < t.dtype.itemsize
            whole = isinstance(before, ir.Type) and not before.dtype.is_float
            return whole or (wider and never(x))  # rounding may give -0.0
        case ir.Pull(x) | ir.Reshape(x) | ir.Broadcast(x) | ir.Permute(x) | ir.Slice(x) | ir.Pad(x) | ir.Part(x):
            return never(x)
        case ir.Concat(xs) | ir.Join(xs):
            return all(map(never, xs))
    return False


def _pointwise(op: Op, args: tuple[ir.Ref, ...], never: list[bool]) -> bool:
    match op:
        case Op.exp | Op.sigmoid | Op.abs | Op.sign:
            return True
        case Op.add:
            return any(never)  # the sum of two zeros is -0.0 only if both are
        case Op.sub | Op.sqrt | Op.relu:
            return never[0]
        case Op.mul:
            return args[0] == args[1]
        case Op.maximum | Op.minimum:
            return all(never)
        case Op.where:
            return all(never[1:])
    return False
