"""push(x) W <-> push(x W), and the transposes: gram(pull(a, m), g) <-> gram(a, push(g, m)).

Legal for sums: both sides are linear. Which side is cheaper depends on the numbers of rows and the widths: a product
belongs where the rows are fewer, a push where the rows are narrower. If weights are chosen along a map, a product that
moves into a push chooses them along the composition of the two maps; it moves out of a push only if its map is such a
composition. Rows without edges are not pulled, so they add nothing to the gram of a pull: in the gram of a push they
are set to 0 where they may not be finite (1 / degree). Numbers of edges, such as a mask or a weight, are no obstacle to
a product that leaves a push: they are multiplied with what is pushed. Nor is a bias, which is added once for each edge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphweave.core.lines import Location
from graphweave.core.types import UNIT, Fold, Op, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import numel
from graphweave.passes.composed_maps import above, composed, follows
from graphweave.passes.factors import Factor, below_reshapes, multiplied, negated, shaped, value_type
from graphweave.passes.finite import finite_without_edges
from graphweave.passes.rules.factor import factor, where_edges
from graphweave.passes.rules.rule import Rule
from graphweave.passes.rules.scale_out import Scaled, peeled, times


@dataclass(frozen=True, slots=True)
class Pushed:
    """`sign` times the push `push` (a sum) times `scales`, each of which is one number a row."""

    push: ir.Push
    scales: tuple[Factor, ...] = ()
    sign: int = 1


def into_push(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """push(x, m) W[t] -> push(x W[t . m], m); gram(push(x, m), g, t) -> gram(x, pull(g, m), t . m)"""
    node = build.nodes[ref]
    for side, end in enumerate(ends(node)):
        push = _sum(build, end)
        if push is not None:
            return moved_into(build, ref, side, Pushed(push))
    return None


def ends(node: ir.Node) -> tuple[ir.Ref, ...]:
    """The operands of a product in which it is linear row by row."""
    match node:
        case ir.MatMul(x):
            return (x,)
        case ir.Gram(x, y):
            return x, y
        case _:
            return ()


def moved_into(build: Builder, ref: ir.Ref, side: int, found: Pushed) -> ir.Ref:
    """The product `ref`, one of whose `ends` is `found`, computed on the rows that are pushed."""
    node, loc, m = build.nodes[ref], build.locs[ref], found.push.map
    assert isinstance(node, ir.MatMul | ir.Gram)
    x = shaped(build, found.push.x, value_type(build, ends(node)[side]).shape, loc)
    t = composed(build, node.map, m, loc)
    if isinstance(node, ir.MatMul):
        inner = build.add(ir.MatMul(x, node.w, t), loc)
        return build.add(ir.Push(times_pulled(build, inner, found.scales, found.sign, m, loc), m, Fold.sum), loc)
    far = times_pulled(build, pulled(build, ends(node)[1 - side], m, loc), found.scales, found.sign, m, loc)
    return build.add(ir.Gram(far, x, t) if side else ir.Gram(x, far, t), loc)


def times_pulled(
    build: Builder, ref: ir.Ref, scales: tuple[Factor, ...], sign: int, m: ir.Ref, loc: Location
) -> ir.Ref:
    """`sign` times `ref` times `scales`, numbers of rows that are pulled along `m` for this."""
    t = value_type(build, ref)
    ones = (1,) * len(t.shape)
    numbers = [Factor(pulled(build, f.ref, m, loc), ones, f.inverse) for f in scales]
    return negated(build, multiplied(build, [Factor(ref, t.shape), *numbers], t.dtype, t.space, loc), sign, loc)


def pulled(build: Builder, ref: ir.Ref, m: ir.Ref, loc: Location) -> ir.Ref:
    """pull(ref, m); pull(x, n . m) if `ref` is pull(x, n), and `ref` itself if it is shared data."""
    node, mt = build.nodes[ref], build.types[m]
    assert isinstance(mt, ir.MapType)
    if value_type(build, ref).space != mt.cod:
        return ref  # shared data
    if isinstance(node, ir.Pull) and isinstance(build.nodes[node.map], ir.MapOf):
        both = composed(build, node.map, m, loc)
        assert both is not None
        return build.add(ir.Pull(node.x, both), loc)
    return build.add(ir.Pull(ref, m), loc)


def out_of_push(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """push(x W[t . m] * s, m) -> push(x * s, m) W[t]; gram(pull(a, m) * s, g, t . m) -> gram(a, push(g * s, m), t)"""
    match build.nodes[ref]:
        case ir.Push(_, m, Fold.sum, 0) as push if isinstance(build.nodes[m], ir.MapOf):
            return _pushed_before(build, ref, push)
        case ir.Gram() as gram:
            return _gram_of_rows(build, ref, gram)
        case _:
            return None


def _pushed_before(build: Builder, ref: ir.Ref, push: ir.Push) -> ir.Ref | None:
    """The sum of products, or of sums with a product, as a product of the sum."""
    m, loc, found = push.map, build.locs[ref], peeled(build, push.x)
    positive = replace(found, sign=1)
    match build.nodes[found.rows]:
        case ir.MatMul(x, w, t) if follows(build, t, m):
            rows = build.add(ir.Push(times(build, x, positive, loc), m, Fold.sum), loc)
            out = build.add(ir.MatMul(rows, w, above(build, t, m, loc)), loc)
        case ir.Pointwise(op, args) if len(op.facts.signs) == 2 and any(_leaves(build, r, m) for r in args):
            space = value_type(build, found.rows).space
            out = build.add(ir.Pointwise(op, tuple(_pushed_part(build, r, space, positive, m, loc) for r in args)), loc)
        case _:
            return None
    return negated(build, shaped(build, out, value_type(build, ref).shape, loc), found.sign, loc)


def _leaves(build: Builder, ref: ir.Ref, m: ir.Ref) -> bool:
    """Whether `ref` is a product, up to numbers of rows, that can leave a push along `m`."""
    node = build.nodes[peeled(build, ref).rows]
    return isinstance(node, ir.MatMul) and follows(build, node.map, m)


def _pushed_part(build: Builder, ref: ir.Ref, space: Space, scales: Scaled, m: ir.Ref, loc: Location) -> ir.Ref:
    """push(ref * scales, m), for a part of a sum on `space`. A bias is multiplied with the sum of the scales."""
    t = value_type(build, ref)
    if t.space == UNIT:
        ref = build.add(ir.Pointwise(Op.mul, (build.add(ir.Const(1.0, ir.Type(space, (), t.dtype)), loc), ref)), loc)
    pushed = build.add(ir.Push(times(build, ref, scales, loc), m, Fold.sum), loc)
    return (factor(build, pushed) if t.space == UNIT else None) or pushed


def _gram_of_rows(build: Builder, ref: ir.Ref, gram: ir.Gram) -> ir.Ref | None:
    """The gram of pulled rows, at the rows."""
    loc, ends_ = build.locs[ref], (gram.x, gram.y)
    found = {side: peeled(build, end) for side, end in enumerate(ends_)}
    pulls = {
        side: pull
        for side, of in found.items()
        if (pull := _pull(build, of.rows)) is not None and follows(build, gram.map, pull.map)
    }
    if not pulls:
        return None
    side = min(pulls, key=lambda s: numel(value_type(build, ends_[1 - s]).shape))  # the narrower end is pushed
    pull, scales = pulls[side], replace(found[side], sign=1)
    a = shaped(build, _where_pulled(build, pull, loc), value_type(build, ends_[side]).shape, loc)
    g = build.add(ir.Push(times(build, ends_[1 - side], scales, loc), pull.map, Fold.sum), loc)
    out = build.add(ir.Gram(*((g, a) if side else (a, g)), above(build, gram.map, pull.map, loc)), loc)
    return negated(build, out, found[side].sign, loc)


def _sum(build: Builder, ref: ir.Ref) -> ir.Push | None:
    node = build.nodes[below_reshapes(build, ref)]
    plain = isinstance(node, ir.Push) and node.is_plain_sum
    return node if isinstance(node, ir.Push) and plain and isinstance(build.nodes[node.map], ir.MapOf) else None


def _pull(build: Builder, ref: ir.Ref) -> ir.Pull | None:
    node = build.nodes[below_reshapes(build, ref)]
    return node if isinstance(node, ir.Pull) and isinstance(build.nodes[node.map], ir.MapOf) else None


def _where_pulled(build: Builder, pull: ir.Pull, loc: Location) -> ir.Ref:
    """The operand of `pull`, with 0 in rows that it does not read if those may not be finite: 0 times NaN is not 0."""
    if finite_without_edges(build, pull.x, pull.map):
        return pull.x
    return where_edges(build, pull.x, pull.map, value_type(build, pull.x).dtype, loc)


INTO = Rule("linear-into-push", "push(x) W, gram(push(x, m), g)", "push(x W), gram(x, pull(g, m))", into_push)
OUT = Rule(
    "linear-out-of-push",
    "push(x W * s), gram(pull(a, m) * s, g)",
    "push(x * s) W, gram(a, push(g * s, m))",
    out_of_push,
)
