"""Constant folding: arithmetic of constants is done, and operands and operations that change nothing are dropped.

Legal always. x + 0.0 becomes x, so -0.0 + 0.0 gives -0.0 instead of 0.0; the two are equal.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from graphweave.core.types import UNIT, Op
from graphweave.ir.message.aten import TORCH_DTYPE
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.interp import apply
from graphweave.ir.message.nodes import (
    Broadcast,
    Cast,
    Const,
    MapType,
    Permute,
    Pointwise,
    Pull,
    Ref,
    Reshape,
    Slice,
    Type,
)
from graphweave.passes.rules.rule import Rule


def fold_constants(build: Builder, ref: Ref) -> Ref | None:
    """f(const) -> const; x * 1, x / 1, x + 0, x - 0, --x -> x; a reshape, cast or slice that changes nothing -> x"""
    node, t = build.nodes[ref], build.types[ref]
    match node:
        case Pointwise(_, args) if all(isinstance(build.nodes[a], Const) for a in args):
            return _folded(build, ref, node)
        case Pointwise(Op.neg, (x,)) if isinstance(inner := build.nodes[x], Pointwise) and inner.op is Op.neg:
            return inner.args[0]
        case Pointwise(op, (a, b)) if (neutral := op.facts.neutral) is not None:
            if _is(build, b, neutral) and build.types[a] == t:
                return a
            return b if op.facts.commutative and _is(build, a, neutral) and build.types[b] == t else None
        case Reshape(x, shape) if isinstance(inner := build.nodes[x], Reshape):
            same = build.types[inner.x] == t
            return inner.x if same else build.add(Reshape(inner.x, shape), build.locs[ref])
        case Reshape(x) | Broadcast(x) | Cast(x) | Slice(x) if build.types[x] == t:
            return x
        case Permute(x, perm) if perm == tuple(range(len(perm))):
            return x
        case Reshape(x) | Broadcast(x) if isinstance(inner := build.nodes[x], Const):
            assert isinstance(t, Type)
            return build.add(Const(inner.value, t), build.locs[ref])
        case Pull(x, m) if isinstance(inner := build.nodes[x], Const):
            mt = build.types[m]
            assert isinstance(mt, MapType)
            return build.add(Const(inner.value, replace(inner.type, space=mt.dom)), build.locs[ref])
        case _:
            return None


def _is(build: Builder, ref: Ref, value: float) -> bool:
    node = build.nodes[ref]
    return isinstance(node, Const) and not isinstance(node.value, bool) and node.value == value


def _folded(build: Builder, ref: Ref, node: Pointwise) -> Ref:
    t = build.types[ref]
    assert isinstance(t, Type)
    consts = [build.nodes[a] for a in node.args]
    values = [torch.tensor(c.value, dtype=TORCH_DTYPE[c.type.dtype]) for c in consts if isinstance(c, Const)]
    scalars = [Type(UNIT, (), c.type.dtype) for c in consts if isinstance(c, Const)]
    folded = apply(Pointwise(node.op, tuple(range(len(values)))), values, scalars, lambda _: 1)
    return build.add(Const(folded.item(), t), build.locs[ref])


RULE = Rule("fold-constants", "f(const), x * 1, x + 0", "const, x, x", fold_constants)
