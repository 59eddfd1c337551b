"""Which nodes run in which kernel.

A region is one kernel: rows of one space, plus any number of edge phases along at most one map. Nodes join the region
of what they depend on whenever no value would have to travel between rows inside it; the rest stays with PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from graphweave.analysis.cones import Needs, is_light, map_type, needs, space_of
from graphweave.analysis.flow import is_structure
from graphweave.core.types import UNIT, Space
from graphweave.ir.message.builder import operands
from graphweave.ir.message.nodes import Const, Input, MapOf, Program, Pull, Push, Ref, Reshape, ToUnit


@dataclass(frozen=True, slots=True)
class Region:
    """`members` are computed row by row over `rows`; pushes among them walk the edges of `map`, totals all rows.

    `outputs` are the members that somebody outside needs.
    """

    rows: Space
    map: Ref | None
    members: tuple[Ref, ...]
    outputs: tuple[Ref, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One node run by PyTorch."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps in an order that respects every dependency; `stored` are the nodes that exist as tensors."""

    steps: tuple[Region | Call, ...]
    stored: frozenset[Ref]


def schedule(program: Program, given: Iterable[Ref] = ()) -> Schedule:
    """Regions and calls that compute the program's outputs; `given` values exist already (hoisted ones)."""
    given = frozenset(given)
    demanded = demand(program, given)
    grouping = _Grouping(program, demanded, given)
    for ref in sorted(demanded):
        grouping.place(ref)
    return grouping.finish()


def demand(program: Program, given: frozenset[Ref]) -> frozenset[Ref]:
    """The nodes that must be evaluated at their own row (all others are recomputed inside what uses them)."""
    found: set[Ref] = set()
    todo = [r for r in program.outputs if r is not None]
    while todo:
        ref = todo.pop()
        node = program.nodes[ref]
        if ref in found or ref in given or isinstance(node, Input | Const) or isinstance(node, MapOf | ToUnit):
            if isinstance(node, MapOf):
                todo.append(node.index)
            continue
        found.add(ref)
        if not is_light(program, ref):
            todo.extend(operands(node))
            continue
        if isinstance(node, Reshape) or (space_of(program, ref) == UNIT and not isinstance(node, Push)):
            todo.extend(operands(node))
            continue
        n = needs(program, ref, frozenset(), through=isinstance(node, Push))
        todo.extend(r for r, _ in n.pulls)
        todo.extend(m for _, m in n.pulls)
        todo.extend((*n.same, *n.shared))
        if isinstance(node, Push):
            todo.append(node.map)
    return frozenset(found)


@dataclass(slots=True)
class _Group:
    rows: Space | None
    map: Ref | None
    members: list[Ref] = field(default_factory=list)
    before: set[int] = field(default_factory=set)  # groups that must be complete before this one starts


