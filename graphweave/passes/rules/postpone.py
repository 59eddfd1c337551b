"""f(pull(x, m)) -> pull(f(x), m): work that all edges of a row repeat is done once, at the row.

Legal for every row-wise f whose operands are pulled along one map (or shared). Graphiler calls it broadcast reordering
(section 4.3.1), Zhang et al. propagation-postponed reorganization (section 4). It pays where the map's domain is larger
than its codomain and f costs more than the fused loop can do for free.

A sum of features may pay where the operations before it do not: `(z_u * a).sum(-1)` is one number a row, while
`z_u * a` at the rows only writes a row to read it again. So `postpone-whole` moves a sum or product with all that it is
made of.
"""

from __future__ import annotations

from dataclasses import replace

from graphweave.core.types import UNIT
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder, operands, with_operands
from graphweave.passes.composed_maps import above, follows
from graphweave.passes.rules.rule import Rule
from graphweave.passes.rules.scale_out import scaled, times

_ROW_WISE = (ir.Pointwise, ir.Cast, ir.Reduce, ir.Permute, ir.Slice, ir.Pad, ir.Concat, ir.MatMul)
_WITHIN = (*_ROW_WISE, ir.Reshape, ir.Broadcast)
"""Operations on which a sum or product that moves as a whole may rest."""
_MAX_MEMBERS = 64
"""At most this many operations move at once."""


def postpone(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """f(pull(x, m)) -> pull(f(x), m); (pull(x, m) * s) W -> pull(x W, m) * s"""
    node = build.nodes[ref]
    if not isinstance(node, _ROW_WISE):
        return None
    if isinstance(node, ir.MatMul) and (found := scaled(build, node.x)) is not None:
        product = postpone(build, build.add(replace(node, x=found.rows), build.locs[ref]))
        return None if product is None else times(build, product, found, build.locs[ref])
    return _moved(build, ref, (ir.Reshape,))


def postpone_whole(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """sum(g(pull(x, m))) -> pull(sum(g(x)), m), g(pull(x, m)) W -> pull(g(x) W, m)"""
    node = build.nodes[ref]
    if not isinstance(node, ir.Reduce | ir.MatMul) or isinstance(build.nodes[node.x], ir.Pull):
        return None
    return _moved(build, ref, _WITHIN)


def _moved(build: Builder, ref: ir.Ref, within: tuple[type[ir.Node], ...]) -> ir.Ref | None:
    """`ref` computed at the rows that are pulled, with those of its operands, and theirs, that are `within`."""
    found = _members(build, ref, within)
    if found is None:
        return None
    members, m = found
    loc, higher = build.locs[ref], dict[ir.Ref, ir.Ref]()
    for r in members:
        match node := build.nodes[r]:
            case ir.Const(value, t):
                higher[r] = build.add(ir.Const(value, ir.Type(UNIT, t.shape, t.dtype)), loc)
                continue
            case ir.Pull(x):
                higher[r] = x
                continue
            case ir.MatMul(map=t):
                node = replace(node, map=above(build, t, m, loc))
        higher[r] = build.add(with_operands(node, lambda x: higher.get(x, x)), loc)
    return build.add(ir.Pull(higher[ref], m), loc)


def _members(build: Builder, ref: ir.Ref, within: tuple[type[ir.Node], ...]) -> tuple[list[ir.Ref], ir.Ref] | None:
    """The values with rows that `ref` is made of, itself among them, in order, and the one map along which they are
    pulled; None where there is no such map."""
    seen, todo, maps = set[ir.Ref](), [ref], set[ir.Ref]()
    while todo:
        r = todo.pop()
        t, node = build.types[r], build.nodes[r]
        if r in seen or not isinstance(t, ir.Type) or t.space == UNIT:
            continue
        seen.add(r)
        if isinstance(node, ir.Pull) and isinstance(build.nodes[node.map], ir.MapOf):
            maps.add(node.map)
        elif r == ref or isinstance(node, within):
            todo += (node.x,) if isinstance(node, ir.MatMul) else operands(node)
        elif not isinstance(node, ir.Const) or node.type.shape != ():
            return None
    if len(maps) != 1 or len(seen) > _MAX_MEMBERS:
        return None
    (m,) = maps
    products = (n for r in seen if isinstance(n := build.nodes[r], ir.MatMul))
    return (sorted(seen), m) if all(follows(build, n.map, m) for n in products) else None


RULE = Rule("postpone", "f(pull(x, m)), (pull(x, m) * s) W", "pull(f(x), m), pull(x W, m) * s", postpone)
WHOLE = Rule(
    "postpone-whole", "sum(g(pull(x, m))), g(pull(x, m)) W", "pull(sum(g(x)), m), pull(g(x) W, m)", postpone_whole
)
