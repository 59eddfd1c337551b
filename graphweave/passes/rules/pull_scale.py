"""pull(x * s, m) -> pull(x, m) * pull(s, m) for s of one number a row: the inverse of `postpone`.

Legal always; a quotient becomes a product with the reciprocal, which is legal up to rounding. It pays where x is stored
anyway (a matrix product), so that x * s would be written only to be gathered: the number is gathered with the row
instead.
"""

from __future__ import annotations

from graphweave.core.types import UNIT, Op
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import numel
from graphweave.passes.factors import value_type
from graphweave.passes.rules.rule import Rule


def pull_scale(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """pull(x * s, m) -> pull(x, m) * pull(s, m)"""
    node = build.nodes[ref]
    if not isinstance(node, ir.Pull) or not isinstance(build.nodes[node.map], ir.MapOf):
        return None
    scaled, whole = build.nodes[node.x], value_type(build, node.x)
    if not isinstance(scaled, ir.Pointwise) or scaled.op not in (Op.mul, Op.div) or numel(whole.shape) < 2:
        return None
    parts = [value_type(build, r) for r in scaled.args]
    narrow = [numel(t.shape) == 1 for t in parts]
    if (
        not whole.dtype.is_float
        or any(t.space == UNIT for t in parts)
        or sum(narrow) != 1
        or (scaled.op is Op.div and not narrow[1])
    ):
        return None
    loc, (a, b) = build.locs[ref], scaled.args
    if scaled.op is Op.div:
        one = build.add(ir.Const(1.0, ir.Type(UNIT, (), whole.dtype)), loc)
        b = build.add(ir.Pointwise(Op.div, (one, b)), loc)
    return build.add(ir.Pointwise(Op.mul, tuple(build.add(ir.Pull(r, node.map), loc) for r in (a, b))), loc)


RULE = Rule("pull-scale", "pull(x * s, m)", "pull(x, m) * pull(s, m)", pull_scale)
