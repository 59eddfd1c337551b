"""f(reshape(x), reshape(y)) -> reshape(f(x, y)) if x and y have one shape.

Legal where every operand is such a reshape or one number, as f works element by element. It never loses, and terms that
differ only in dims of size 1 become equal. A check of an index is a check of what the index is a reshape of.
"""

from __future__ import annotations

from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.passes.factors import value_type
from graphweave.passes.rules.rule import Rule


def join_reshapes(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """f(reshape(x), reshape(y)) -> reshape(f(x, y))"""
    node, t = build.nodes[ref], build.types[ref]
    assert isinstance(t, ir.Type) or not isinstance(node, ir.Pointwise | ir.Cast)
    if isinstance(node, ir.Cast) and isinstance(seen := build.nodes[node.x], ir.Reshape):
        inner = build.add(ir.Cast(seen.x, node.dtype), build.locs[ref])
        return build.add(ir.Reshape(inner, seen.shape), build.locs[ref])
    if isinstance(node, ir.AssertIndex) and isinstance(seen := build.nodes[node.index], ir.Reshape):
        return build.add(ir.AssertIndex(seen.x, node.size), build.locs[ref])
    if not isinstance(node, ir.Pointwise) or not isinstance(t, ir.Type):
        return None
    below = {r: seen.x for r in node.args if isinstance(seen := build.nodes[r], ir.Reshape) and seen.shape == t.shape}
    others = [r for r in node.args if r not in below]
    shapes = {value_type(build, x).shape for x in below.values()}
    if len(shapes) != 1 or t.shape == () or any(value_type(build, r).shape != () for r in others):
        return None
    joined = build.add(ir.Pointwise(node.op, tuple(below.get(r, r) for r in node.args)), build.locs[ref])
    if value_type(build, joined).space != t.space:
        return None
    return build.add(ir.Reshape(joined, t.shape), build.locs[ref])


RULE = Rule("join-reshapes", "f(reshape(x), reshape(y))", "reshape(f(x, y))", join_reshapes)
