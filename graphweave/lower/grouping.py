"""Greedy grouping of nodes into kernels, in program order.

A node may join a group if no value then has to travel between the rows of that group while it runs. Of all such groups
it joins the one with which it shares most bytes. Row-wise nodes that read only finished values wait (*float*) until a
node needs them, so that they end up in a group with their users.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from graphweave.analysis.cones import Needs, map_type, space_of, type_of
from graphweave.analysis.facts import Facts
from graphweave.analysis.flow import BETWEEN_RANKS, is_structure, reached
from graphweave.analysis.maps import is_repeated
from graphweave.analysis.typed import call_operands, is_typed_product, matrices
from graphweave.core.options import Options
from graphweave.core.types import UNIT, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands
from graphweave.ir.message.infer import numel
from graphweave.lower.mark_calls import apart

_GATHER_WEIGHT = 8
"""A row that edges gather counts as this many rows that are read in order: graphs have more edges than nodes."""
_WIDE_BYTES = 64
"""A row-wise value may have a kernel of its own if its rows have at least this many bytes."""


@dataclass(slots=True)
class Group:
    """One kernel in the making: `rows` is None for a single node that PyTorch runs."""

    rows: Space | None
    map: ir.Ref | None
    members: list[ir.Ref] = field(default_factory=list)
    before: set[int] = field(default_factory=set)
    """Groups that must be complete before this one starts."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups in an order that respects dependencies; `crossing` are the members that another group reads."""

    order: tuple[Group, ...]
    crossing: frozenset[ir.Ref]
    needs: dict[ir.Ref, Needs]


def group(
    facts: Facts, demanded: frozenset[ir.Ref], given: frozenset[ir.Ref], products: frozenset[ir.Ref] = frozenset(),
    options: Options | None = None,
) -> Groups:  # fmt: skip
    """Groups of the `demanded` nodes; `given` values exist already, `products` are those that kernels compute."""
    grouping = _Grouping(facts, demanded, given, products, options or Options())
    last = _after_edges(facts, demanded, products)
    for ref in (*sorted(demanded - last), *sorted(last)):
        grouping.visit(ref)
    for ref in sorted(grouping.floating):
        grouping.settle_if_floating(ref)
    if grouping.fuses:
        grouping.move_to_readers()
    return Groups(grouping.ordered(), frozenset(grouping.crossing()), grouping.needs)


def _after_edges(facts: Facts, demanded: frozenset[ir.Ref], products: frozenset[ir.Ref]) -> frozenset[ir.Ref]:
    """Totals over edges, grams of rows, and shared values computed from these, unless other nodes need them.

    They are placed last, since a total often stands before the pushes whose gathers it could share.
    """
    program, edges = facts.program, facts.flow.edge_spaces
    late: set[ir.Ref] = set()
    needed: set[ir.Ref] = set()
    for ref, node in enumerate(program.nodes):
        shared = space_of(program, ref) == UNIT
        total = shared and facts.cones.is_push(ref) and space_of(program, operands(node)[0]) in edges
        total |= ref in products and isinstance(node, ir.Gram)
        if total or (shared and not late.isdisjoint(operands(node))):
            late.add(ref)
        else:
            needed.update(operands(node))
    for ref in sorted(late, reverse=True):
        if ref in needed:
            late.discard(ref)
            needed.update(operands(program.nodes[ref]))
    return demanded & late


