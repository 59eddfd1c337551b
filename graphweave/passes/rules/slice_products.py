"""(x * w)[i:j] -> x * w[i:j], where only shared data has the sliced dim.

Legal always: each element is one product. It always pays, as a slice of shared data is made once and not for each row.
Sums over edges then see shared factors, which leave them: such slices are the gradients of a concatenation's parts.
"""

from __future__ import annotations

from graphweave.core.types import UNIT
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.passes.factors import multiplied, negated, product, shaped, value_type
from graphweave.passes.rules.rule import Rule
from graphweave.passes.rules.split_products import sliced


def slice_products(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """(x * w)[i:j] -> x * w[i:j]"""
    node = build.nodes[ref]
    if not isinstance(node, ir.Slice) or not isinstance(build.nodes[node.x], ir.Pointwise | ir.Reshape | ir.Broadcast):
        return None
    t, loc = value_type(build, ref), build.locs[ref]
    p = product(build, node.x)
    there = [f for f in p.factors if f.shape[node.dim] != 1]
    if t.space == UNIT or not there or any(value_type(build, f.ref).space != UNIT for f in there):
        return None
    factors = [sliced(build, f, node.dim, node) for f in p.factors]
    out = multiplied(build, factors, t.dtype, t.space, loc)
    return shaped(build, negated(build, out, p.sign, loc), t.shape, loc)


RULE = Rule("slice-products", "(x * w)[i:j]", "x * w[i:j]", slice_products)