class _Grouping:
    def __init__(self, program: Program, demanded: frozenset[Ref], given: frozenset[Ref]) -> None:
        self.program = program
        self.stored = demanded | given
        self.groups: list[_Group] = []
        self.group_of: dict[Ref, int] = {}
        self.needs: dict[Ref, Needs] = {}

    # -------------------------------------------------------- placing one node

    def place(self, ref: Ref) -> None:
        program, node = self.program, self.program.nodes[ref]
        space = space_of(program, ref)
        if not is_light(program, ref) or isinstance(node, Reshape) or (space == UNIT and not isinstance(node, Push)):
            self._alone(ref)
            return
        self.needs[ref] = needs(program, ref, self.stored, through=isinstance(node, Push))
        candidates = [g for g in self._candidates(ref) if self._legal(ref, g)]
        if not candidates:
            self.groups.append(_Group(*self._home(ref)))
            candidates = [len(self.groups) - 1]
        self._join(ref, max(candidates, key=lambda g: (self._shared_leaves(ref, g), g)))

    def _alone(self, ref: Ref) -> None:
        self.groups.append(_Group(None, None, [ref]))
        self.group_of[ref] = len(self.groups) - 1
        self.groups[-1].before |= self._producers(operands(self.program.nodes[ref]))

    def _home(self, ref: Ref) -> tuple[Space, Ref | None]:
        """Rows and map of a region opened for `ref`."""
        node = self.program.nodes[ref]
        if isinstance(node, Push):
            m = map_type(self.program, node.map)
            return (m.dom, None) if m.cod == UNIT else (m.cod, node.map)
        space = space_of(self.program, ref)
        assert space is not None
        return space, None

    def _candidates(self, ref: Ref) -> list[int]:
        program, node = self.program, self.program.nodes[ref]
        rows, along = self._home(ref)
        total = isinstance(node, Push) and along is None
        found = []
        for i, g in enumerate(self.groups):
            same_rows = g.rows == rows and (along is None or g.map in (None, along))
            on_edges = total and g.map is not None and map_type(program, g.map).dom == rows
            if same_rows or on_edges:
                found.append(i)
        return found

    def _legal(self, ref: Ref, g: int) -> bool:
        """No value of another row of `g` is needed, and nothing needed waits for `g` to finish."""
        local, remote = self._deps(ref, g)
        if any(self.group_of.get(r) == g for r in remote):
            return False
        outside = self._producers([*local, *remote]) - {g}
        return not any(self._waits_for(p, g) for p in outside)

    def _deps(self, ref: Ref, g: int) -> tuple[list[Ref], list[Ref]]:
        """Values `ref` needs at the same row of group `g`, and values it needs complete."""
        group, n, node = self.groups[g], self.needs[ref], self.program.nodes[ref]
        along = node.map if isinstance(node, Push) and isinstance(self.program.nodes[node.map], MapOf) else None
        edge_level = along is not None or (isinstance(node, Push) and not self._row_total(ref, group))
        walked = along if along is not None else (group.map if edge_level else None)
        local = [y for y, m in n.pulls if m == walked] if edge_level else list(n.same)
        remote = [y for y, m in n.pulls if not edge_level or m != walked]
        remote += [*n.shared, *(n.same if edge_level else ())]
        maps = {m for _, m in n.pulls} | ({along} if along is not None else set())
        remote += [i.index for m in sorted(maps) if isinstance(i := self.program.nodes[m], MapOf)]
        return local, remote

    def _row_total(self, ref: Ref, group: _Group) -> bool:
        node = self.program.nodes[ref]
        return isinstance(node, Push) and map_type(self.program, node.map).dom == group.rows

    def _shared_leaves(self, ref: Ref, g: int) -> int:
        """How much of what `ref` reads the group reads or computes already."""
        local, remote = self._deps(ref, g)
        members = set(self.groups[g].members)
        mine = set(local) | set(remote)
        reads = {r for m in self.groups[g].members for part in self._deps(m, g) for r in part}
        return 4 * len(mine & members) + len(mine & reads)

    def _join(self, ref: Ref, g: int) -> None:
        local, remote = self._deps(ref, g)
        group = self.groups[g]
        rows, along = self._home(ref)
        if along is not None:
            group.map = along
        assert group.rows is not None and rows is not None
        group.members.append(ref)
        group.before |= self._producers([*local, *remote]) - {g}
        self.group_of[ref] = g

    # -------------------------------------------------------- order between groups

    def _producers(self, refs: Iterable[Ref]) -> set[int]:
        """Groups whose completion the values `refs` need; structure and inlined shared nodes are looked through."""
        out: set[int] = set()
        todo = list(refs)
        while todo:
            r = todo.pop()
            if r in self.group_of:
                out.add(self.group_of[r])
            elif r not in self.stored and not isinstance(self.program.nodes[r], Input):
                todo.extend(operands(self.program.nodes[r]))
        return out

    def _waits_for(self, start: int, target: int) -> bool:
        seen: set[int] = set()
        todo = [start]
        while todo:
            g = todo.pop()
            if g == target:
                return True
            if g not in seen:
                seen.add(g)
                todo.extend(self.groups[g].before)
        return False

    # -------------------------------------------------------- the finished schedule

    def finish(self) -> Schedule:
        wanted = self._wanted_outside()
        steps: list[Region | Call] = []
        for g in self._sorted():
            group = self.groups[g]
            if group.rows is None or self._not_worth_a_kernel(group):
                steps.extend(Call(r) for r in group.members)
            else:
                members = tuple(sorted(group.members))
                steps.append(Region(group.rows, group.map, members, tuple(r for r in members if r in wanted)))
        return Schedule(tuple(steps), self.stored)

    def _wanted_outside(self) -> set[Ref]:
        out = {r for r in self.program.outputs if r is not None}
        for g, group in enumerate(self.groups):
            for ref in group.members:
                if group.rows is None:
                    out.update(self._through_structure(operands(self.program.nodes[ref])))
                    continue
                local, remote = self._deps(ref, g)
                out.update(r for r in (*local, *remote) if self.group_of.get(r) != g)
        return out

    def _through_structure(self, refs: Iterable[Ref]) -> set[Ref]:
        out: set[Ref] = set()
        for r in refs:
            node = self.program.nodes[r]
            out.update(operands(node) if is_structure(node) else (r,))
        return out

    def _not_worth_a_kernel(self, group: _Group) -> bool:
        """A single row-wise node gains nothing from a kernel of its own over PyTorch's."""
        if group.map is not None or len(group.members) > 1:
            return False
        ref = group.members[0]
        n = self.needs[ref]
        return not (n.inner if isinstance(self.program.nodes[ref], Push) else n.pulls and not self._is_pull(ref))

    def _is_pull(self, ref: Ref) -> bool:
        return isinstance(self.program.nodes[ref], Pull)

    def _sorted(self) -> list[int]:
        """Groups in dependency order, earliest first member first."""
        order: list[int] = []
        done: set[int] = set()

        def visit(g: int) -> None:
            if g in done:
                return
            done.add(g)
            for p in sorted(self.groups[g].before):
                visit(p)
            order.append(g)

        for g in sorted(range(len(self.groups)), key=lambda g: min(self.groups[g].members)):
            visit(g)
        return order
