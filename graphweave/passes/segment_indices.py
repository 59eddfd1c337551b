"""Numbers of rows with the start of a segment added -> numbers of that segment.

    map cat([src0 + 0, src1 + n]) to U        (U has the n rows of V0, then those of V1)
->  map join_indices [src0, src1] of=[V0, V1] at=[0, 1] to U

A model that puts the rows of several node types into one tensor adds row counts to its indices. Where rows of other
ranks stand next to own ones, segments begin elsewhere, so it must be known which numbers belong to which segment. Legal
for numbers of a part's nodes only: these lie in their segment, while `join_indices` refuses any that do not.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphweave.analysis.cones import row_space
from graphweave.analysis.ownership import Numbers, Sharding
from graphweave.analysis.ownership_rules import owned_rows
from graphweave.core.calls import Lead, facts_of, named
from graphweave.core.sizes import Size, total
from graphweave.core.types import UNIT, Op, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder, operands
from graphweave.passes.pass_facts import NO_FACTS, PassFacts
from graphweave.passes.rewritten import Rewritten, unchanged
from graphweave.passes.substitute import substitute

_Segments = tuple[Space, ...]


@dataclass(frozen=True, slots=True)
class SegmentIndices:
    name: str = "segment-indices"

    def __call__(self, program: ir.Program, facts: PassFacts = NO_FACTS) -> Rewritten:
        """`program` with indices of a part's edges joined by segments; the same object on one rank."""
        if facts.sharding is None:
            return unchanged(program)
        finder = _SegmentFinder(program, facts.sharding)
        found = {ref: made for ref in range(len(program.nodes)) if (made := finder.joined(ref)) is not None}
        if not found:
            return unchanged(program)
        build = Builder.of(program)
        replaced = {}
        for ref, index in found.items():
            node, loc = program.nodes[ref], program.locs[ref]
            assert isinstance(node, ir.MapOf)
            replaced[ref] = build.add(ir.MapOf(build.add(index, program.locs[node.index] or loc), node.cod), loc)
        return substitute(build, len(build.nodes), replaced, program.outputs, facts.keep, program.spaces)


class _SegmentFinder:
    def __init__(self, program: ir.Program, sharding: Sharding) -> None:
        self._program, self._rows = program, dict(program.spaces)
        self._owned = owned_rows(program, sharding).values
        self._unions: dict[Space, list[_Segments]] = {}
        for ref, node in enumerate(program.nodes):
            if isinstance(node, ir.Join):
                self._known(row_space(self._program, ref), tuple(row_space(self._program, x) for x in node.xs))
            elif isinstance(node, ir.Part):
                self._known(row_space(self._program, node.x), node.of)

    def _known(self, union: Space, of: _Segments) -> None:
        ways = self._unions.setdefault(union, [])
        if of not in ways:
            ways.append(of)

    def joined(self, ref: ir.Ref) -> ir.JoinIndices | None:
        """The index of a map to several segments, as numbers of their rows; None for other nodes and maps."""
        node = self._program.nodes[ref]
        if not isinstance(node, ir.MapOf) or node.cod not in self._unions:
            return None
        moved = [self._moved(r) for r in self._behind_each_other(node.index)]
        if not all(isinstance(self._owned[index].numbers, Numbers) for index, _ in moved):
            return None
        for of in self._unions[node.cod]:
            starts = self._starts(of)
            if all(start is not None and start in starts for _, start in moved):
                at = tuple(starts.index(start) for _, start in moved)
                wraps = (node.wrap,) * len(moved)
                return ir.JoinIndices(tuple(i for i, _ in moved), of, at, wraps, row_space(self._program, node.index))
        return None

    def _behind_each_other(self, index: ir.Ref) -> tuple[ir.Ref, ...]:
        node = self._program.nodes[index]
        joins = isinstance(node, ir.Aten) and facts_of(node.target).rows is Lead.joined and node.args[1:] in ((), (0,))
        return operands(node) if joins else (index,)

    def _moved(self, index: ir.Ref) -> tuple[ir.Ref, Size | None]:
        """Numbers of rows, and the row count that was added to them."""
        node = self._program.nodes[index]
        if isinstance(node, ir.Pointwise) and node.op is Op.add:
            for x, added in (node.args, node.args[::-1]):
                if (size := self._size(added)) is not None and row_space(self._program, x) != UNIT:
                    return x, size
        return index, 0

    def _size(self, ref: ir.Ref) -> Size | None:
        """The row count that a value of shared data is; None if it is something else."""
        node, t = self._program.nodes[ref], self._program.types[ref]
        match node:
            case ir.Const(int(value)) if isinstance(t, ir.Type) and t.space == UNIT and t.shape == ():
                return value
            case ir.Aten(named.TENSOR_OF_SIZE, (ir.Operand(size), *_)):
                described = self._program.types[size]
                return None if isinstance(described, ir.Type) else getattr(described, "size", None)
            case ir.Cast(x):
                return self._size(x)
            case _:
                return None

    def _starts(self, of: _Segments) -> list[Size | None]:
        """The row of the union at which each segment begins; None behind a segment whose rows are not known."""
        starts: list[Size | None] = [0]
        for space in of[:-1]:
            rows = 1 if space == UNIT else self._rows.get(space)
            before = starts[-1]
            starts.append(None if rows is None or before is None else total(before, rows))
        return starts
