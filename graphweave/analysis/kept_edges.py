"""Which values of edges are stored, since one kernel after the other would compute them again.

A kernel computes the values of edges that it needs again from values of nodes. That is cheaper than to store them as
long as few kernels need a value. In a normalisation that goes round and round (Sinkhorn's), each of many sums along
the edges needs the one before, and every one would gather the same rows for the same scores. So a narrow value that is
dear to compute, and that is needed by MIN_WALKS kernels or more, is stored where it is computed first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from graphweave.analysis.flow import Flow
from graphweave.core.types import UNIT, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import Program, Ref

MIN_WALKS = 5
"""Fewest kernels that need a value of edges which is stored. A layer of attention needs its scores in three or four."""

MAX_ELEMENTS = 4
"""Most elements of an edge's row of a value that is stored: to read more costs as much as to compute them again."""

MIN_GATHERED = 8
"""Fewest elements that are gathered, for each element of a value that is stored, to compute it again."""

_ROW_WISE = (ir.Pointwise, ir.Cast, ir.Reduce, ir.Reshape, ir.Broadcast, ir.Permute, ir.Slice, ir.Pad, ir.Concat)


def kept_edges(program: Program, flow: Flow) -> frozenset[Ref]:
    """The values of edges that kernels store for other kernels."""
    ends = {t.cod for t in program.types if isinstance(t, ir.MapType)}
    edges = flow.edge_spaces - ends - {UNIT}
    pushed = [n.x for n in program.nodes if isinstance(n, ir.Push) and _space(program, n.x) in edges]
    if len(pushed) < MIN_WALKS:
        return frozenset()
    gathers = _gathers(program, flow, edges)
    walks = _walks(program, flow, edges, _levels(program, flow, gathers))
    found: set[Ref] = set()
    for ref, node in enumerate(program.nodes):
        if isinstance(node, ir.Pointwise | ir.Reduce) and len(walks.get(ref, ())) >= MIN_WALKS:
            goes_on = any(walks[u] == walks[ref] and _is_narrow(program, u) for u in flow.users[ref] if u in walks)
            if _is_narrow(program, ref) and not goes_on and _is_dear(program, flow, ref, found):
                found.add(ref)
    return frozenset(found)


def _space(program: Program, ref: Ref) -> Space | None:
    t = program.types[ref]
    return t.space if isinstance(t, ir.Type) else None


def _is_narrow(program: Program, ref: Ref) -> bool:
    t = program.types[ref]
    return isinstance(t, ir.Type) and t.dtype.is_float and numel(t.shape) <= MAX_ELEMENTS


def _is_dear(program: Program, flow: Flow, ref: Ref, found: set[Ref]) -> bool:
    """Whether the elements that are gathered to compute `ref`, where those of `found` are read, are too many."""
    seen, todo, gathered = {ref}, [ref], 0
    while todo:
        r = todo.pop()
        for x in flow.operands[r] if r == ref or r not in found else ():
            t, node = program.types[x], program.nodes[x]
            if x not in seen and isinstance(t, ir.Type) and t.space == _space(program, ref):
                seen.add(x)
                gathered += numel(t.shape) if isinstance(node, ir.Pull) or x in found else 0
                todo += [x] if isinstance(node, _ROW_WISE) else []
    return gathered >= MIN_GATHERED * numel(program.types[ref].shape)  # type: ignore[union-attr]


def _gathers(program: Program, flow: Flow, edges: frozenset[Space]) -> dict[Ref, frozenset[Ref]]:
    """For each value of edges that kernels compute, the pulls from which they do."""
    out: dict[Ref, frozenset[Ref]] = {}
    for ref, node in enumerate(program.nodes):
        if _space(program, ref) not in edges:
            continue
        if isinstance(node, ir.Pull) and isinstance(program.nodes[node.map], ir.MapOf):
            out[ref] = frozenset([ref])
        elif isinstance(node, _ROW_WISE):
            out[ref] = frozenset().union(*(out.get(r, frozenset()) for r in flow.operands[ref]))
    return out


def _levels(program: Program, flow: Flow, gathers: Mapping[Ref, frozenset[Ref]]) -> dict[Ref, tuple[int, Ref | None]]:
    """For each value outside of edges, how many kernels that walk edges have to run one after the other until it is
    there, and the map along which the last of them does."""
    out: dict[Ref, tuple[int, Ref | None]] = {}

    def level(ref: Ref) -> tuple[int, Ref | None]:
        return out.get(ref, (0, None))

    for ref, node in enumerate(program.nodes):
        if isinstance(node, ir.Push) and node.x in gathers:
            before = [(level(p.x), p.map) for g in gathers[node.x] if isinstance(p := program.nodes[g], ir.Pull)]
            same = (n if m == along == node.map else n + 1 for (n, m), along in before)
            out[ref] = max(same, default=1) or 1, node.map
        elif ref not in gathers:
            known = [level(r) for r in flow.operands[ref]]
            last = max((n for n, _ in known), default=0)
            maps = {m for n, m in known if n == last}
            out[ref] = last, maps.pop() if len(maps) == 1 and isinstance(node, _ROW_WISE) else None
    return out


def _walks(
    program: Program, flow: Flow, edges: frozenset[Space], levels: Mapping[Ref, tuple[int, Ref | None]]
) -> dict[Ref, frozenset[object]]:
    """For each value of edges, the kernels that need it: the map along which each walks, and its level."""
    out: dict[Ref, frozenset[object]] = {}
    for ref in reversed(range(len(program.nodes))):
        if _space(program, ref) in edges:
            readers: Iterable[Ref] = flow.users[ref]
            own = frozenset[object](levels.get(u, u) for u in readers if u not in out)
            out[ref] = own.union(*(out[u] for u in readers if u in out))
    return out
