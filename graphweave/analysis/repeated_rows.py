"""Narrow values of edges that several walks would compute again from products of matrices: one walk stores them.

The gradient by the length of an edge is such a value: one number, for which each layer's network is gone through, and
which both ends of the edge read. Every walk along another map would compute all of these products again.
"""

from __future__ import annotations

from typing import TypeAlias

from graphweave.analysis.cones import Cones, space_of
from graphweave.analysis.flow import Flow
from graphweave.analysis.tiles import tile_spaces
from graphweave.core.types import UNIT
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import Program, Ref

_WIDE_BYTES = 64
"""Rows of at least this many bytes are not stored on edges, of which there are many."""

_Walk: TypeAlias = tuple[bool, Ref]
"""Whether it is in the backward, and the map along which edges are walked, or the value that is computed alone."""


def repeated_rows(
    program: Program, flow: Flow, cones: Cones, late: frozenset[Ref] = frozenset()
) -> frozenset[Ref]:  # fmt: skip
    """The values to store; nodes in `late` are the backward, which counts by itself."""
    if cones.tiled.isdisjoint(r for r, n in enumerate(program.nodes) if isinstance(n, ir.MatMul)):
        return frozenset()
    edges, found = tile_spaces(program, flow), set[Ref]()
    walks: dict[Ref, set[_Walk]] = {r: {(r in late, r)} for r in program.outputs if r is not None}
    for ref in reversed(range(len(program.nodes))):
        node, own = program.nodes[ref], walks.get(ref, set())
        if cones.is_push(ref):
            along = cones.pushed_along(ref)
            read = set() if along is None else {(ref in late, along)}  # a total over all edges joins some walk
        elif space_of(program, ref) not in edges or not cones.is_light(ref):
            read = {(ref in late, ref)}
        elif isinstance(node, ir.Pull):
            continue
        else:
            repeats = len(own) - len({at for at, _ in own})
            if repeats and ref not in flow.graph_only and _is_narrow(program, ref) and cones.in_tiles(ref):
                found.add(ref)
                own = {(ref in late, ref)}
            read = own
        for r in operands(node):
            if space_of(program, r) in edges:
                walks.setdefault(r, set()).update(read)
    return frozenset(found)


def _is_narrow(program: Program, ref: Ref) -> bool:
    t = program.types[ref]
    return isinstance(t, ir.Type) and t.space != UNIT and numel(t.shape) * t.dtype.itemsize < _WIDE_BYTES
