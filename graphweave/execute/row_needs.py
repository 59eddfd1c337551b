"""Which rows each kernel of a plan must compute, so that every row that is read exists.

Needs travel from results to operands, kernel by kernel. A kernel computes rows up to one limit for all that it writes.
Rows behind it are zeros where a value is known to be zero there and somebody reads them, and undefined where nobody
does. Totals are taken over the rows that are not zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from graphweave.analysis.cones import map_type, type_of
from graphweave.analysis.row_limits import (
    Extent,
    extents,
    largest,
    reached,
    renamed,
    sliced,
    smallest,
)
from graphweave.analysis.typed import call_operands
from graphweave.compiler.plan import Plan
from graphweave.core.types import UNIT, Space
from graphweave.execute.region_step import RegionStep
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands
from graphweave.ir.tape.limits import Behind, Limit, StepLimit, maps_in, spaces_in
from graphweave.lower.parameters import Flat
from graphweave.lower.schedule import Region

Need: TypeAlias = "frozenset[Limit | Behind] | None"
"""The rows, or edges, of a value that somebody reads: those of all limits together, or all rows (None)."""

NOTHING: Need = frozenset()


@dataclass(frozen=True, slots=True)
class RowNeeds:
    """`steps` are the kernels that compute less than all rows, by their position in the plan. `inputs` are the needs of
    the program's inputs."""

    steps: Mapping[int, StepLimit]
    inputs: Mapping[ir.Ref, Need]


UNLIMITED = RowNeeds({}, {})


def row_needs(plan: Plan, kernels: Mapping[int, RegionStep], given: Mapping[ir.Ref, Need]) -> RowNeeds:
    """The needs in a plan whose outputs are read as `given` says, and whole where it says nothing."""
    return _Needs(plan, kernels).found(given)


def needs_of_halves(
    ahead: Plan, its_kernels: Mapping[int, RegionStep], back: Plan, back_kernels: Mapping[int, RegionStep],
    saved: Mapping[ir.Ref, ir.Ref], same: Mapping[ir.Ref, ir.Ref],
) -> tuple[RowNeeds, RowNeeds]:  # fmt: skip
    """The needs in a forward and in its backward, which reads some rows of what the forward saves.

    `saved` are inputs of the backward and the outputs of the forward that they are, `same` nodes of the backward and
    the nodes of the forward that compute the same.
    """
    behind = row_needs(back, back_kernels, {})
    maps = {m: same[m] for m, n in enumerate(back.program.nodes) if isinstance(n, ir.MapOf) and m in same}
    given = {here: _renamed(behind.inputs.get(there, NOTHING), maps) for there, here in saved.items()}
    return row_needs(ahead, its_kernels, given), behind


def _ready(plan: Plan, m: ir.Ref) -> bool:
    """Whether the index of a map exists before the first kernel."""
    node = plan.program.nodes[m]
    return isinstance(node, ir.MapOf) and (
        node.index in plan.hoisted or isinstance(plan.program.nodes[node.index], ir.Input)
    )


def _renamed(need: Need, maps: Mapping[ir.Ref, ir.Ref]) -> Need:
    """The need in terms of other maps; None if it names a map that is not among them."""
    if need is None or not all(m in maps for x in need for m in _maps_of(x)):
        return None
    return frozenset(
        Behind(maps[x.map], renamed(x.below, maps)) if isinstance(x, Behind) else renamed(x, maps) for x in need
    )


def _maps_of(x: Limit | Behind) -> Iterable[ir.Ref]:
    return (x.map, *maps_in(x.below)) if isinstance(x, Behind) else maps_in(x)


def joined(a: Need, b: Need) -> Need:
    return None if a is None or b is None else a | b


