"""Nodes in another order: rows of a space V live in a space V', in which neighbours lie near each other.

    y = push(pull(x, src), dst)
->  y' = push(pull(pull(x, order), src'), dst');  y = pull(y', rank)

`rank: V -> V'` and `order: V' -> V` are the two directions of one permutation, which is made once a graph, and so are
the maps `src' = rank . src` and `dst' = rank . dst`. Legal always, as no operation but random numbers, calls and unions
depends on the order of rows: these compute in the order of V, and so do inputs and results. What kernels compute
between them is on V', so that the rows that edges gather are more often in a cache. The orders are those of
`core/locality.py`. Sums over rows add in another order. Inputs that are likely to come again, such as features, are
not pulled at each call but kept in the new order (`Reordered`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphweave.analysis.cones import row_space
from graphweave.analysis.facts import Facts
from graphweave.core.lines import Location
from graphweave.core.locality import RowOrder
from graphweave.core.types import Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder, operands, with_operands
from graphweave.passes.pass_facts import NO_FACTS, PassFacts
from graphweave.passes.rewritten import Rewritten, unchanged
from graphweave.passes.substitute import substitute

_ANY_ORDER = (
    ir.Const, ir.Pointwise, ir.Cast, ir.Reduce, ir.Reshape, ir.Broadcast, ir.Permute, ir.Slice, ir.Pad,
    ir.Concat, ir.Pull, ir.Push, ir.MatMul, ir.AddMatMul, ir.Gram,
)  # fmt: skip
"""Nodes that compute the same rows in whatever order they lie."""


@dataclass(frozen=True, slots=True)
class Relabel:
    """Inputs that are likely to be the same at the next call are kept in the new order."""

    name: str = "relabel"

    def __call__(self, program: ir.Program, facts: PassFacts = NO_FACTS) -> Rewritten:
        """`program` with the rows of each space in an order of its own that edges with both ends in it give; the same
        object where there is none."""
        asked = facts.choices.relabel
        chosen = facts.choose_order if asked == "auto" else asked or None
        ends = {} if chosen is None else _ends(facts.of(program))
        if chosen is None or not ends:
            return unchanged(program)
        order, notes = (chosen, ()) if isinstance(chosen, str) else _told(*chosen(program, ends))
        if order is None:
            return replace(unchanged(program), notes=notes)
        made = _Relabelled(program, ends, order, facts.steady)
        outputs = [None if r is None else made.given(r) for r in program.outputs]
        where = {
            r: made.somewhere(r) for r in range(len(program.nodes)) if not isinstance(program.types[r], ir.MapType)
        }
        done = substitute(
            made.build, len(made.build.nodes), {}, outputs, [made.given(r) for r in facts.keep], made.spaces
        )  # fmt: skip
        places = {old: done.where[new] for old, new in where.items() if new in done.where}
        return replace(
            done, where=places, unions=tuple((near, (space,)) for space, near in made.near_space.items()), notes=notes
        )


def _told(order: RowOrder | None, why: str) -> tuple[RowOrder | None, tuple[str, ...]]:
    return order, (f"relabel: {'no order' if order is None else order}, {why}",)


def _ends(facts: Facts) -> dict[Space, tuple[ir.Ref, ir.Ref]]:
    """For each space of known row count, two maps into it from the same edges that depend on the graph alone.

    Spaces that have a twin, and twins, are left out.
    """
    program, only = facts.program, facts.flow.graph_only
    known = {s for s, rows in program.spaces if rows is not None}
    known -= {
        n.of if isinstance(n, ir.Places) else n.space for n in program.nodes if isinstance(n, ir.Places | ir.Inverse)
    }
    first: dict[tuple[Space, Space], ir.Ref] = {}
    found: dict[Space, tuple[ir.Ref, ir.Ref]] = {}
    for ref, node in enumerate(program.nodes):
        if isinstance(node, ir.MapOf) and node.cod in known and node.index in only:
            t = program.types[ref]
            assert isinstance(t, ir.MapType)
            other = first.setdefault((t.dom, t.cod), ref)
            index = program.nodes[other]
            if t.dom != t.cod and isinstance(index, ir.MapOf) and index.index != node.index:
                found.setdefault(t.cod, (other, ref))
    return found


class _Relabelled:
    """The program in the making. A value on a relabelled space exists in the user's order (`given`), in that of the
    twin space (`near`), or, once somebody asks for it, in both."""

    def __init__(
        self, program: ir.Program, ends: dict[Space, tuple[ir.Ref, ir.Ref]], order: RowOrder, steady: frozenset[str]
    ) -> None:
        self._program, self._ends, self._order, self._steady = program, ends, order, steady
        self.build = Builder()
        self.near_space = {space: Space(f"{space.name}_near") for space in ends}
        rows = dict(program.spaces)
        self.spaces = (*program.spaces, *((near, rows[space]) for space, near in self.near_space.items()))
        self._given: dict[ir.Ref, ir.Ref] = {}
        self._near: dict[ir.Ref, ir.Ref] = {}
        self._rank: dict[Space, ir.Ref] = {}
        for ref, node in enumerate(program.nodes):
            if isinstance(node, ir.Input):  # inputs stay in their order
                self._given[ref] = self.build.add(node, program.locs[ref])
        for ref in range(len(program.nodes)):
            self._add(ref)

    # -------------------------------------------------------- values in either order

    def given(self, ref: ir.Ref) -> ir.Ref:
        """The node in the user's order."""
        if ref not in self._given:
            if ref in self._near:
                space = row_space(self._program, ref)
                rank = self.build.add(ir.MapOf(self._ranks(space), self.near_space[space]), self._loc(ref))
                self._given[ref] = self.build.add(ir.Pull(self._near[ref], rank), self._loc(ref))
            else:
                self._given[ref] = self._copied(ref)
        return self._given[ref]

    def somewhere(self, ref: ir.Ref) -> ir.Ref:
        """The node, in the user's order if it exists in that."""
        return self._given[ref] if ref in self._given else self._near[ref]

    def near(self, ref: ir.Ref) -> ir.Ref:
        """The value in the order of the twin space; a value on any other space as it is."""
        space = row_space(self._program, ref)
        if space not in self.near_space:
            return self.given(ref)
        if ref not in self._near:
            twin = self.near_space[space]
            loc, node = self._loc(ref), self._program.nodes[ref]
            order = self.build.add(ir.Inverse(self._ranks(space), twin), loc)
            if isinstance(node, ir.Input) and node.name in self._steady:
                made: ir.Node = ir.Reordered(self.given(ref), order)
            else:
                made = ir.Pull(self.given(ref), self.build.add(ir.MapOf(order, space), loc))
            self._near[ref] = self.build.add(made, loc)
        return self._near[ref]

    def near_map(self, ref: ir.Ref) -> ir.Ref:
        """The map `ref` between twin spaces, where its ends have them."""
        node, t, loc = self._program.nodes[ref], self._program.types[ref], self._loc(ref)
        assert isinstance(t, ir.MapType)
        if isinstance(node, ir.ToUnit):
            return self.build.add(ir.ToUnit(self.near_space.get(t.dom, t.dom)), loc)
        assert isinstance(node, ir.MapOf)
        index = self.near(node.index)
        if t.cod not in self.near_space:
            return self.build.add(ir.MapOf(index, t.cod, node.wrap), loc)
        there = self.build.add(ir.MapOf(index, t.cod, node.wrap), loc)
        return self.build.add(
            ir.MapOf(self.build.add(ir.Pull(self._ranks(t.cod), there), loc), self.near_space[t.cod]), loc
        )

    # -------------------------------------------------------- one node

    def _add(self, ref: ir.Ref) -> None:
        node, t = self._program.nodes[ref], self._program.types[ref]
        if ref in self._given or isinstance(node, ir.MapOf | ir.ToUnit):
            return  # maps are made where they are used
        used = [r for r in operands(node) if self._touches(r)]
        moved = isinstance(t, ir.Type) and t.space in self.near_space
        if not isinstance(node, _ANY_ORDER) or not (moved or used):
            self._given[ref] = self._copied(ref)
            return
        new = with_operands(node, self._near_operand)
        if isinstance(new, ir.Const):
            assert isinstance(t, ir.Type)
            new = replace(new, type=replace(t, space=self.near_space[t.space]))
        added = self.build.add(new, self._loc(ref))
        (self._near if moved else self._given)[ref] = added

    def _copied(self, ref: ir.Ref) -> ir.Ref:
        return self.build.add(with_operands(self._program.nodes[ref], self.given), self._loc(ref))

    def _near_operand(self, ref: ir.Ref) -> ir.Ref:
        return self.near_map(ref) if isinstance(self._program.types[ref], ir.MapType) else self.near(ref)

    def _touches(self, ref: ir.Ref) -> bool:
        t = self._program.types[ref]
        ends = (t.dom, t.cod) if isinstance(t, ir.MapType) else (row_space(self._program, ref),)
        return any(space in self.near_space for space in ends)

    def _loc(self, ref: ir.Ref) -> Location:
        return self._program.locs[ref]

    def _ranks(self, space: Space) -> ir.Ref:
        """The place of each row of `space`."""
        if space not in self._rank:
            src, dst = (self._program.nodes[m] for m in self._ends[space])
            assert isinstance(src, ir.MapOf) and isinstance(dst, ir.MapOf)
            loc = self._loc(self._ends[space][0])
            self._rank[space] = self.build.add(
                ir.Places(self.given(src.index), self.given(dst.index), space, self._order), loc
            )
        return self._rank[space]
