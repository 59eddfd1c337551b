"""one_hot(t) summed along m, gathered back, column t of it -> the number of edges with this m and t.

sum_c where(c == t, pull(push(where(c == t, a, 0), m), m)[c], 0) -> pull(push(a, pair), pair), where pair is the pair of
m and t of an edge. It is exact, and it always pays: without it a mean over each relation (R-GCN's 1 / c_{i,r}) takes a
table of edges x relations.
"""

from __future__ import annotations

from graphweave.core.types import UNIT, Fold, Op
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.passes.factors import value_type
from graphweave.passes.pair_space import pair_of
from graphweave.passes.rules.rule import Rule


def column_counts(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """sum_c where(c == t, pull(push(where(c == t, a, 0), m), m)[c], 0) -> pull(push(a, pair), pair)"""
    node, loc = build.nodes[ref], build.locs[ref]
    if not isinstance(node, ir.Reduce) or node.fold is not Fold.sum or len(value_type(build, node.x).shape) != 1:
        return None
    chosen = _chosen(build, node.x)
    if chosen is None or not isinstance(pull := build.nodes[chosen[1]], ir.Pull):
        return None
    condition, push = chosen[0], build.nodes[pull.x]
    if not isinstance(push, ir.Push) or push.map != pull.map or not push.is_plain_sum:
        return None
    ones, index = _chosen(build, push.x), _column(build, condition)
    along = build.nodes[push.map]
    if ones is None or ones[0] != condition or index is None or not isinstance(along, ir.MapOf):
        return None
    if along.wrap:  # negative indices count from the end: a row has two indices, and pairs are pairs of indices
        return None
    number = build.nodes[ones[1]]
    if not isinstance(number, ir.Const):
        return None
    t = value_type(build, ref)
    pair = pair_of(build, along.index, index, loc)
    counted = build.add(ir.Const(number.value, ir.Type(t.space, (), t.dtype)), loc)
    out = build.add(ir.Pull(build.add(ir.Push(counted, pair, Fold.sum), loc), pair), loc)
    return build.add(ir.Reshape(out, t.shape), loc) if t.shape else out


def _chosen(build: Builder, ref: ir.Ref) -> tuple[ir.Ref, ir.Ref] | None:
    """(condition, x) where `ref` is where(condition, x, 0)."""
    node = build.nodes[ref]
    if not isinstance(node, ir.Pointwise) or node.op is not Op.where:
        return None
    condition, yes, no = node.args
    zero = build.nodes[no]
    return (condition, yes) if isinstance(zero, ir.Const) and zero.value == 0 else None


def _column(build: Builder, condition: ir.Ref) -> ir.Ref | None:
    """The index t, if `condition` is c == t[r] for column numbers c (an input `arange`); None otherwise."""
    node = build.nodes[condition]
    if not isinstance(node, ir.Pointwise) or node.op is not Op.eq:
        return None
    columns, index = node.args
    named = build.nodes[columns]
    if (
        not isinstance(named, ir.Input)
        or not named.name.startswith("arange_0_")
        or value_type(build, columns).space != UNIT
    ):
        return None
    while isinstance(inner := build.nodes[index], ir.Reshape | ir.Cast):
        index = inner.x
    t = value_type(build, index)
    return index if t.space != UNIT and t.shape == () and not t.dtype.is_float else None


RULE = Rule(
    "column-counts", "sum_c where(c == t, pull(push(one_hot(t), m), m), 0)", "pull(push(1, pair), pair)", column_counts
)
