"""part(join(xs), k) -> xs[k], join(part(x, 0), part(x, 1), ...) -> x, and join(a, 0) + join(0, b) -> join(a, b).

Legal always: joining copies rows, and parts are those rows. The sum is what PyTorch makes of the gradients of slices
of rows, each of which it pads with zeros; at most one addend of each segment may differ from zero. It pays because
nothing is copied, or once instead of once for each segment.
"""

from __future__ import annotations

from graphweave.core.lines import Location
from graphweave.core.types import UNIT, Op
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.passes.factors import value_type
from graphweave.passes.rules.rule import Rule


def join_parts(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """part(join(xs), k) -> xs[k], join(part(x, 0), part(x, 1), ...) -> x, join(a, 0) + join(0, b) -> join(a, b)"""
    match build.nodes[ref]:
        case ir.Part(x, of, at) if isinstance(join := build.nodes[x], ir.Join) and _segments(build, join) == of:
            return join.xs[at]
        case ir.Join(xs, space):
            return _whole(build, xs, space)
        case ir.Pointwise(Op.add, (a, b)):
            return _sum(build, a, b, build.locs[ref])
    return None


def _segments(build: Builder, join: ir.Join) -> tuple[object, ...]:
    return tuple(value_type(build, x).space for x in join.xs)


def _whole(build: Builder, xs: tuple[ir.Ref, ...], space: object) -> ir.Ref | None:
    first = build.nodes[xs[0]]
    if not isinstance(first, ir.Part) or len(first.of) != len(xs) or value_type(build, first.x).space != space:
        return None
    return first.x if all(build.nodes[x] == ir.Part(first.x, first.of, k) for k, x in enumerate(xs)) else None


def _sum(build: Builder, a: ir.Ref, b: ir.Ref, loc: Location) -> ir.Ref | None:
    one, other = build.nodes[a], build.nodes[b]
    if not isinstance(one, ir.Join) or not isinstance(other, ir.Join) or one.space != other.space:
        return None
    t, u = value_type(build, a), value_type(build, b)
    if t != u or t.space == UNIT or _segments(build, one) != _segments(build, other):
        return None
    xs = [x if _is_zero(build, y) else y if _is_zero(build, x) else None for x, y in zip(one.xs, other.xs, strict=True)]
    return None if None in xs else build.add(ir.Join(tuple(x for x in xs if x is not None), one.space), loc)


def _is_zero(build: Builder, ref: ir.Ref) -> bool:
    node = build.nodes[ref]
    return isinstance(node, ir.Const) and node.value == 0


RULE = Rule(
    "join-parts", "part([a ; b], 0), [a ; 0] + [0 ; b] along rows", "a, [a ; b]", join_parts
)  # fmt: skip
