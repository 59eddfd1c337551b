"""push(c * (a + b)) -> push(c * a) + push(c * b), and the same for differences.

Legal for sums. It pays where one of the two parts has factors that all edges of a row share: these then leave them.
"""

from __future__ import annotations

from dataclasses import replace

from graphweave.core.types import Fold
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.passes.factors import (
    Product,
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
from graphweave.passes.rules.feature_sum import has_own, row_sum
from graphweave.passes.rules.rule import Rule


def distribute(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """push(c * (a + b)) -> push(c * a) + push(c * b)"""
    push = build.nodes[ref]
    if not is_edge_sum(build, push):
        return None
    assert isinstance(push, ir.Push)
    p = product(build, push.x)
    for f in p.factors:
        both = _sum(build, f.ref)
        if both is None or f.inverse or not any(_gains(build, r, push.map) for r in both.args):
            continue
        others = [g for g in p.factors if g is not f]
        loc, t = build.locs[ref], value_type(build, ref)
        parts = []
        for r in both.args:
            part = _as(product(build, r), _shape_of(build, both), f.shape)
            value = multiplied(build, [*others, *part.factors], t.dtype, value_type(build, push.x).space, loc)
            pushed = build.add(ir.Push(shaped(build, value, p.shape, loc), push.map, Fold.sum), loc)
            parts.append(negated(build, pushed, part.sign, loc))
        out = build.add(ir.Pointwise(both.op, tuple(parts)), loc)
        return negated(build, shaped(build, out, t.shape, loc), p.sign, loc)
    return None


def _sum(build: Builder, ref: ir.Ref) -> ir.Pointwise | None:
    node = build.nodes[ref]
    while isinstance(node, ir.Reshape) and same_but_ones(value_type(build, node.x).shape, node.shape):
        node = build.nodes[node.x]
    return node if isinstance(node, ir.Pointwise) and len(node.op.facts.signs) == 2 else None


def _shape_of(build: Builder, both: ir.Pointwise) -> tuple[int, ...]:
    a, b = (value_type(build, r).shape for r in both.args)
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    return tuple(m if m != 1 else n for m, n in zip(a, b, strict=True))


def _as(part: Product, both: tuple[int, ...], shape: tuple[int, ...]) -> Product:
    """`part`, an operand of a sum of shape `both`, as a factor of a product that views the sum as `shape`."""
    ones = (1,) * (len(both) - len(part.shape))
    return Product(
        part.sign, tuple(realigned(replace(f, shape=ones + f.shape), both, shape) for f in part.factors), shape
    )  # fmt: skip


def _gains(build: Builder, ref: ir.Ref, m: ir.Ref) -> bool:
    """Whether the product `ref`, once it stands alone, has a factor that leaves the edges."""
    for f in product(build, ref).factors:
        total = row_sum(build, f.ref)
        if lifted(build, f.ref, m) is not None or (total is not None and has_own(build, total.x, m)):
            return True
    return False


RULE = Rule("distribute", "push(c * (a + b), m)", "push(c * a, m) + push(c * b, m)", distribute)
