"""push(x) W <-> push(x W), and the transposes: gram(pull(a, m), g) <-> gram(a, push(g, m)).

Legal for sums: both sides are linear. Which side is cheaper depends on the numbers of rows and the widths: a product
belongs where the rows are fewer, a push where the rows are narrower. If weights are chosen along a map, a product that
moves into a push chooses them along the composition of the two maps; it moves out of a push only if its map is such a
composition. Rows without edges are not pulled, so they add nothing to the gram of a pull: in the gram of a push they
are set to 0 where they may not be finite (1 / degree).
"""

from __future__ import annotations

from dataclasses import dataclass

from graphweave.core.lines import Location
from graphweave.core.types import Fold, Op
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import Gram, MapOf, MapType, MatMul, Node, Pointwise, Pull, Push, Ref
from graphweave.passes.composed_maps import above, composed, follows
from graphweave.passes.factors import Factor, below_reshapes, multiplied, negated, shaped, value_type
from graphweave.passes.finite import finite_without_edges
from graphweave.passes.rules.factor import where_edges
from graphweave.passes.rules.rule import Rule


@dataclass(frozen=True, slots=True)
class Pushed:
    """`sign` times the push `push` (a sum) times `scales`, each of which is one number a row."""

    push: Push
    scales: tuple[Factor, ...] = ()
    sign: int = 1


def into_push(build: Builder, ref: Ref) -> Ref | None:
    """push(x, m) W[t] -> push(x W[t . m], m); gram(push(x, m), g, t) -> gram(x, pull(g, m), t . m)"""
    node = build.nodes[ref]
    for side, end in enumerate(ends(node)):
        push = _sum(build, end)
        if push is not None:
            return moved_into(build, ref, side, Pushed(push))
    return None


def ends(node: Node) -> tuple[Ref, ...]:
    """The operands of a product in which it is linear row by row."""
    match node:
        case MatMul(x):
            return (x,)
        case Gram(x, y):
            return x, y
        case _:
            return ()


def moved_into(build: Builder, ref: Ref, side: int, found: Pushed) -> Ref:
    """The product `ref`, one of whose `ends` is `found`, computed on the rows that are pushed."""
    node, loc, m = build.nodes[ref], build.locs[ref], found.push.map
    assert isinstance(node, MatMul | Gram)
    x = shaped(build, found.push.x, value_type(build, ends(node)[side]).shape, loc)
    t = composed(build, node.map, m, loc)
    if isinstance(node, MatMul):
        inner = build.add(MatMul(x, node.w, t), loc)
        return build.add(Push(times_pulled(build, inner, found.scales, found.sign, m, loc), m, Fold.sum), loc)
    far = times_pulled(build, pulled(build, ends(node)[1 - side], m, loc), found.scales, found.sign, m, loc)
    return build.add(Gram(far, x, t) if side else Gram(x, far, t), loc)


def times_pulled(build: Builder, ref: Ref, scales: tuple[Factor, ...], sign: int, m: Ref, loc: Location) -> Ref:
    """`sign` times `ref` times `scales`, numbers of rows that are pulled along `m` for this."""
    t = value_type(build, ref)
    ones = (1,) * len(t.shape)
    numbers = [Factor(pulled(build, f.ref, m, loc), ones, f.inverse) for f in scales]
    return negated(build, multiplied(build, [Factor(ref, t.shape), *numbers], t.dtype, t.space, loc), sign, loc)


def pulled(build: Builder, ref: Ref, m: Ref, loc: Location) -> Ref:
    """pull(ref, m); pull(x, n . m) if `ref` is pull(x, n), and `ref` itself if it is shared data."""
    node, mt = build.nodes[ref], build.types[m]
    assert isinstance(mt, MapType)
    if value_type(build, ref).space != mt.cod:
        return ref  # shared data
    if isinstance(node, Pull) and isinstance(build.nodes[node.map], MapOf):
        both = composed(build, node.map, m, loc)
        assert both is not None
        return build.add(Pull(node.x, both), loc)
    return build.add(Pull(ref, m), loc)


def out_of_push(build: Builder, ref: Ref) -> Ref | None:
    """push(x W[t . m], m) -> push(x, m) W[t]; gram(pull(a, m), g, t . m) -> gram(a, push(g, m), t)"""
    loc, node = build.locs[ref], build.nodes[ref]
    match node:
        case Push(x, m, Fold.sum, 0) if isinstance(build.nodes[m], MapOf):
            product = build.nodes[x]
            if isinstance(product, MatMul) and follows(build, product.map, m):
                t = above(build, product.map, m, loc)
                return build.add(MatMul(build.add(Push(product.x, m, Fold.sum), loc), product.w, t), loc)
            if isinstance(product, Pointwise) and product.op is Op.neg:
                return build.add(Pointwise(Op.neg, (build.add(Push(product.args[0], m, Fold.sum), loc),)), loc)
            if isinstance(product, Pointwise) and len(product.op.facts.signs) == 2:
                return _apart(build, ref, node, product)
            return None
        case Gram(x, y, t):
            pulls = {
                side: p for side, end in enumerate((x, y)) if (p := _pull(build, end)) and follows(build, t, p.map)
            }
            if not pulls:
                return None
            side = min(pulls, key=lambda s: numel(value_type(build, (y, x)[s]).shape))  # the narrower end is pushed
            pull, shape = pulls[side], value_type(build, (x, y)[side]).shape
            a = shaped(build, _where_pulled(build, pull, loc), shape, loc)
            g = build.add(Push((y, x)[side], pull.map, Fold.sum), loc)
            return build.add(Gram(*((g, a) if side else (a, g)), above(build, t, pull.map, loc)), loc)
        case _:
            return None


def _apart(build: Builder, ref: Ref, push: Push, both: Pointwise) -> Ref | None:
    """push(a W + b) -> push(a W) + push(b), where a part is a product that can leave the push."""
    t = value_type(build, push.x)
    if not any(isinstance(n := build.nodes[r], MatMul) and follows(build, n.map, push.map) for r in both.args):
        return None
    if any(value_type(build, r) != t for r in both.args):
        return None
    loc = build.locs[ref]
    return build.add(Pointwise(both.op, tuple(build.add(Push(r, push.map, Fold.sum), loc) for r in both.args)), loc)


def _sum(build: Builder, ref: Ref) -> Push | None:
    node = build.nodes[below_reshapes(build, ref)]
    plain = isinstance(node, Push) and node.is_plain_sum
    return node if isinstance(node, Push) and plain and isinstance(build.nodes[node.map], MapOf) else None


def _pull(build: Builder, ref: Ref) -> Pull | None:
    node = build.nodes[below_reshapes(build, ref)]
    return node if isinstance(node, Pull) and isinstance(build.nodes[node.map], MapOf) else None


def _where_pulled(build: Builder, pull: Pull, loc: Location) -> Ref:
    """The operand of `pull`, with 0 in rows that it does not read if those may not be finite: 0 times NaN is not 0."""
    if finite_without_edges(build, pull.x, pull.map):
        return pull.x
    return where_edges(build, pull.x, pull.map, value_type(build, pull.x).dtype, loc)


INTO = Rule("linear-into-push", "push(x) W, gram(push(x, m), g)", "push(x W), gram(x, pull(g, m))", into_push)
OUT = Rule("linear-out-of-push", "push(x W), gram(pull(a, m), g)", "push(x) W, gram(a, push(g, m))", out_of_push)
