"""[a ; b] W -> a W1 + b W2, (a + b) W -> a W + b W, and the same for differences, signs and gradients of the weight.

Legal always. It pays where a part then is a pull (`postpone`): the attention score of [z_u ; z_v] and the message
(x_u - x_v) W are sums of two values of nodes (Zhang et al., section 4). Gradients have the transposed forms: a slice of
a product is the product with a slice of the weight, and the gram of a sum is the sum of grams.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import accumulate

from graphweave.core.types import UNIT, Fold, Op
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.passes.factors import below_reshapes, shaped, value_type
from graphweave.passes.rules.linear_through_push import ends
from graphweave.passes.rules.rule import Rule


def split_linear(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """[a ; b] W -> a W1 + b W2; (a + b) W -> a W + b W"""
    node, loc = build.nodes[ref], build.locs[ref]
    match node:
        case ir.MatMul() | ir.Gram():
            return next((new for side in range(len(ends(node))) if (new := split(build, ref, side)) is not None), None)
        case ir.Reduce(x, Fold.sum, dims) if isinstance(inner := build.nodes[x], ir.Concat) and inner.dim in dims:
            return _feature_sum(build, ref, node, inner)
        case ir.Slice(x, dim) if isinstance(inner := build.nodes[x], ir.MatMul):
            if dim != len(value_type(build, x).shape) - 1:
                return None
            w = build.add(ir.Slice(inner.w, dim + 1, node.start, node.stop, node.step), loc)
            return build.add(ir.MatMul(inner.x, w, inner.map), loc)
        case _:
            return None


def split(build: Builder, ref: ir.Ref, side: int) -> ir.Ref | None:
    """The product `ref` as products with the parts of its end `side`, whatever the map; None if that has no parts."""
    node, loc = build.nodes[ref], build.locs[ref]
    assert isinstance(node, ir.MatMul | ir.Gram)
    whole = ends(node)[side]
    shape = value_type(build, whole).shape
    last = len(shape) - 1

    def part(x: ir.Ref) -> ir.Ref:
        if isinstance(node, ir.Gram):
            return build.add(replace(node, y=x) if side else replace(node, x=x), loc)
        return build.add(ir.MatMul(x, node.w, node.map), loc)

    def summand(x: ir.Ref) -> ir.Ref:
        return part(shaped(build, x, shape, loc))

    inner = below_reshapes(build, whole)
    match build.nodes[inner]:
        case ir.Concat(xs, dim) if inner == whole and dim == last and _on_rows(build, xs):
            if isinstance(node, ir.Gram):
                return build.add(ir.Concat(tuple(map(part, xs)), last + side), loc)
            stops = list(accumulate(value_type(build, r).shape[last] for r in xs))
            ranges = zip(xs, [0, *stops], stops, strict=False)
            ws = ((r, build.add(ir.Slice(node.w, last, start, stop), loc)) for r, start, stop in ranges)
            parts = [build.add(ir.MatMul(r, w, node.map), loc) for r, w in ws]
            return reduce(lambda a, b: build.add(ir.Pointwise(Op.add, (a, b)), loc), parts)
        case ir.Pointwise(op, args) if op.facts.signs and _alike(build, inner, args):
            return build.add(ir.Pointwise(op, tuple(map(summand, args))), loc)
        case _:
            return None


def _on_rows(build: Builder, xs: tuple[ir.Ref, ...]) -> bool:
    return not any(value_type(build, r).space == UNIT for r in xs)


def _feature_sum(build: Builder, ref: ir.Ref, total: ir.Reduce, whole: ir.Concat) -> ir.Ref:
    loc = build.locs[ref]
    parts = [build.add(ir.Reduce(r, Fold.sum, total.dims, total.keepdim), loc) for r in whole.xs]
    return reduce(lambda a, b: build.add(ir.Pointwise(Op.add, (a, b)), loc), parts)


def _alike(build: Builder, whole: ir.Ref, parts: tuple[ir.Ref, ...]) -> bool:
    """Whether no part of a sum is broadcast: each has the type of the whole."""
    t = value_type(build, whole)
    return all(value_type(build, r) == t for r in parts)


RULE = Rule("split-linear", "[a ; b] W, (a + b) W", "a W1 + b W2, a W + b W", split_linear)
