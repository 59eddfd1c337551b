"""push(x) W <-> push(x W), and the transposes: gram(pull(a, m), g) <-> gram(a, push(g, m)).

Legal for sums: both sides are linear. Which side is cheaper depends on the numbers of rows and the widths: a product
belongs where the rows are fewer, a push where the rows are narrower. A factor of one number a row commutes with a
product as well, so that a mean (a sum divided by a count) is no obstacle. Rows without edges are not pulled, and so no
part of the gram of a pull: where they may not be finite (1 / degree), they are taken out of the gram of a push.
"""

from __future__ import annotations

from graphweave.core.types import UNIT, Fold, Op
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import Gram, MapOf, MatMul, Pointwise, Pull, Push, Ref, Reshape
from graphweave.passes.finite import finite_without_edges
from graphweave.passes.products import below_reshapes, value_type
from graphweave.passes.rules.factor import where_edges
from graphweave.passes.rules.rule import Rule


def into_push(build: Builder, ref: Ref) -> Ref | None:
    """push(x) W -> push(x W); gram(push(x, m), g) -> gram(x, pull(g, m))"""
    loc = build.locs[ref]
    match build.nodes[ref]:
        case MatMul(x, w, None) if (push := _sum(build, x)) is not None:
            return build.add(Push(build.add(MatMul(_flat(build, push.x, loc), w), loc), push.map, Fold.sum), loc)
        case Gram(x, y, None) if (push := _sum(build, x)) is not None:
            return build.add(Gram(_flat(build, push.x, loc), build.add(Pull(y, push.map), loc)), loc)
        case Gram(x, y, None) if (push := _sum(build, y)) is not None:
            return build.add(Gram(build.add(Pull(x, push.map), loc), _flat(build, push.x, loc)), loc)
        case _:
            return None


def out_of_push(build: Builder, ref: Ref) -> Ref | None:
    """push(x W) -> push(x) W; gram(pull(a, m), g) -> gram(a, push(g, m))"""
    loc, node = build.locs[ref], build.nodes[ref]
    match node:
        case Push(x, m, Fold.sum, 0) if isinstance(build.nodes[m], MapOf):
            product = build.nodes[x]
            if isinstance(product, MatMul) and product.map is None:
                return build.add(MatMul(build.add(Push(product.x, m, Fold.sum), loc), product.w), loc)
            if isinstance(product, Pointwise) and product.op is Op.neg:
                return build.add(Pointwise(Op.neg, (build.add(Push(product.args[0], m, Fold.sum), loc),)), loc)
            if isinstance(product, Pointwise) and product.op in (Op.add, Op.sub):
                return _apart(build, ref, node, product)
            return None
        case Gram(x, y, None) if (pull := _pull(build, x)) is not None:
            a = _flat(build, _where_pulled(build, pull, loc), loc)
            return build.add(Gram(a, build.add(Push(y, pull.map, Fold.sum), loc)), loc)
        case Gram(x, y, None) if (pull := _pull(build, y)) is not None:
            b = _flat(build, _where_pulled(build, pull, loc), loc)
            return build.add(Gram(build.add(Push(x, pull.map, Fold.sum), loc), b), loc)
        case _:
            return None


def scale_out(build: Builder, ref: Ref) -> Ref | None:
    """(x * s) W -> (x W) * s for s of one number a row, and quotients; gram(x * s, g) -> gram(x, g * s)"""
    loc = build.locs[ref]
    match build.nodes[ref]:
        case MatMul(x, w, None) if (parts := _scaled(build, x)) is not None:
            op, rows, s = parts
            return build.add(Pointwise(op, (build.add(MatMul(rows, w), loc), s)), loc)
        case Gram(x, y, None) if (parts := _scaled(build, x)) is not None:
            op, rows, s = parts
            return build.add(Gram(rows, build.add(Pointwise(op, (y, s)), loc)), loc)
        case Gram(x, y, None) if (parts := _scaled(build, y)) is not None:
            op, rows, s = parts
            return build.add(Gram(build.add(Pointwise(op, (x, s)), loc), rows), loc)
        case _:
            return None


def _apart(build: Builder, ref: Ref, push: Push, both: Pointwise) -> Ref | None:
    """push(a W + b) -> push(a W) + push(b), where a part is a product or a slice of one."""
    t = value_type(build, push.x)
    if not any(isinstance(n := build.nodes[r], MatMul) and n.map is None for r in both.args):
        return None
    if any(value_type(build, r) != t for r in both.args):
        return None
    loc = build.locs[ref]
    return build.add(Pointwise(both.op, tuple(build.add(Push(r, push.map, Fold.sum), loc) for r in both.args)), loc)


def _sum(build: Builder, ref: Ref) -> Push | None:
    node = build.nodes[below_reshapes(build, ref)]
    plain = isinstance(node, Push) and node.fold is Fold.sum and node.empty == 0
    return node if isinstance(node, Push) and plain and isinstance(build.nodes[node.map], MapOf) else None


def _pull(build: Builder, ref: Ref) -> Pull | None:
    node = build.nodes[below_reshapes(build, ref)]
    return node if isinstance(node, Pull) and isinstance(build.nodes[node.map], MapOf) else None


def _where_pulled(build: Builder, pull: Pull, loc: str) -> Ref:
    """What is pulled, where it may not be finite only in rows that are: the others would not be multiplied by 0."""
    if finite_without_edges(build, pull.x, pull.map):
        return pull.x
    return where_edges(build, pull.x, pull.map, value_type(build, pull.x).dtype, loc)


def _flat(build: Builder, ref: Ref, loc: str) -> Ref:
    shape = value_type(build, ref).shape
    return ref if len(shape) == 1 else build.add(Reshape(ref, (numel(shape),)), loc)


def _scaled(build: Builder, ref: Ref) -> tuple[Op, Ref, Ref] | None:
    """`ref` as rows times (or by) one number each."""
    node, whole = build.nodes[ref], value_type(build, ref)
    if not isinstance(node, Pointwise) or node.op not in (Op.mul, Op.div):
        return None
    a, b = node.args
    if _is_number(build, b) and value_type(build, a) == whole:
        return node.op, a, b
    if node.op is Op.mul and _is_number(build, a) and value_type(build, b) == whole:
        return node.op, b, a
    return None


def _is_number(build: Builder, ref: Ref) -> bool:
    t = value_type(build, ref)
    return numel(t.shape) == 1 and len(t.shape) <= 1 and (t.space != UNIT or t.shape == ())


INTO = Rule("linear-into-push", "push(x) W, gram(push(x, m), g)", "push(x W), gram(x, pull(g, m))", into_push)
OUT = Rule("linear-out-of-push", "push(x W), gram(pull(a, m), g)", "push(x) W, gram(a, push(g, m))", out_of_push)
SCALE = Rule("scale-out-of-linear", "(x * s) W, gram(x * s, g)", "(x W) * s, gram(x, g * s)", scale_out)
