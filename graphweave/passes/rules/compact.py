"""f(pull(x, m), pull(w, t)) -> pull(f(pull(x, m'), pull(w, t')), pair): once a pair of m and t, not once an edge.

Compact materialisation (Hector, section 3.2.2): what depends on the source and the relation of an edge alone is the
same for all edges that have both in common. Legal for every row-wise f. The transposed forms are for the backward, and
for a forward with fewer pairs of destination and relation than edges: push(typed(x), m) ->
push(typed(push(x, pair)), m') and gram(pull(x, m), y, t) -> gram(pull(x, m'), push(y, pair), t'), of which
push(s * pull(x, m), t) with one number s an edge is a case. It pays where pairs are fewer than edges.
"""

from __future__ import annotations

from functools import partial

from graphweave.core.lines import Location
from graphweave.core.types import UNIT, Fold
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder, operands, with_operands
from graphweave.ir.message.infer import numel
from graphweave.passes.factors import Factor, below_reshapes, multiplied, negated, product, shaped, value_type
from graphweave.passes.pair_space import PairMaps, pair_maps
from graphweave.passes.rules.rule import Rule

_ROW_WISE = (ir.Pointwise, ir.Cast, ir.Reduce, ir.Permute, ir.Slice, ir.Pad, ir.Concat)


def compact(m: ir.Ref, t: ir.Ref) -> Rule:
    """The rule for pairs of the rows of the maps `m` and `t`."""
    return Rule(
        "compact", "f(pull(x, m), pull(w, t))", "pull(f(pull(x, m'), pull(w, t')), pair)", partial(_apply, m, t)
    )


def _apply(m: ir.Ref, t: ir.Ref, build: Builder, ref: ir.Ref) -> ir.Ref | None:
    node = build.nodes[ref]
    match node:
        case ir.MatMul(x, _, along) if along == t and _pulled(build, x, {m}):
            pairs = pair_maps(build, m, t)
            inner = ir.MatMul(_above(build, x, m, t, pairs), node.w, pairs.second)
            return _pull(build, build.add(inner, build.locs[ref]), pairs, build.locs[ref])
        case ir.Gram(map=along) if along == t:
            return _gram(build, ref, node, m, t)
        case ir.Push(x, along, Fold.sum, 0) if along == m:
            return _push(build, ref, x, m, t)
        case ir.Push(x, along, Fold.sum, 0) if along == t:
            return _push_to_types(build, ref, x, m, t)
        case _ if isinstance(node, _ROW_WISE):
            return _row_wise(build, ref, node, m, t)
        case _:
            return None


def _gram(build: Builder, ref: ir.Ref, node: ir.Gram, m: ir.Ref, t: ir.Ref) -> ir.Ref | None:
    loc = build.locs[ref]
    for x, y, first in ((node.x, node.y, True), (node.y, node.x, False)):
        if _pulled(build, x, {m}):
            pairs = pair_maps(build, m, t)
            above = _above(build, x, m, t, pairs)
            pushed = build.add(ir.Push(y, pairs.pair, Fold.sum), loc)
            ends = (above, pushed) if first else (pushed, above)
            return build.add(ir.Gram(*ends, pairs.second), loc)
    return None


def _push(build: Builder, ref: ir.Ref, x: ir.Ref, m: ir.Ref, t: ir.Ref) -> ir.Ref | None:
    """push(s * typed(x), m) -> push(typed(push(s * x, pair)), m'), if s is one number a row."""
    p, whole = product(build, x), value_type(build, x)
    typed = [f for f in p.factors if _is_typed(build, f.ref, t)]
    scales = [f for f in p.factors if f not in typed]
    if len(typed) != 1 or typed[0].inverse or any(numel(f.shape) != 1 for f in scales):
        return None
    node = build.nodes[below_reshapes(build, typed[0].ref)]
    assert isinstance(node, ir.MatMul)
    if numel(typed[0].shape) != numel(whole.shape):
        return None
    loc, rows = build.locs[ref], value_type(build, node.x)
    pairs = pair_maps(build, m, t)
    ones = (1,) * len(rows.shape)
    factors = [Factor(node.x, rows.shape), *(Factor(f.ref, ones, f.inverse) for f in scales)]
    scaled = shaped(build, multiplied(build, factors, rows.dtype, rows.space, loc), rows.shape, loc)
    out = build.add(ir.MatMul(build.add(ir.Push(scaled, pairs.pair, Fold.sum), loc), node.w, pairs.second), loc)
    pushed = build.add(ir.Push(shaped(build, out, whole.shape, loc), pairs.first, Fold.sum), loc)
    return negated(build, pushed, p.sign, loc)


