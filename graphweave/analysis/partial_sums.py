"""Sums of which each rank has a part only, and what may be done with them before the ranks' parts are added.

A pair of a source and a relation may occur on several ranks, each with edges of its own. What is pushed to such
*copied* pairs is a part of a sum. A result is right if it is linear in the parts and the ranks' results are added,
as they are where pairs are pushed on to rows of others or to shared data.
"""

from __future__ import annotations

from collections.abc import Callable

from graphweave.core.types import Fold, Op, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands
from graphweave.ir.message.nodes import Program, Ref


def check_partial(program: Program, copied: frozenset[Space], refuse: Callable[[Ref, str, str], None]) -> None:
    """Calls `refuse(ref, why, what to do)` for a node that is not linear in parts of sums on `copied` spaces."""
    if not copied:
        return
    partial: set[Ref] = set()
    for ref, node in enumerate(program.nodes):
        used = [r for r in operands(node) if r in partial]
        pushes = isinstance(node, ir.Push | ir.Gram) and node.map is not None
        cod = program.types[node.map] if isinstance(node, ir.Push | ir.Gram) and node.map is not None else None
        to_copied = pushes and isinstance(cod, ir.MapType) and cod.cod in copied
        if not used and not to_copied:
            continue
        folds_sums = not isinstance(node, ir.Push) or node.fold is Fold.sum
        if to_copied and not used and folds_sums:
            partial.add(ref)
        elif not is_linear(program, node, partial) or to_copied or not folds_sums:
            refuse(ref, "a sum for each pair of a row and a type is used, of which a rank has only a part",
                   "Leave out compact (options).")  # fmt: skip
        elif not isinstance(node, ir.Push | ir.Gram):
            partial.add(ref)
    for r in program.outputs:
        if r in partial:
            refuse(r, "a sum for each pair of a row and a type is a result", "Leave out compact (options).")


def is_linear(program: Program, node: ir.Node, partial: set[Ref]) -> bool:
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


def _is_zero(program: Program, ref: Ref) -> bool:
    node = program.nodes[ref]
    return isinstance(node, ir.Const) and node.value == 0
