"""x / pull(b, m) -> x * pull(1 / b, m), x / w -> x * (1 / w): one division a row of b, or one in all, not one an edge.

Legal up to rounding, for divisors that are not denormal (1 / b must not overflow). It pays where edges outnumber rows.
"""

from __future__ import annotations

from graphweave.core.types import UNIT, Op
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.passes.factors import value_type
from graphweave.passes.rules.rule import Rule


def reciprocal(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """x / pull(b, m) -> x * pull(1 / b, m); x / w -> x * (1 / w)"""
    node = build.nodes[ref]
    if not isinstance(node, ir.Pointwise) or node.op is not Op.div or not value_type(build, ref).dtype.is_float:
        return None
    x, by = node.args
    if isinstance(build.nodes[x], ir.Const) or value_type(build, x).space == UNIT:
        return None
    loc, divisor = build.locs[ref], value_type(build, by)
    if divisor.space == UNIT:
        one = build.add(ir.Const(1.0, ir.Type(UNIT, (), divisor.dtype)), loc)
        return build.add(ir.Pointwise(Op.mul, (x, build.add(ir.Pointwise(Op.div, (one, by)), loc))), loc)
    seen = build.nodes[by]
    pull = build.nodes[seen.x] if isinstance(seen, ir.Reshape) else seen
    if not isinstance(pull, ir.Pull) or not isinstance(build.nodes[pull.map], ir.MapOf):
        return None
    t = value_type(build, pull.x)
    below = build.add(ir.Reshape(pull.x, seen.shape), loc) if isinstance(seen, ir.Reshape) else pull.x
    one = build.add(ir.Const(1.0, ir.Type(UNIT, (), t.dtype)), loc)
    inverse = build.add(ir.Pull(build.add(ir.Pointwise(Op.div, (one, below)), loc), pull.map), loc)
    return build.add(ir.Pointwise(Op.mul, (x, inverse)), loc)


RULE = Rule("reciprocal", "x / pull(b, m)", "x * pull(1 / b, m)", reciprocal)
