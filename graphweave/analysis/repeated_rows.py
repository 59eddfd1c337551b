"""Values of edges that several walks would compute again from products of matrices: one walk stores them.

The gradient by the length of an edge is such a value: one number, for which each layer's network is gone through, and
which both ends of the edge read. Every walk along another map would compute all of these products again. A wide value
is stored for three walks, as a force and its gradient have; an ordinary training step has at most two in each half, so
that it stores no rows of edges x features.
"""

from __future__ import annotations

from graphweave.analysis.cones import Cones, space_of, type_of
from graphweave.analysis.flow import Flow
from graphweave.analysis.tiles import tile_spaces
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import Program, Ref

_WIDE_BYTES = 32
"""Rows of at least this many bytes are stored on edges, of which there are many, only for three walks or more."""
_MIN_INNER = 32
"""A product with rows of this many elements takes longer than to write its result and to read it."""


def repeated_rows(program: Program, flow: Flow, cones: Cones) -> frozenset[Ref]:
    """The values of one half of a program that are to be stored."""
    if cones.tiled.isdisjoint(r for r, n in enumerate(program.nodes) if isinstance(n, ir.MatMul)):
        return frozenset()
    edges, found = tile_spaces(program, flow), set[Ref]()
    walks: dict[Ref, set[Ref]] = {r: {r} for r in program.outputs if r is not None}
    """For each value the maps along which walks need it, and the values for which it is computed alone."""
    for ref in reversed(range(len(program.nodes))):
        node, own = program.nodes[ref], walks.get(ref, set())
        if cones.is_push(ref):
            along = cones.pushed_along(ref)
            read = set() if along is None else {along}  # a total over all edges joins some walk
        elif space_of(program, ref) not in edges or not cones.is_light(ref):
            read = {ref}
        elif isinstance(node, ir.Pull):
            continue
        else:
            if len(own) > 1 and ref not in flow.graph_only and _pays(cones, ref, len(own)):
                found.add(ref)
                own = {ref}
            read = own
        for r in operands(node):
            if space_of(program, r) in edges:
                walks.setdefault(r, set()).update(read)
    return frozenset(found)


def _pays(cones: Cones, ref: Ref, walks: int) -> bool:
    program, t = cones.program, cones.program.types[ref]
    if not isinstance(t, ir.Type) or not cones.in_tiles(ref):
        return False
    if numel(t.shape) * t.dtype.itemsize < _WIDE_BYTES:
        return True
    inner = (ref, *cones.needs(ref, frozenset(), through=True).inner)
    products = (n for r in inner if r in cones.tiled and isinstance(n := program.nodes[r], ir.MatMul))
    return walks > 2 and any(numel(type_of(program, n.x).shape) >= _MIN_INNER for n in products)
