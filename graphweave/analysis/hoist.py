"""Which values that depend on the graph alone are kept, so that they are computed once for each graph."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from graphweave.analysis.cones import Cones, space_of
from graphweave.analysis.flow import Flow, is_scalar, is_structure, is_view
from graphweave.core.types import DType
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands


class Hoist:
    """The parts of one program that are computed once for each graph."""

    def __init__(self, program: ir.Program, flow: Flow, cones: Cones) -> None:
        self._program, self._flow, self._cones = program, flow, cones

    @cached_property
    def values(self) -> tuple[ir.Ref, ...]:
        """The graph-only values worth keeping from one call to the next, in program order.

        They are of two kinds. First, graph-only tensors that the rest of the program uses and that take real work: a
        pull, a push, a computed index, or a call of PyTorch, which would be repeated at each call. Second, the index of
        every graph-only map, so that equal graphs give the same tensor object and the formats built from it are found
        again. Instead of a value that only widens or rearranges, its operand is kept: one number for each node takes
        little memory, the same number for each feature does not. Instead of a value of edges that a kernel can compute
        from the edge's two ends (GCN's norm), the values of the ends are kept.
        """
        program, only, used_by = self._program, self._flow.graph_only, self._flow.users
        outputs = {r for r in program.outputs if r is not None}
        indices = {n.index for n in program.nodes if isinstance(n, ir.MapOf)}
        worked = self._worked(indices)
        crossing = outputs | {r for r in only if not only.issuperset(used_by[r])}
        again: set[ir.Ref] = set()  # indices of maps along which kernels make graph-only values as they read
        keep = []
        for ref in sorted(only, reverse=True):
            node = program.nodes[ref]
            if is_scalar(program, ref) and ref in crossing:
                if ref in worked:
                    keep.append(ref)
                else:
                    crossing.update(operands(node))
            if isinstance(node, ir.Input) or is_structure(node) or is_scalar(program, ref):
                continue
            read = ref in indices and self._is_read(ref)
            is_index = ref in again or read
            wanted = is_index or (ref in crossing and ref in worked and _is_tensor(program, ref))
            if wanted and not is_index and ref not in outputs and self._repeats(ref):
                crossing.update(operands(node))
                again.update(m.index for r in operands(node) if isinstance(m := program.nodes[r], ir.MapOf))
            elif wanted:
                keep.append(ref)
        return tuple(reversed(keep))

    @cached_property
    def checks(self) -> tuple[ir.Ref, ...]:
        """Assertions about the graph alone: if they hold once, they hold at every call."""
        nodes = enumerate(self._program.nodes)
        checks = (
            r for r, n in nodes if isinstance(n, ir.AssertIndex) or (isinstance(n, ir.Aten) and "_assert" in n.target)
        )
        return tuple(r for r in checks if r in self._flow.graph_only)

    def only_maps(self, refs: Iterable[ir.Ref]) -> tuple[ir.Ref, ...]:
        """Those of `refs` that are computed index tensors and that the program uses as maps alone."""
        program = self._program
        return tuple(
            r
            for r in refs
            if isinstance(t := program.types[r], ir.Type)
            and (t.shape, t.dtype) == ((), DType.i64)
            and all(isinstance(program.nodes[u], ir.MapOf) for u in self._flow.users[r])
            and not _only_views(program, r)
        )

    def _is_read(self, index: ir.Ref) -> bool:
        """Whether values that do not depend on the graph alone move along a map of `index`, or along the same map for
        each item of a batch."""
        nodes, only, used_by = self._program.nodes, self._flow.graph_only, self._flow.users
        return any(
            u not in only or (isinstance(nodes[u], ir.EachItem) and self._is_read(u))
            for m in used_by[index]
            for u in used_by[m]
        )

    def _repeats(self, ref: ir.Ref) -> bool:
        """Whether a kernel can compute `ref` while it reads, from values worth keeping in its place: `ref` spreads or
        rearranges them, or is a light value of edges."""
        node = self._program.nodes[ref]
        if not self._cones.is_light(ref):
            return False
        if space_of(self._program, ref) in self._flow.edge_spaces and not isinstance(node, ir.Push):
            return True
        spreads = isinstance(node, ir.Pull) and isinstance(self._program.nodes[node.map], ir.ToUnit)
        return spreads or isinstance(node, ir.Reshape | ir.Broadcast | ir.Permute) or self._cones.widens(ref)

    def _worked(self, indices: set[ir.Ref]) -> set[ir.Ref]:
        """Graph-only nodes that are, or are computed from, a pull, a push, a computed map index or a working call."""
        program, only = self._program, self._flow.graph_only
        computed = {i for i in indices if i in only and not _only_views(program, i)}
        found: set[ir.Ref] = set()
        for ref in sorted(only):
            moves = isinstance(program.nodes[ref], ir.Pull | ir.Push) or ref in computed
            calls = self._flow.is_work(ref) and _is_tensor(program, ref)
            if moves or calls or not found.isdisjoint(self._flow.operands[ref]):
                found.add(ref)
        return found


def _only_views(program: ir.Program, ref: ir.Ref) -> bool:
    """Whether `ref` is an input, or views of one."""
    while is_view(program.nodes[ref]):
        ref = operands(program.nodes[ref])[0]
    return isinstance(program.nodes[ref], ir.Input)


def _is_tensor(program: ir.Program, ref: ir.Ref) -> bool:
    t = program.types[ref]
    return isinstance(t, ir.Type) or (isinstance(t, ir.AnyType) and _has_tensor(t))


def _has_tensor(t: ir.AnyType) -> bool:
    return t.dims is not None or any(map(_has_tensor, t.items or ()))