def _push_to_types(build: Builder, ref: ir.Ref, x: ir.Ref, m: ir.Ref, t: ir.Ref) -> ir.Ref | None:
    """push(s * pull(x, m), t) -> gram(pull(x, m'), push(s, pair), t'), if s is one number a row."""
    p, whole = product(build, x), value_type(build, x)
    rows = [f for f in p.factors if numel(f.shape) == numel(whole.shape) and _pulled(build, f.ref, {m})]
    scales = [f for f in p.factors if f not in rows]
    if len(rows) != 1 or rows[0].inverse or not whole.dtype.is_float or numel(whole.shape) == 1:
        return None
    if not scales or any(numel(f.shape) != 1 for f in scales):
        return None
    loc, pairs = build.locs[ref], pair_maps(build, m, t)
    above = shaped(build, _above(build, rows[0].ref, m, t, pairs), (numel(whole.shape),), loc)
    factors = [Factor(f.ref, (1,), f.inverse) for f in scales]
    scale = shaped(build, multiplied(build, factors, whole.dtype, whole.space, loc), (1,), loc)
    summed = build.add(ir.Gram(above, build.add(ir.Push(scale, pairs.pair, Fold.sum), loc), pairs.second), loc)
    return negated(build, shaped(build, summed, whole.shape, loc), p.sign, loc)


def _is_typed(build: Builder, ref: ir.Ref, t: ir.Ref) -> bool:
    node = build.nodes[below_reshapes(build, ref)]
    return isinstance(node, ir.MatMul) and node.map == t


def _row_wise(build: Builder, ref: ir.Ref, node: ir.Node, m: ir.Ref, t: ir.Ref) -> ir.Ref | None:
    """Row-wise work on values pulled from pairs, and on values pulled along m and t."""
    own = [r for r in operands(node) if isinstance(at := build.types[r], ir.Type) and at.space != UNIT]
    if not own or value_type(build, ref).space != value_type(build, own[0]).space:
        return None
    pairs = _known(build, own, m, t)
    if pairs is None or not all(_pulled(build, r, {m, t, pairs.pair}) or _is_number(build, r) for r in own):
        return None
    above = {r: _above(build, r, m, t, pairs) for r in own}
    return _pull(
        build, build.add(with_operands(node, lambda r: above.get(r, r)), build.locs[ref]), pairs, build.locs[ref]
    )


def _known(build: Builder, own: list[ir.Ref], m: ir.Ref, t: ir.Ref) -> PairMaps | None:
    """The pairs of m and t, if one of the operands is pulled from them already; None otherwise."""
    maps = {n.map for r in own if isinstance(n := build.nodes[below_reshapes(build, r)], ir.Pull)}
    if not maps - {m, t}:
        return None
    start = len(build.nodes)
    pairs = pair_maps(build, m, t)
    if pairs.pair in maps:
        return pairs
    build.rollback(start)
    return None


def _pulled(build: Builder, ref: ir.Ref, along: set[ir.Ref]) -> bool:
    node = build.nodes[below_reshapes(build, ref)]
    return isinstance(node, ir.Pull) and node.map in along


def _is_number(build: Builder, ref: ir.Ref) -> bool:
    node = build.nodes[ref]
    return isinstance(node, ir.Const) and node.type.shape == ()


def _above(build: Builder, ref: ir.Ref, m: ir.Ref, t: ir.Ref, pairs: PairMaps) -> ir.Ref:
    """The value on pairs whose pull is the edge value `ref`. A constant becomes shared data."""
    node, loc = build.nodes[ref], build.locs[ref]
    match node:
        case ir.Const(value, ct):
            return build.add(ir.Const(value, ir.Type(UNIT, ct.shape, ct.dtype)), loc)
        case ir.Reshape(x, shape):
            return build.add(ir.Reshape(_above(build, x, m, t, pairs), shape), loc)
        case ir.Pull(x, along):
            if along == pairs.pair:
                return x
            return build.add(ir.Pull(x, pairs.first if along == m else pairs.second), loc)
        case _:
            raise AssertionError(f"%{ref} is not pulled")


def _pull(build: Builder, ref: ir.Ref, pairs: PairMaps, loc: Location) -> ir.Ref:
    return build.add(ir.Pull(ref, pairs.pair), loc)
