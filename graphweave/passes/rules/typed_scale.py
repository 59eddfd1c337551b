"""typed(x * s, W, t) -> typed(x, W, t) * s for s of one number a row.

Legal always. Where x is pulled, the typed product then gathers its rows itself, and no product of rows and numbers has
to be stored for it.
"""

from __future__ import annotations

from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import MapOf, MatMul, Pull, Ref
from graphweave.passes.products import Factor, below_reshapes, multiplied, negated, product, shaped, value_type
from graphweave.passes.rules.rule import Rule


def typed_scale(build: Builder, ref: Ref) -> Ref | None:
    """typed(pull(x, m) * s, W, t) -> typed(pull(x, m), W, t) * s"""
    node = build.nodes[ref]
    if not isinstance(node, MatMul) or node.map is None:
        return None
    shape = value_type(build, node.x).shape
    p = product(build, node.x)
    rows = [f for f in p.factors if numel(f.shape) != 1]
    scales = [f for f in p.factors if numel(f.shape) == 1]
    if len(rows) != 1 or rows[0].inverse or not (scales or p.sign < 0) or numel(rows[0].shape) != numel(shape):
        return None
    pull = build.nodes[below_reshapes(build, rows[0].ref)]
    if not isinstance(pull, Pull) or not isinstance(build.nodes[pull.map], MapOf):
        return None
    loc, t = build.locs[ref], value_type(build, ref)
    inner = build.add(MatMul(shaped(build, rows[0].ref, shape, loc), node.w, node.map), loc)
    ones = (1,) * len(t.shape)
    factors = [Factor(inner, t.shape), *(Factor(f.ref, ones, f.inverse) for f in scales)]
    return negated(build, multiplied(build, factors, t.dtype, t.space, loc), p.sign, loc)


RULE = Rule("typed-scale", "typed(x * s, W, t)", "typed(x, W, t) * s", typed_scale)