class _Grouping:
    def __init__(
        self, facts: Facts, demanded: frozenset[ir.Ref], given: frozenset[ir.Ref], products: frozenset[ir.Ref],
        options: Options,
    ) -> None:  # fmt: skip
        self.program, self.cones, self.products = facts.program, facts.cones, products
        self.operands = facts.flow.operands
        self.awaited: list[int] = []  # for each group a mask of those for which it waits, directly or not
        self.known_producers: dict[frozenset[ir.Ref], frozenset[int]] = {}  # until a node is placed, or floats
        self.reads_matrices, self.apart = options.typed_operand is not None, apart(self.program, options)
        self.stored, self.fuses, self.walks_items = demanded | given, options.fuse, options.items
        self.groups: list[Group] = []
        self.group_of: dict[ir.Ref, int] = {}
        self.needs: dict[ir.Ref, Needs] = {}
        self.floating: set[ir.Ref] = set()
        self.impure: int | None = None  # the last call that draws, writes or meets other ranks: these keep their order
        self.along: dict[ir.Ref, ir.Ref | None] = {}  # for values of edges: the map along whose CSR they are computed
        self.multiplied: set[ir.Ref] = (
            set()
        )  # products of rows, and nodes of their kernels that read them at the same row

    # -------------------------------------------------------- placing nodes

    def visit(self, ref: ir.Ref) -> None:
        """Take the next node of the program: place it, or let it float."""
        cones, node = self.cones, self.program.nodes[ref]
        view = cones.is_shared(ref) and not isinstance(node, ir.Pointwise | ir.Cast)
        if ref not in self.products and (not cones.is_light(ref) or isinstance(node, ir.Reshape) or view):
            self._call(ref)
            return
        self.along[ref] = cones.walks_along(ref)
        cone = cones.is_push(ref) or self.along[ref] is not None
        self.needs[ref] = cones.needs(ref, self.stored, through=cone)
        if not cone and (ref in self.products or self.multiplied & self.floating & set(self.needs[ref].same)):
            self.multiplied.add(ref)
        if not cone and not self._is_total(ref) and all(self._exists(r) for r in self.needs[ref].same):
            self.floating.add(ref)
            self.known_producers.clear()
            return
        self.settle(ref)

    def _exists(self, ref: ir.Ref) -> bool:
        """Whether `ref` is no member of a kernel: an input, a call's result, or floating itself."""
        return ref in self.floating or ref not in self.group_of or self.groups[self.group_of[ref]].rows is None

    def _call(self, ref: ir.Ref) -> None:
        for r in self._through_structure(call_operands(self.program, ref)):
            self.settle_if_floating(r)
        g = self._new_group(Group(None, None, [ref]))
        before = self._producers(call_operands(self.program, ref))
        self._place(ref, g)
        node = self.program.nodes[ref]
        if isinstance(node, BETWEEN_RANKS) or (isinstance(node, ir.Aten) and node.serial):
            before |= {self.impure} if self.impure is not None else set()
            self.impure = g
        self._wait_for(g, before)

    def settle_if_floating(self, ref: ir.Ref, reader: ir.Ref | None = None) -> None:
        if ref in self.floating:
            self.settle(ref, reader=reader)

    def settle(self, ref: ir.Ref, beside: int | None = None, reader: ir.Ref | None = None) -> None:
        """Put `ref` into the best group. `beside` is the group that is about to read it at the same row.

        `reader` is a node that needs `ref` complete, and so cannot join the group that `ref` joins.
        """
        self.floating.discard(ref)
        self.known_producers.clear()
        for r in self._complete_before(ref):
            self.settle_if_floating(r, ref)
        best = self._best(ref, beside, reader)
        floating = [r for r in self._deps(ref, best)[0] if r in self.floating]
        for r in floating:
            if r in self.floating:
                self.settle(r, best)
        if floating and not self._legal(ref, best):  # a floating operand had to go into another group
            best = self._best(ref, beside)
        self._join(ref, best)

    def _best(self, ref: ir.Ref, beside: int | None, reader: ir.Ref | None = None) -> int:
        """The legal group that saves most, or a fresh one; groups in which `reader` would save more are left to it."""
        candidates = self._legal_groups(ref)
        if reader is not None:
            lost = set(self._legal_groups(reader))
            candidates = [g for g in candidates if g not in lost or not self._saves_more(reader, ref, g)]
        if not candidates or not self._belongs(ref, candidates, beside):
            candidates = [self._new_group(Group(*self._home(ref)))]
        return max(candidates, key=lambda g: (self._shared_bytes(ref, g, beside), g))

    def _belongs(self, ref: ir.Ref, candidates: Iterable[int], beside: int | None) -> bool:
        """Whether `ref` may join an existing group. Wide rows that share no bytes with any may not.

        A kernel of their own computes these when they are needed; from an earlier one they would lie in memory longer.
        """
        if self.cones.is_push(ref) or self.along.get(ref) is not None or self._bytes(ref) < _WIDE_BYTES:
            return True
        return any(self._shared_bytes(ref, g, beside) for g in candidates)

    def _saves_more(self, reader: ir.Ref, ref: ir.Ref, g: int) -> bool:
        """Whether `reader` shares more with `g` than `ref` does; values that both compute for every edge count too."""
        theirs = {r for m in self.groups[g].members if m in self.needs for r in self.needs[m].inner}
        shared = sum(self._bytes(r) for r in self.needs[reader].inner if r in theirs)
        return self._shared_bytes(reader, g, None) + _GATHER_WEIGHT * shared > self._shared_bytes(ref, g, None)

    def _complete_before(self, ref: ir.Ref) -> list[ir.Ref]:
        """Values that must be complete before `ref`, whichever group it joins: those that it reads at other rows.

        For totals these are all that it reads. If `ref` walks edges, products of its own row are among them, since a
        kernel computes those after its edges.
        """
        n = self.needs[ref]
        _, along = self._home(ref)
        indices = self._indices(ref)
        if self._is_total(ref):
            return [*(y for y, _ in n.pulls), *n.same, *n.shared, *indices]
        if along is not None:
            inside = self.multiplied | self._matrix(ref)
            return [*(y for y, m in n.pulls if m != along or y in inside), *n.same, *n.shared, *indices]
        return [*(y for y, _ in n.pulls), *n.shared, *indices]

    def _indices(self, ref: ir.Ref) -> list[ir.Ref]:
        """The indices of the maps along which `ref` reads, or is pushed."""
        along = self.cones.pushed_along(ref) if self.cones.is_push(ref) else self.along[ref]
        maps = {m for _, m in self.needs[ref].pulls} | ({along} if along is not None else set())
        return [i.index for m in sorted(maps) if isinstance(i := self.program.nodes[m], ir.MapOf)]

    def _home(self, ref: ir.Ref) -> tuple[Space, ir.Ref | None]:
        """Rows and map of a group that is opened for `ref`."""
        node, along = self.program.nodes[ref], self.along.get(ref)
        if ref in self.products and isinstance(node, ir.Gram):
            return type_of(self.program, node.x).space, None
        if self._is_total(ref):
            if self.cones.in_tiles(ref):
                along = self.cones.tile_map(ref)
            elif isinstance(node, ir.Push):
                return map_type(self.program, node.map).dom, None
        elif self.cones.is_push(ref):
            along = self.cones.pushed_along(ref)
        if along is not None:
            return map_type(self.program, along).cod, along
        space = space_of(self.program, ref)
        assert space is not None
        return space, None

    def _is_total(self, ref: ir.Ref) -> bool:
        pushed = self.cones.is_push(ref) or ref in self.products
        return pushed and space_of(self.program, ref) == UNIT

    def _candidates(self, ref: ir.Ref) -> list[int]:
        """Groups with the rows and map that `ref` needs; for totals over edges all groups that walk these edges."""
        if not self.fuses:
            return []
        rows, along = self._home(ref)
        found, total = [], self._is_total(ref)
        for i, g in enumerate(self.groups):
            if total:
                node = self.program.nodes[ref]
                assert isinstance(node, ir.Push | ir.Gram)
                walks = g.map is not None and map_type(self.program, g.map).dom == space_of(self.program, node.x)
                fits = (walks and ref not in self.products) or (along is None and g.rows == rows)
            else:
                fits = g.rows == rows and (along is None or g.map in (None, along))
                fits = fits and self._sums_items(g.map) == self._sums_items(along)
            if fits:
                found.append(i)
        return found

    def _sums_items(self, along: ir.Ref | None) -> bool:
        """Whether kernels fold along the map over the items of a batch, and so compute nothing else."""
        return self.walks_items and along is not None and is_repeated(self.program.nodes, along)

    def _legal_groups(self, ref: ir.Ref) -> list[int]:
        """The candidates that `ref` may join. Most of a deep program's are ruled out at once, since something that
        `ref` needs waits for them."""
        n, awaited = self.needs[ref], 0
        for p in self._producers([*(y for y, _ in n.pulls), *n.same, *n.shared, *self._indices(ref)]):
            awaited |= self.awaited[p]
        return [g for g in self._candidates(ref) if not awaited >> g & 1 and self._legal(ref, g)]

    def _legal(self, ref: ir.Ref, g: int) -> bool:
        """Whether `ref` may join `g`.

        It must not need values of other rows of `g`, or values that wait for `g` to finish. If it walks edges, it must
        not need a product of `g`. A node in `apart` shares its group with no other.
        """
        local, remote = self._deps(ref, g)
        members = self.groups[g].members
        if any(self.group_of.get(r) == g for r in remote) or (ref in self.apart and members):
            return False
        if not self.apart.isdisjoint(members):
            return False
        if self._walks(ref, g) and any(self.group_of.get(r) == g and r in self.multiplied for r in local):
            return False
        outside = self._producers([*local, *remote]) - {g}
        return not any(self._waits_for(p, g) for p in outside)

    def _walks(self, ref: ir.Ref, g: int) -> bool:
        """Whether `ref`, as a member of `g`, is computed on the edges of its rows."""
        node = self.program.nodes[ref]
        if isinstance(node, ir.Push):
            return map_type(self.program, node.map).dom != self.groups[g].rows
        return self.along[ref] is not None or self.cones.is_push(ref)

    def _join(self, ref: ir.Ref, g: int) -> None:
        local, remote = self._deps(ref, g)
        group = self.groups[g]
        _, along = self._home(ref)
        if along is not None and group.map is None:
            group.map = along
        group.members.append(ref)
        self._wait_for(g, self._producers([*local, *remote]) - {g})
        self._place(ref, g)
        behind = any(self.group_of.get(r) == g and r in self.multiplied for r in local)
        if ref not in self.products and not behind:
            self.multiplied.discard(ref)
        elif not self._walks(ref, g):
            self.multiplied.add(ref)

    # -------------------------------------------------------- what a node reads, and what that costs

    def _deps(self, ref: ir.Ref, g: int) -> tuple[list[ir.Ref], list[ir.Ref]]:
        """Values that `ref`, as a member of `g`, needs at the same row, and values that it needs complete."""
        group, n, node = self.groups[g], self.needs[ref], self.program.nodes[ref]
        along = self.cones.pushed_along(ref) if self.cones.is_push(ref) else self.along[ref]
        row_total = isinstance(node, ir.Push) and map_type(self.program, node.map).dom == group.rows
        edge_level = along is not None or (self.cones.is_push(ref) and not row_total)
        walked = along if along is not None else (group.map if edge_level else None)
        own = [y for y, m in n.pulls if m == walked and y not in self._matrix(ref)]
        local = own if edge_level else list(n.same)
        remote = [y for y, m in n.pulls if not edge_level or m != walked or y not in own]
        remote += [*n.shared, *(r for r in n.same if edge_level and not self._is_made_on_edges(r, g))]
        return local, remote + self._indices(ref)

    def _is_made_on_edges(self, ref: ir.Ref, g: int) -> bool:
        """Whether `g` computes `ref` for each edge, so that other members have it there before it is in memory."""
        along = self.along.get(ref)
        return along is not None and self.group_of.get(ref) == g and not is_typed_product(self.program.nodes[ref])

    def _shared_bytes(self, ref: ir.Ref, g: int, beside: int | None) -> int:
        """Bytes a row that need not be moved if `ref` joins `g`, as results stay local and reads are done once."""
        group = self.groups[g]
        local, remote = self._deps(ref, g)
        local = self._with_floating(local)
        members = set(group.members)
        gain = sum(self._bytes(r) for r in local if r in members)
        if beside == g:
            gain += 2 * self._bytes(ref)
        read_locally: set[ir.Ref] = set()
        gathered: set[ir.Ref] = set()
        for m in group.members:
            theirs, far = self._deps(m, g)
            read_locally.update(theirs)
            gathered.update(far)
        gain += sum(self._bytes(r) for r in local if r in read_locally and r not in members)
        gain += _GATHER_WEIGHT * sum(self._bytes(r) for r in self.needs[ref].same if self._is_made_on_edges(r, g))
        return gain + _GATHER_WEIGHT * sum(self._bytes(r) for r in remote if r in gathered)

    def _matrix(self, ref: ir.Ref) -> frozenset[ir.Ref]:
        """The matrices of the typed product `ref`, if kernels can only read these from memory."""
        node = self.program.nodes[ref]
        if not self.reads_matrices or not isinstance(node, ir.MatMul) or node.map is None:
            return frozenset()
        return frozenset([matrices(self.program, node.w).w])

    def _with_floating(self, refs: Iterable[ir.Ref]) -> list[ir.Ref]:
        """`refs`, and what floating products of rows (and floating nodes that need them) among `refs` read."""
        found: dict[ir.Ref, None] = {}
        todo = list(refs)
        while todo:
            r = todo.pop()
            if r not in found:
                found[r] = None
                todo.extend(self.needs[r].same if r in self.floating & self.multiplied else ())
        return list(found)

    def _bytes(self, ref: ir.Ref) -> int:
        t = self.program.types[ref]
        return numel(t.shape) * t.dtype.itemsize if isinstance(t, ir.Type) and t.space != UNIT else 0

    # -------------------------------------------------------- second thoughts

    def move_to_readers(self) -> None:
        """Move row-wise values to the kernel that reads them, if it is only one and their operands are stored anyway.

        They were placed with their operands, since no reader had been placed yet.
        """
        outputs, read_by = set(self.program.outputs), self._read_by()
        for ref in sorted(self.along, reverse=True):
            g, readers = self.group_of[ref], read_by.get(ref, {})
            groups = {self.group_of[m] for m in readers}
            here = self.groups[g]
            moves = ref not in outputs and ref not in self.products and self._is_row_wise(ref) and here.rows is not None
            if not moves or g in groups or len(groups) != 1 or not all(readers.values()):
                continue
            (h,) = groups
            own = self.needs[ref].same
            stored = (r for r in own if self.group_of.get(r) == g and r not in outputs)
            if self.groups[h].rows != here.rows or any(
                all(self.group_of[m] == g for m in read_by[r] if m != ref) for r in stored
            ):
                continue
            there = {r for m in self.groups[h].members for r in self._deps(m, h)[0]}
            if sum(self._bytes(r) for r in own if r not in there) <= 2 * self._bytes(ref):
                here.members.remove(ref)
                self._join(ref, h)

    def _is_row_wise(self, ref: ir.Ref) -> bool:
        return self.along[ref] is None and not self.cones.is_push(ref)

    def _read_by(self) -> dict[ir.Ref, dict[ir.Ref, bool]]:
        """The members and calls that read each value, each with whether it does so only at its own row."""
        found: dict[ir.Ref, dict[ir.Ref, bool]] = {}
        for g, group in enumerate(self.groups):
            for m in group.members:
                local, remote = self._deps(m, g) if group.rows is not None else ([], list(self._called(m)))
                for r in local:
                    found.setdefault(r, {})[m] = True
                for r in remote:
                    found.setdefault(r, {})[m] = False
        return found

    def _called(self, ref: ir.Ref) -> set[ir.Ref]:
        return self._through_structure(call_operands(self.program, ref))

    # -------------------------------------------------------- order between groups

    def _new_group(self, group: Group) -> int:
        self.groups.append(group)
        self.awaited.append(0)
        return len(self.groups) - 1

    def _place(self, ref: ir.Ref, g: int) -> None:
        self.group_of[ref] = g
        self.known_producers.clear()

    def _wait_for(self, g: int, before: Iterable[int]) -> None:
        """Let a group wait for others, and with it those that wait for it."""
        fresh = set(before) - self.groups[g].before
        self.groups[g].before |= fresh
        mask = self.awaited[g]
        for p in fresh:
            mask |= self.awaited[p] | 1 << p
        if mask != self.awaited[g]:
            self.awaited = [known | mask if i == g or known >> g & 1 else known for i, known in enumerate(self.awaited)]

    def _producers(self, refs: Iterable[ir.Ref]) -> frozenset[int]:
        """Groups that compute `refs`; looks through structure and through values that are inlined or float."""
        key = frozenset(refs)
        found = self.known_producers.get(key)
        if found is None:
            seen = reached(key, self._made_of)
            found = frozenset(self.group_of[r] for r in seen if r in self.group_of)
            self.known_producers[key] = found
        return found

    def _made_of(self, ref: ir.Ref) -> tuple[ir.Ref, ...]:
        """The values that a value is computed from, if no group computes it by itself."""
        inlined = ref in self.floating or (ref not in self.stored and not isinstance(self.program.nodes[ref], ir.Input))
        return self.operands[ref] if inlined and ref not in self.group_of else ()

    def _waits_for(self, start: int, target: int) -> bool:
        return start == target or bool(self.awaited[start] >> target & 1)

    def ordered(self) -> tuple[Group, ...]:
        """Groups in dependency order; where that leaves a choice, the one with the earliest member comes first."""
        order: list[Group] = []
        done: set[int] = set()

        def take(g: int) -> None:
            if g in done:
                return
            done.add(g)
            for p in sorted(self.groups[g].before):
                take(p)
            order.append(self.groups[g])

        joined = [g for g, group in enumerate(self.groups) if group.members]
        for g in sorted(joined, key=lambda g: min(self.groups[g].members)):
            take(g)
        return tuple(order)

    def crossing(self) -> set[ir.Ref]:
        out: set[ir.Ref] = set()
        for g, group in enumerate(self.groups):
            for ref in group.members:
                if group.rows is None:
                    out |= self._called(ref)
                    continue
                local, remote = self._deps(ref, g)
                out.update(r for r in (*local, *remote) if self.group_of.get(r) != g)
        return out

    def _through_structure(self, refs: Iterable[ir.Ref]) -> set[ir.Ref]:
        out: set[ir.Ref] = set()
        for r in refs:
            node = self.program.nodes[r]
            out.update(operands(node) if is_structure(node) else (r,))
        return out
