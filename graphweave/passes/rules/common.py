"""where(c, x * a, x * b) -> x * where(c, a, b).

Legal always: both branches have the factor. It turns gradients of leaky ReLU, ELU and their kind into products.
"""

from __future__ import annotations

from collections import Counter

from graphweave.core.lines import Location
from graphweave.core.types import UNIT, DType, Op
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import Pointwise, Ref
from graphweave.passes.factors import Factor, Product, multiplied, negated, product, shaped, value_type
from graphweave.passes.rules.rule import Rule


def common(build: Builder, ref: Ref) -> Ref | None:
    """where(c, x * a, x * b) -> x * where(c, a, b)"""
    node = build.nodes[ref]
    if not isinstance(node, Pointwise) or node.op is not Op.where:
        return None
    cond, yes, no = node.args
    t = value_type(build, ref)
    if not t.dtype.is_float or value_type(build, yes).shape != t.shape or value_type(build, no).shape != t.shape:
        return None
    p, q = product(build, yes), product(build, no)
    both = Counter(p.factors) & Counter(q.factors)
    if not both:
        return None
    loc = build.locs[ref]
    branches = [_without(build, r, both, t.dtype, loc) for r in (p, q)]
    chosen = build.add(Pointwise(Op.where, (cond, *branches)), loc)
    own = value_type(build, chosen).shape
    factors = [*both.elements(), Factor(chosen, (1,) * (len(t.shape) - len(own)) + own)]
    return shaped(build, multiplied(build, factors, t.dtype, t.space, loc), t.shape, loc)


def _without(build: Builder, p: Product, shared: Counter[Factor], dtype: DType, loc: Location) -> Ref:
    left = (Counter(p.factors) - shared).elements()
    return negated(build, multiplied(build, left, dtype, UNIT, loc), p.sign, loc)


RULE = Rule("common-factor", "where(c, x * a, x * b)", "x * where(c, a, b)", common)
