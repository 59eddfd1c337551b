"""[a ; b] W -> a W1 + b W2, (a + b) W -> a W + b W, and the same for differences, signs and gradients of the weight.

Legal always. It pays where a part then is a pull (`postpone`): the attention score of [z_u ; z_v] and the message
(x_u - x_v) W are sums of two values of nodes (Zhang et al., section 4). Of the transposed forms, which gradients are:
a slice of a product is the product with a slice of the weight, and the gram of a sum is the sum of grams.
"""

from __future__ import annotations

from functools import reduce

from graphweave.core.types import UNIT, Fold, Op
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import Concat, Gram, MatMul, Pointwise, Reduce, Ref, Slice
from graphweave.passes.products import value_type
from graphweave.passes.rules.rule import Rule


def split_linear(build: Builder, ref: Ref) -> Ref | None:
    """[a ; b] W -> a W1 + b W2; (a + b) W -> a W + b W"""
    node = build.nodes[ref]
    match node:
        case MatMul(x, w, None):
            return _product(build, ref, x, w)
        case Gram(x, y, None):
            return _gram(build, ref, x, y)
        case Reduce(x, Fold.sum, dims) if isinstance(inner := build.nodes[x], Concat) and inner.dim in dims:
            return _feature_sum(build, ref, node, inner)
        case Slice(x, 0) if isinstance(inner := build.nodes[x], MatMul) and inner.map is None:
            w = build.add(Slice(inner.w, 1, node.start, node.stop, node.step), build.locs[ref])
            return build.add(MatMul(inner.x, w), build.locs[ref])
        case _:
            return None


def _product(build: Builder, ref: Ref, x: Ref, w: Ref) -> Ref | None:
    loc, whole = build.locs[ref], value_type(build, ref).shape
    match build.nodes[x]:
        case Concat(xs, _) if not any(value_type(build, r).space == UNIT for r in xs):
            parts, start = [], 0
            for r in xs:
                stop = start + value_type(build, r).shape[0]
                parts.append(build.add(MatMul(r, build.add(Slice(w, 0, start, stop), loc)), loc))
                start = stop
            return reduce(lambda a, b: build.add(Pointwise(Op.add, (a, b)), loc), parts)
        case Pointwise(Op.add | Op.sub as op, args) if _alike(build, x, args):
            return build.add(Pointwise(op, tuple(build.add(MatMul(a, w), loc) for a in args)), loc)
        case Pointwise(Op.neg, (a,)):
            out = build.add(MatMul(a, w), loc)
            assert value_type(build, out).shape == whole
            return build.add(Pointwise(Op.neg, (out,)), loc)
        case _:
            return None


def _gram(build: Builder, ref: Ref, x: Ref, y: Ref) -> Ref | None:
    loc = build.locs[ref]
    for side, r in enumerate((x, y)):

        def gram(part: Ref, side: int = side) -> Ref:
            return build.add(Gram(part, y) if side == 0 else Gram(x, part), loc)

        match build.nodes[r]:
            case Concat(xs, _) if not any(value_type(build, part).space == UNIT for part in xs):
                return build.add(Concat(tuple(map(gram, xs)), side), loc)
            case Pointwise(Op.add | Op.sub as op, args) if _alike(build, r, args):
                return build.add(Pointwise(op, tuple(map(gram, args))), loc)
            case Pointwise(Op.neg, (a,)):
                return build.add(Pointwise(Op.neg, (gram(a),)), loc)
    return None


def _feature_sum(build: Builder, ref: Ref, total: Reduce, pieces: Concat) -> Ref:
    loc = build.locs[ref]
    parts = [build.add(Reduce(r, Fold.sum, total.dims, total.keepdim), loc) for r in pieces.xs]
    return reduce(lambda a, b: build.add(Pointwise(Op.add, (a, b)), loc), parts)


def _alike(build: Builder, whole: Ref, parts: tuple[Ref, ...]) -> bool:
    """Whether no part of a sum is broadcast: each is a row of its own."""
    t = value_type(build, whole)
    return all(value_type(build, r) == t for r in parts)


RULE = Rule("split-linear", "[a ; b] W, (a + b) W", "a W1 + b W2, a W + b W", split_linear)
