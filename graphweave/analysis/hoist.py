"""Which values that depend on the graph alone are kept, so that one computation a graph serves every call."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from graphweave.analysis.cones import Cones, space_of
from graphweave.analysis.flow import Flow, is_scalar, is_structure, is_view
from graphweave.core.types import DType
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


class Hoist:
    """The parts of one program that are computed once for each graph."""

    def __init__(self, program: Program, flow: Flow, cones: Cones) -> None:
        self._program, self._flow, self._cones = program, flow, cones

    @cached_property
    def values(self) -> tuple[Ref, ...]:
        """The graph-only values worth keeping from one call to the next, in program order.

        Those are the graph-only tensors that the rest of the program uses and behind which lies real work (a pull, a
        push, a computed index, or a call of PyTorch, which would be one at each call), and the index of every
        graph-only map, so that equal graphs give the same tensor object and the formats built from it are found again.
        Of what only widens or rearranges, the value beneath is kept: one number a node is little to store and to read,
        the same number for each feature is not. Nor is a number for each edge that a kernel can make of its two ends
        (GCN's norm).
        """
        program, only, used_by = self._program, self._flow.graph_only, self._flow.users
        outputs = {r for r in program.outputs if r is not None}
        indices = {n.index for n in program.nodes if isinstance(n, MapOf)}
        worked = self._worked(indices)
        crossing = outputs | {r for r in only if not only.issuperset(used_by[r])}
        again: set[Ref] = set()  # indices of maps along which kernels make graph-only values as they read
        keep = []
        for ref in sorted(only, reverse=True):
            node = program.nodes[ref]
            if isinstance(node, Input) or is_structure(node) or is_scalar(program, ref):
                continue
            read = ref in indices and any(u not in only for m in used_by[ref] for u in used_by[m])
            is_index = ref in again or read
            wanted = is_index or (ref in crossing and ref in worked and _is_tensor(program, ref))
            if wanted and not is_index and ref not in outputs and self._repeats(ref):
                crossing.update(operands(node))
                again.update(m.index for r in operands(node) if isinstance(m := program.nodes[r], MapOf))
            elif wanted:
                keep.append(ref)
        return tuple(reversed(keep))

    @cached_property
    def checks(self) -> tuple[Ref, ...]:
        """Assertions about the graph alone: true once, true at every call."""
        nodes = enumerate(self._program.nodes)
        checks = (r for r, n in nodes if isinstance(n, AssertIndex) or (isinstance(n, Aten) and "_assert" in n.target))
        return tuple(r for r in checks if r in self._flow.graph_only)

    def only_maps(self, refs: Iterable[Ref]) -> tuple[Ref, ...]:
        """Those of `refs` that are computed index tensors, of which the program uses nothing but the map they are."""
        program = self._program
        return tuple(
            r
            for r in refs
            if isinstance(t := program.types[r], Type)
            and (t.shape, t.dtype) == ((), DType.i64)
            and all(isinstance(program.nodes[u], MapOf) for u in self._flow.users[r])
            and not _only_views(program, r)
        )

    def _repeats(self, ref: Ref) -> bool:
        """A value that a kernel makes as it reads, of fewer numbers: spread, rearranged, or on edges, of O(1) work."""
        node = self._program.nodes[ref]
        if not self._cones.is_light(ref):
            return False
        if space_of(self._program, ref) in self._flow.edge_spaces and not isinstance(node, Push):
            return True
        spreads = isinstance(node, Pull) and isinstance(self._program.nodes[node.map], ToUnit)
        return spreads or isinstance(node, Reshape | Broadcast | Permute) or self._cones.widens(ref)

    def _worked(self, indices: set[Ref]) -> set[Ref]:
        """Graph-only nodes with a pull, a push, a computed map index or a working call behind them."""
        program, only = self._program, self._flow.graph_only
        computed = {i for i in indices if i in only and not _only_views(program, i)}
        found: set[Ref] = set()
        for ref in sorted(only):
            moves = isinstance(program.nodes[ref], Pull | Push) or ref in computed
            calls = self._flow.is_work(ref) and _is_tensor(program, ref)
            if moves or calls or not found.isdisjoint(self._flow.operands[ref]):
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
