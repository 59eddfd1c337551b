"""Which values depend on the graph alone, so that one computation a graph serves every call."""

from __future__ import annotations

from collections.abc import Iterable

from graphweave.analysis.cones import is_light, space_of, widens
from graphweave.analysis.flow import edge_spaces, is_integral, is_scalar, is_structure, is_view, is_work, users
from graphweave.core.types import DType, Space
from graphweave.ir.message.builder import operands
from graphweave.ir.message.nodes import (
    AnyType,
    AssertIndex,
    Aten,
    Broadcast,
    Input,
    MapOf,
    Permute,
    Program,
    Pull,
    Push,
    Ref,
    Reshape,
    ToUnit,
    Type,
)


def graph_only(program: Program) -> frozenset[Ref]:
    """Nodes computed from index tensors, sizes and constants alone: no parameter, feature or random number."""
    found: set[Ref] = set()
    for ref, node in enumerate(program.nodes):
        match node:
            case Input():
                good = is_integral(program, ref) or is_scalar(program, ref)
            case Aten(serial=serial):
                good = serial == 0 and all(r in found for r in operands(node))
            case _:
                good = all(r in found for r in operands(node))
        if good:
            found.add(ref)
    return frozenset(found)


def hoisted(program: Program) -> tuple[Ref, ...]:
    """The graph-only values worth keeping from one call to the next, in program order.

    Those are the graph-only tensors that the rest of the program uses and behind which lies real work (a pull, a push,
    a computed index, or a call of PyTorch, which would be one at each call), and the index of every graph-only map, so
    that equal graphs give the same tensor object and the formats built from it are found again. Of what only widens or
    rearranges, the value beneath is kept: one number a node is little to store and to read, the same number for each
    feature is not. Nor is a number for each edge that a kernel can make of its two ends (GCN's norm).
    """
    only = graph_only(program)
    used_by = users(program)
    outputs = {r for r in program.outputs if r is not None}
    indices = {n.index for n in program.nodes if isinstance(n, MapOf)}
    worked = _worked(program, only, indices)
    edges = edge_spaces(program)
    crossing = outputs | {r for r in only if any(u not in only for u in used_by[r])}
    again: set[Ref] = set()  # indices of maps along which kernels make graph-only values as they read
    keep = []
    for ref in sorted(only, reverse=True):
        node = program.nodes[ref]
        if isinstance(node, Input) or is_structure(node) or is_scalar(program, ref):
            continue
        is_index = ref in again or (ref in indices and any(u not in only for m in used_by[ref] for u in used_by[m]))
        wanted = is_index or (ref in crossing and ref in worked and _is_tensor(program, ref))
        if wanted and not is_index and ref not in outputs and _repeats(program, ref, edges):
            crossing.update(operands(node))
            again.update(m.index for r in operands(node) if isinstance(m := program.nodes[r], MapOf))
        elif wanted:
            keep.append(ref)
    return tuple(reversed(keep))


def only_maps(program: Program, refs: Iterable[Ref]) -> tuple[Ref, ...]:
    """Those of `refs` that are computed index tensors, of which the program uses nothing but the map that they are."""
    used_by = users(program)
    return tuple(
        r
        for r in refs
        if isinstance(t := program.types[r], Type)
        and (t.shape, t.dtype) == ((), DType.i64)
        and all(isinstance(program.nodes[u], MapOf) for u in used_by[r])
        and not _only_views(program, r)
    )


def _repeats(program: Program, ref: Ref, edges: frozenset[Space]) -> bool:
    """A value that a kernel makes as it reads, of fewer numbers: spread, rearranged, or on edges and of O(1) work."""
    node = program.nodes[ref]
    if not is_light(program, ref):
        return False
    if space_of(program, ref) in edges and not isinstance(node, Push):
        return True
    spreads = isinstance(node, Pull) and isinstance(program.nodes[node.map], ToUnit)
    return spreads or isinstance(node, Reshape | Broadcast | Permute) or widens(program, ref)


def hoisted_checks(program: Program) -> tuple[Ref, ...]:
    """Assertions about the graph alone: true once, true at every call."""
    only = graph_only(program)
    checks = ((isinstance(n, AssertIndex) or (isinstance(n, Aten) and "_assert" in n.target)) for n in program.nodes)
    return tuple(r for r, is_check in enumerate(checks) if is_check and r in only)


def _worked(program: Program, only: frozenset[Ref], indices: set[Ref]) -> set[Ref]:
    """Graph-only nodes with a pull, a push, a computed map index or a working call behind them."""
    computed = {i for i in indices if i in only and not _only_views(program, i)}
    found: set[Ref] = set()
    for ref in sorted(only):
        moves = isinstance(program.nodes[ref], Pull | Push) or ref in computed
        calls = is_work(program, ref) and _is_tensor(program, ref)
        if moves or calls or any(r in found for r in operands(program.nodes[ref])):
            found.add(ref)
    return found


def _only_views(program: Program, ref: Ref) -> bool:
    while is_view(program.nodes[ref]):
        ref = operands(program.nodes[ref])[0]
    return isinstance(program.nodes[ref], Input)


def _is_tensor(program: Program, ref: Ref) -> bool:
    t = program.types[ref]
    return isinstance(t, Type) or (isinstance(t, AnyType) and _has_tensor(t))


def _has_tensor(t: AnyType) -> bool:
    return t.dims is not None or any(map(_has_tensor, t.items or ()))
