"""Whether a node is linear in some of its operands, so that summands of these may be added behind it."""

from __future__ import annotations

from graphweave.core.types import Fold, Op
from graphweave.ir.message import nodes as ir


def is_linear(program: ir.Program, node: ir.Node, partial: set[ir.Ref]) -> bool:
    """Whether the node is linear in its operands in `partial`, together."""
    match node:
        case ir.Push() | ir.Cast() | ir.Reshape() | ir.Broadcast() | ir.Permute() | ir.Slice() | ir.Pad():
            return True
        case ir.Reduce(fold=fold):
            return fold is Fold.sum
        case ir.Gram(x, y):
            return (x in partial) != (y in partial)
        case ir.MatMul(x, w):
            return x in partial and w not in partial
        case ir.Pointwise(Op.mul, args):
            return sum(a in partial for a in args) == 1
        case ir.Pointwise(Op.add | Op.sub, args):
            return all(a in partial for a in args)
        case ir.Pointwise(Op.neg):
            return True
        case ir.Pointwise(Op.div, (_, by)):
            return by not in partial
        case ir.Pointwise(Op.where, (mask, *values)):
            return mask not in partial and all(a in partial or _is_zero(program, a) for a in values)
        case _:
            return False


def _is_zero(program: ir.Program, ref: ir.Ref) -> bool:
    node = program.nodes[ref]
    return isinstance(node, ir.Const) and node.value == 0
