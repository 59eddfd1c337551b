"""x / pull(b, m) -> x * pull(1 / b, m), x / w -> x * (1 / w): one division a row of b, or one in all, not one an edge.

Legal up to rounding, for divisors that are not denormal (1 / b must not overflow). It pays where edges outnumber rows.
"""

from __future__ import annotations

from graphweave.core.types import UNIT, Op
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import Const, MapOf, Pointwise, Pull, Ref, Reshape, Type
from graphweave.passes.factors import value_type
from graphweave.passes.rules.rule import Rule


def reciprocal(build: Builder, ref: Ref) -> Ref | None:
    """x / pull(b, m) -> x * pull(1 / b, m); x / w -> x * (1 / w)"""
    node = build.nodes[ref]
    if not isinstance(node, Pointwise) or node.op is not Op.div or not value_type(build, ref).dtype.is_float:
        return None
    x, by = node.args
    if isinstance(build.nodes[x], Const) or value_type(build, x).space == UNIT:
        return None
    loc, divisor = build.locs[ref], value_type(build, by)
    if divisor.space == UNIT:
        one = build.add(Const(1.0, Type(UNIT, (), divisor.dtype)), loc)
        return build.add(Pointwise(Op.mul, (x, build.add(Pointwise(Op.div, (one, by)), loc))), loc)
    seen = build.nodes[by]
    pull = build.nodes[seen.x] if isinstance(seen, Reshape) else seen
    if not isinstance(pull, Pull) or not isinstance(build.nodes[pull.map], MapOf):
        return None
    t = value_type(build, pull.x)
    below = build.add(Reshape(pull.x, seen.shape), loc) if isinstance(seen, Reshape) else pull.x
    one = build.add(Const(1.0, Type(UNIT, (), t.dtype)), loc)
    inverse = build.add(Pull(build.add(Pointwise(Op.div, (one, below)), loc), pull.map), loc)
    return build.add(Pointwise(Op.mul, (x, inverse)), loc)


RULE = Rule("reciprocal", "x / pull(b, m)", "x * pull(1 / b, m)", reciprocal)
