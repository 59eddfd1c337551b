"""push(c * sum_i(x_i)) -> sum_i(push(c * x_i)).

Legal for sums. It pays where x has factors that all edges of a row share, which then leave the edges (`factor`): the
gradient of an edge softmax, sum_e a_e <g_v, z_e>, becomes <g_v, sum_e a_e z_e>, whose inner sum the forward has too.
"""

from __future__ import annotations

from graphweave.core.types import UNIT, Fold
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import numel
from graphweave.passes.factors import (
    Factor,
    lifted,
    multiplied,
    negated,
    product,
    realigned,
    same_but_ones,
    shaped,
    value_type,
)
from graphweave.passes.rules.factor import is_edge_sum
from graphweave.passes.rules.rule import Rule


def feature_sum(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """push(c * sum_i(x_i)) -> sum_i(push(c * x_i))"""
    push = build.nodes[ref]
    if not is_edge_sum(build, push):
        return None
    assert isinstance(push, ir.Push) and isinstance(build.nodes[push.map], ir.MapOf)
    p = product(build, push.x)
    for f in p.factors:
        total = row_sum(build, f.ref)
        if (
            total is not None
            and not f.inverse
            and numel(f.shape) == numel(p.shape)
            and has_own(build, total.x, push.map)
        ):
            others = tuple(g for g in p.factors if g is not f)
            return _moved(build, ref, push, p.sign, p.shape, total, others)
    return None


def row_sum(build: Builder, ref: ir.Ref) -> ir.Reduce | None:
    """The sum over features whose value `ref` is, up to reshapes that add or drop dims of size 1."""
    node = build.nodes[ref]
    while isinstance(node, ir.Reshape) and same_but_ones(value_type(build, node.x).shape, node.shape):
        node = build.nodes[node.x]
    return node if isinstance(node, ir.Reduce) and node.fold is Fold.sum else None


def has_own(build: Builder, ref: ir.Ref, m: ir.Ref) -> bool:
    """Whether the product `ref` has a factor that is pulled along `m`, and another that is not."""
    refs = [f.ref for f in product(build, ref).factors]
    own = [r for r in refs if lifted(build, r, m) is not None]
    return len(own) < len(refs) and any(value_type(build, r).space != UNIT for r in own)


def _moved(
    build: Builder,
    ref: ir.Ref,
    push: ir.Push,
    sign: int,
    shape: tuple[int, ...],
    total: ir.Reduce,
    others: tuple[Factor, ...],
) -> ir.Ref:
    loc, t = build.locs[ref], value_type(build, ref)
    inside = value_type(build, total.x)
    kept = tuple(1 if d in total.dims else n for d, n in enumerate(inside.shape))
    y = product(build, total.x)
    factors = (*(realigned(g, shape, kept) for g in others), *y.factors)
    sign *= y.sign
    value = shaped(build, multiplied(build, factors, t.dtype, inside.space, loc), inside.shape, loc)
    pushed = build.add(ir.Push(value, push.map, Fold.sum), loc)
    out = build.add(ir.Reduce(pushed, Fold.sum, total.dims, True), loc)
    return negated(build, shaped(build, out, t.shape, loc), sign, loc)


RULE = Rule("feature-sum", "push(c * sum_i(x_i))", "sum_i(push(c * x_i))", feature_sum)