@dataclass
class _Needs:
    plan: Plan
    kernels: Mapping[int, RegionStep]
    needs: dict[ir.Ref, Need] = field(default_factory=dict)
    steps: dict[int, StepLimit] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.program = self.plan.program
        self.extents: list[Extent] = extents(self.program)
        self.written = {r for kernel in self.kernels.values() for r in kernel.writes}
        self.known = self._known_spaces()

    def found(self, given: Mapping[ir.Ref, Need]) -> RowNeeds:
        steps = self.plan.schedule.steps
        for ref in self.program.outputs:
            if ref is not None:
                self.need(ref, given.get(ref))
        for i, step in enumerate(steps):
            if not isinstance(step, Region):
                self.need(step.ref, None)
            elif i not in self.kernels:
                for ref in step.members:
                    self.need(ref, None)
        for i, step in reversed(list(enumerate(steps))):
            if isinstance(step, Region) and i in self.kernels:
                self.kernel(i, step)
        inputs = {r: x for r, x in self.needs.items() if isinstance(self.program.nodes[r], ir.Input)}
        return RowNeeds(self.steps, inputs)

    # -------------------------------------------------------- between kernels

    def need(self, ref: ir.Ref, what: Need) -> None:
        """Say that these rows of a value are read."""
        before = self.needs.get(ref, NOTHING)
        after = joined(before, what)
        if ref in self.needs and after == before:
            return
        self.needs[ref] = after
        node = self.program.nodes[ref]
        if ref in self.written or ref in self.plan.hoisted or isinstance(node, ir.Input):
            return
        part = sliced(self.program, ref)
        if part is not None and self._can_be_known(part[1]):
            self.need(part[0], frozenset((part[1],)))
            return
        row_wise = isinstance(node, ir.Cast | ir.Reshape | ir.Broadcast | ir.Permute | ir.Slice)
        for operand in call_operands(self.program, ref):
            self.need(operand, after if row_wise else None)

    def _known_spaces(self) -> set[Space]:
        """Spaces whose rows a value tells that exists before the first kernel."""
        ready = [r for r, n in enumerate(self.program.nodes) if isinstance(n, ir.Input) or r in self.plan.hoisted]
        types = [self.program.types[r] for r in ready]
        return {t.space for t in types if isinstance(t, ir.Type) and t.space != UNIT}

    def _can_be_known(self, limit: Limit) -> bool:
        """Whether the limit can be computed before the first kernel."""
        for m in maps_in(limit):
            t = self.program.types[m]
            if not isinstance(t, ir.MapType) or t.cod not in self.known or not _ready(self.plan, m):
                return False
        return all(s in self.known for s in spaces_in(limit))

    # -------------------------------------------------------- one kernel

    def kernel(self, i: int, region: Region) -> None:
        step = self.kernels[i]
        cone = self._cone(step)
        if self._can_be_limited(i, region):
            rows, edges = self._rows(step, region), self._edges(step, region, cone)
            zeros = self._zeros(step, region) if rows is not None else ()
            found = StepLimit(rows, edges, zeros)
            if (
                (rows is not None or edges is not None)
                and all(map(self._can_be_known, found.limits))
                and (edges is None or _ready(self.plan, edges.map))
            ):
                self.steps[i] = found
                self._reads(step, region, cone, rows, edges)
                return
        for ref in step.reads:
            self.need(ref, None)

    def _can_be_limited(self, i: int, region: Region) -> bool:
        plan, taken = self.plan.kernels[i], self.plan.kernels[i].scheduled.taken
        asked = taken.walk, taken.row_order, taken.edge_order, taken.source_partitions, taken.chunks
        edges = None if region.map is None else map_type(self.program, region.map).dom
        return (
            self.kernels[i].drivable and plan.lowered.types is None and not any(asked)
            and plan.lowered.kernel.items is None and region.rows not in (edges, UNIT)
            and (region.map is None or plan.lowered.map == region.map)
        )  # fmt: skip

    def _cone(self, step: RegionStep) -> set[ir.Ref]:
        """The nodes that the kernel computes."""
        found, todo, reads = set[ir.Ref](), list(step.writes), set(step.reads)
        while todo:
            ref = todo.pop()
            if ref not in found:
                found.add(ref)
                todo += [x for x in operands(self.program.nodes[ref]) if x not in reads and self._is_value(x)]
        return found

    def _is_value(self, ref: ir.Ref) -> bool:
        return isinstance(self.program.types[ref], ir.Type)

    def _rows(self, step: RegionStep, region: Region) -> Limit | None:
        """The limit up to which rows are computed."""
        every = [self._rows_for(ref, region) for ref in step.writes]
        known = [x for x in every if x is not None]
        return largest(known) if len(known) == len(every) else None

    def _rows_for(self, ref: ir.Ref, region: Region) -> Limit | None:
        t, need = type_of(self.program, ref), self.needs.get(ref, NOTHING)
        if t.space == UNIT:
            return self._rows_of_total(ref, region)
        if t.space == region.rows:
            zero = self.extents[ref]
            if not t.dtype.is_float:  # may be an index, which must be in range everywhere
                return None
            return smallest(self._as_rows(need), zero if not isinstance(zero, Behind) else None)
        if not t.dtype.is_float or need is None or not self._walks(t.space, region):
            return None
        assert region.map is not None
        found = [reached(x, region.map) for x in need if isinstance(x, Behind)]
        return largest(found) if len(found) == len(need) else None

    def _as_rows(self, need: Need) -> Limit | None:
        limits = [] if need is None else [x for x in need if not isinstance(x, Behind)]
        return None if need is None or len(limits) < len(need) else largest(limits)

    def _walks(self, space: Space, region: Region) -> bool:
        return region.map is not None and map_type(self.program, region.map).dom == space

    def _rows_of_total(self, ref: ir.Ref, region: Region) -> Limit | None:
        """The rows that add something to a total."""
        zero = self._summed(ref)
        if isinstance(zero, Behind):
            return None if region.map is None else reached(zero, region.map)
        return zero

    def _summed(self, ref: ir.Ref) -> Extent:
        """The extent of what a sum adds."""
        node = self.program.nodes[ref]
        if isinstance(node, ir.Gram):
            x, y = self.extents[node.x], self.extents[node.y]
            return None if node.map is not None else (y if x is None else x)
        if isinstance(node, ir.Push) and node.is_plain_sum:
            return self.extents[node.x]
        return None

    def _zeros(self, step: RegionStep, region: Region) -> tuple[tuple[ir.Ref, Limit | None], ...]:
        found: list[tuple[ir.Ref, Limit | None]] = []
        for ref in step.writes:
            t, zero = type_of(self.program, ref), self.extents[ref]
            if t.space != region.rows or zero is None or not t.dtype.is_float:
                continue
            upto = self._as_rows(self.needs.get(ref, NOTHING))
            if upto != zero:
                found.append((ref, upto))
        return tuple(found)

    def _edges(self, step: RegionStep, region: Region, cone: set[ir.Ref]) -> Behind | None:
        """The only edges that add something to any sum of the kernel."""
        if region.map is None:
            return None
        edges = map_type(self.program, region.map).dom
        flat = (b.map for b in self.plan.kernels[self._number(step)].lowered.bindings if isinstance(b, Flat))
        if any(map_type(self.program, m).dom == edges for m in flat):
            return None
        if any(type_of(self.program, ref).space == edges for ref in step.writes):
            return None
        found: list[Behind] = []
        for ref in cone:
            node = self.program.nodes[ref]
            if not isinstance(node, ir.Push | ir.Gram) or type_of(self.program, node.x).space != edges:
                continue
            zero = self._summed(ref)
            if not isinstance(zero, Behind):
                return None
            found.append(zero)
        if len({x.map for x in found}) != 1 or found[0].map == region.map:
            return None
        return Behind(found[0].map, largest(x.below for x in found))

    def _number(self, step: RegionStep) -> int:
        return next(i for i, k in self.kernels.items() if k is step)

    def _reads(
        self, step: RegionStep, region: Region, cone: Iterable[ir.Ref], rows: Limit | None, edges: Behind | None
    ) -> None:
        """Say what the kernel reads."""
        reads = set(step.reads)
        walked = region.map
        of_rows: Need = None if rows is None else frozenset((rows,))
        by_row = Behind(walked, rows) if walked is not None and rows is not None else None
        on_edges: Need = None if edges is None and by_row is None else frozenset(x for x in (edges or by_row,) if x)
        for ref in cone:
            node = self.program.nodes[ref]
            for x in operands(node):
                if x not in reads:
                    continue
                space = type_of(self.program, x).space
                if isinstance(node, ir.Pull):
                    self.need(x, self._pulled(node.map, region, by_row, edges, of_rows))
                elif space == region.rows:
                    self.need(x, of_rows)
                else:
                    self.need(x, on_edges if self._walks(space, region) else None)
        for x in reads & set(step.writes):
            self.need(x, None)

    def _pulled(self, m: ir.Ref, region: Region, by_row: Behind | None, edges: Behind | None, of_rows: Need) -> Need:
        if not self._walks(map_type(self.program, m).dom, region):
            return None
        if m == region.map and of_rows is not None:
            return of_rows
        among = edges or by_row  # edges that are left out have rows behind the limit, too
        return None if among is None else frozenset((reached(among, m),))
