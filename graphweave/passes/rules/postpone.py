"""f(pull(x, m)) -> pull(f(x), m): work that all edges of a row repeat is done once, at the row.

Legal for every row-wise f whose operands are pulled along one map (or shared). Graphiler calls it broadcast reordering
(section 4.3.1), Zhang et al. propagation-postponed reorganization (section 4). It pays where the map's domain is larger
than its codomain and f costs more than the fused loop can do for free.
"""

from __future__ import annotations

from dataclasses import replace

from graphweave.core.lines import Location
from graphweave.core.types import UNIT
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder, operands, with_operands
from graphweave.ir.message.nodes import Ref
from graphweave.passes.composed_maps import above, follows
from graphweave.passes.rules.rule import Rule
from graphweave.passes.rules.scale_out import scaled, times

_ROW_WISE = (ir.Pointwise, ir.Cast, ir.Reduce, ir.Permute, ir.Slice, ir.Pad, ir.Concat, ir.MatMul)


def postpone(build: Builder, ref: Ref) -> Ref | None:
    """f(pull(x, m)) -> pull(f(x), m); (pull(x, m) * s) W -> pull(x W, m) * s"""
    node = build.nodes[ref]
    if not isinstance(node, _ROW_WISE):
        return None
    if isinstance(node, ir.MatMul) and (found := scaled(build, node.x)) is not None:
        product = postpone(build, build.add(replace(node, x=found.rows), build.locs[ref]))
        return None if product is None else times(build, product, found, build.locs[ref])
    rows = (node.x,) if isinstance(node, ir.MatMul) else operands(node)
    own = [r for r in rows if isinstance(t := build.types[r], ir.Type) and t.space != UNIT]
    maps = {_map(build, r) for r in own if not isinstance(build.nodes[r], ir.Const)}
    if len(maps) != 1 or None in maps:
        return None
    (m,) = maps
    assert m is not None
    loc = build.locs[ref]
    if not all(_has_place(build, r) for r in own):
        return None
    if isinstance(node, ir.MatMul):
        if not follows(build, node.map, m):
            return None
        node = replace(node, map=above(build, node.map, m, loc))
    higher = {r: _above(build, r, loc) for r in own}
    return build.add(ir.Pull(build.add(with_operands(node, lambda r: higher.get(r, r)), loc), m), loc)


def _map(build: Builder, ref: Ref) -> Ref | None:
    """The map along which `ref` is pulled, looking through reshapes; None where it is no pull."""
    node = build.nodes[ref]
    while isinstance(node, ir.Reshape):
        node = build.nodes[node.x]
    return node.map if isinstance(node, ir.Pull) and isinstance(build.nodes[node.map], ir.MapOf) else None


def _has_place(build: Builder, ref: Ref) -> bool:
    node = build.nodes[ref]
    return not isinstance(node, ir.Const) or node.type.shape == ()


def _above(build: Builder, ref: Ref, loc: Location) -> Ref:
    """The value whose pull is `ref`. A constant becomes shared data."""
    node = build.nodes[ref]
    match node:
        case ir.Const(value, t):
            return build.add(ir.Const(value, ir.Type(UNIT, t.shape, t.dtype)), loc)
        case ir.Reshape(x, shape):
            return build.add(ir.Reshape(_above(build, x, loc), shape), loc)
        case ir.Pull(x, _):
            return x
        case _:
            raise AssertionError(f"%{ref} is not pulled")


RULE = Rule("postpone", "f(pull(x, m)), (pull(x, m) * s) W", "pull(f(x), m), pull(x W, m) * s", postpone)
