"""Constant folding: arithmetic of constants is done, and operands and operations that change nothing are dropped.

Legal always: no bit changes. As -0.0 + 0.0 is 0.0, a 0.0 stays that is added to what may be -0.0; -0.0 is never needed.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from graphweave.analysis.zero_sign import never_minus_zero
from graphweave.core.types import UNIT, Op
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.aten import TORCH_DTYPE
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.interp import apply
from graphweave.passes.rules.rule import Rule


def fold_constants(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """f(const) -> const; x * 1, x / 1, x + -0.0, x - 0, --x -> x; a reshape, cast or slice that changes nothing -> x"""
    node, t = build.nodes[ref], build.types[ref]
    match node:
        case ir.Pointwise(_, args) if all(isinstance(build.nodes[a], ir.Const) for a in args):
            return _fold_constant(build, ref, node)
        case ir.Pointwise(Op.neg, (x,)) if isinstance(inner := build.nodes[x], ir.Pointwise) and inner.op is Op.neg:
            return inner.args[0]
        case ir.Pointwise(op, (a, b)) if (neutral := op.facts.neutral) is not None:
            if _is(build, b, neutral) and build.types[a] == t and _keeps_zeros(build, op, a, b):
                return a
            drops = op.facts.commutative and _is(build, a, neutral) and build.types[b] == t
            return b if drops and _keeps_zeros(build, op, b, a) else None
        case ir.Reshape(x, shape) if isinstance(inner := build.nodes[x], ir.Reshape):
            same = build.types[inner.x] == t
            return inner.x if same else build.add(ir.Reshape(inner.x, shape), build.locs[ref])
        case ir.Reshape(x) | ir.Broadcast(x) | ir.Cast(x) | ir.Slice(x) if build.types[x] == t:
            return x
        case ir.Permute(x, perm) if perm == tuple(range(len(perm))):
            return x
        case ir.Reshape(x) | ir.Broadcast(x) if isinstance(inner := build.nodes[x], ir.Const):
            assert isinstance(t, ir.Type)
            return build.add(ir.Const(inner.value, t), build.locs[ref])
        case ir.Pull(x, m) if isinstance(inner := build.nodes[x], ir.Const):
            mt = build.types[m]
            assert isinstance(mt, ir.MapType)
            return build.add(ir.Const(inner.value, replace(inner.type, space=mt.dom)), build.locs[ref])
        case _:
            return None


def _is(build: Builder, ref: ir.Ref, value: float) -> bool:
    node = build.nodes[ref]
    return isinstance(node, ir.Const) and not isinstance(node.value, bool) and node.value == value


def _keeps_zeros(build: Builder, op: Op, x: ir.Ref, neutral: ir.Ref) -> bool:
    """Whether `op` with the constant `neutral` also leaves -0.0 as it is, where `x` may be that."""
    node = build.nodes[neutral]
    assert isinstance(node, ir.Const)
    if node.value != 0:
        return True
    wanted = -1 if op is Op.add else 1
    return math.copysign(1, node.value) == wanted or never_minus_zero(build.nodes, build.types, x)


def _fold_constant(build: Builder, ref: ir.Ref, node: ir.Pointwise) -> ir.Ref:
    t = build.types[ref]
    assert isinstance(t, ir.Type)
    consts = [build.nodes[a] for a in node.args]
    values = [torch.tensor(c.value, dtype=TORCH_DTYPE[c.type.dtype]) for c in consts if isinstance(c, ir.Const)]
    scalars = [ir.Type(UNIT, (), c.type.dtype) for c in consts if isinstance(c, ir.Const)]
    folded = apply(ir.Pointwise(node.op, tuple(range(len(values)))), values, scalars, lambda _: 1)
    return build.add(ir.Const(folded.item(), t), build.locs[ref])


RULE = Rule("fold-constants", "f(const), x * 1, x - 0", "const, x, x", fold_constants)
