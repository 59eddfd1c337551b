"""Limits on rows: of some values, all rows from a limit on are zero, and of some, nobody reads any.

A loss of a sampled batch reads the first rows of a model's output, those of the seeds. In front of that slice, and in
the gradients behind it, rows matter only up to a limit that is known once the graph is: the seeds, the sources of their
edges, the sources of these nodes' edges. The limits are expressions here; `execute/` computes them for each graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from graphweave.core.calls import named
from graphweave.core.types import UNIT
from graphweave.ir.message import nodes as ir
from graphweave.ir.tape.limits import Behind, Least, Limit, Most, Reach, RowsOf

NOWHERE = Most(frozenset())
"""The limit 0."""


def largest(limits: Iterable[Limit]) -> Limit:
    found: set[Limit] = set()
    for limit in limits:
        found |= limit.of if isinstance(limit, Most) else {limit}
    return next(iter(found)) if len(found) == 1 else Most(frozenset(found))


def smallest(a: Limit | None, b: Limit | None) -> Limit | None:
    """The smaller of the limits that are known; None if none is."""
    if a is None or b is None:
        return b if a is None else a
    of_a, of_b = _parts(a), _parts(b)
    if of_a <= of_b or of_b <= of_a:
        return a if of_a <= of_b else b
    return Least(frozenset((a, b)))


def _parts(limit: Limit) -> frozenset[Limit]:
    """Limits whose largest is `limit`."""
    return limit.of if isinstance(limit, Most) else frozenset((limit,))


def reached(edges: Behind, to: ir.Ref) -> Limit:
    """The rows to which `to` sends `edges`."""
    return edges.below if edges.map == to else Reach(edges.map, to, edges.below)


def renamed(limit: Limit, maps: Mapping[ir.Ref, ir.Ref]) -> Limit:
    """The limit with `maps[m]` in place of each map m."""
    match limit:
        case Reach(walked, to, below):
            return Reach(maps[walked], maps[to], renamed(below, maps))
        case Most(of):
            return largest(renamed(one, maps) for one in of)
        case Least(of):
            return Least(frozenset(renamed(one, maps) for one in of))
    return limit


# ---------------------------------------------------------------- rows that are zero

Extent: TypeAlias = "Limit | Behind | None"
"""The rows, or edges, outside which a value is zero; None if nothing is known."""


def extents(program: ir.Program) -> list[Extent]:
    """The extent of each value. What is multiplied by a zero is taken to be finite."""
    out: list[Extent] = []
    for ref in range(len(program.nodes)):
        out.append(_extent(program, ref, out))
    return out


def _extent(program: ir.Program, ref: ir.Ref, of: list[Extent]) -> Extent:
    match program.nodes[ref]:
        case ir.Const(value):
            return NOWHERE if value == 0 else None
        case ir.Pointwise(op, args):
            return _pointwise(op.value, [of[a] for a in args])
        case ir.Cast(x) | ir.Reshape(x) | ir.Broadcast(x) | ir.Permute(x) | ir.Slice(x) | ir.Pad(x) | ir.MatMul(x):
            return of[x]
        case ir.Reduce(x, fold) if fold.value in ("sum", "max", "min"):
            return of[x]
        case ir.Concat(xs):
            return _union([of[x] for x in xs])
        case ir.AddMatMul(a, x):
            return _union([of[a], of[x]])
        case ir.Pull(x, m):
            return _pulled(of[x], m)
        case ir.Push(x, m) as push if push.is_plain_sum:
            return _pushed(program, of[x], m)
        case ir.Aten():
            return _padded(program, ref)
    return None


def _pointwise(op: str, args: list[Extent]) -> Extent:
    match op:
        case "mul":
            return next((x for x in args if x == NOWHERE), next((x for x in args if x is not None), None))
        case "div" | "neg":
            return args[0]
        case "add" | "sub":
            return _union(args)
        case "where":
            return _union(args[1:])
    return None


def _union(extents: list[Extent]) -> Extent:
    found = [x for x in extents if x != NOWHERE]
    if not found:
        return NOWHERE
    first = found[0]
    if isinstance(first, Behind):
        same = [x for x in found if isinstance(x, Behind) and x.map == first.map]
        return Behind(first.map, largest(x.below for x in same)) if len(same) == len(found) else None
    limits = [x for x in found if x is not None and not isinstance(x, Behind)]
    return largest(limits) if len(limits) == len(found) else None


def _pulled(x: Extent, m: ir.Ref) -> Extent:
    if x is None or isinstance(x, Behind):
        return None
    return x if x == NOWHERE else Behind(m, x)


def _pushed(program: ir.Program, x: Extent, m: ir.Ref) -> Extent:
    t = program.types[m]
    if x == NOWHERE:
        return NOWHERE
    return reached(x, m) if isinstance(x, Behind) and isinstance(t, ir.MapType) and t.cod != UNIT else None


def _padded(program: ir.Program, ref: ir.Ref) -> Extent:
    """That of the gradient of the first rows of a tensor."""
    node = program.nodes[ref]
    assert isinstance(node, ir.Aten)
    if node.target != named.SLICE_GRADIENT:
        return None
    x, _, dim, start, _, step = node.args
    if (dim, start, step) != (0, 0, 1) or not isinstance(x, ir.Operand):
        return None
    t = program.types[x.ref]
    return RowsOf(t.space) if isinstance(t, ir.Type) and t.space != UNIT else None


def sliced(program: ir.Program, ref: ir.Ref) -> tuple[ir.Ref, Limit] | None:
    """The value of which `ref` is the first rows, and how many these are; None if it is none."""
    node, t = program.nodes[ref], program.types[ref]
    if not isinstance(node, ir.Aten) or node.target != named.SLICE or not isinstance(t, ir.Type) or t.space == UNIT:
        return None
    x, dim, start, _, step = node.args + (None, 0, 0, None, 1)[len(node.args) :]
    if (dim, start, step) != (0, 0, 1) or not isinstance(x, ir.Operand) or node.kwargs:
        return None
    return x.ref, RowsOf(t.space)
