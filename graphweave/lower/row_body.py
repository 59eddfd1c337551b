"""The body of a row: passes over its edges, and between them the members that are computed at the row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from graphweave.analysis.cones import space_of, type_of
from graphweave.core.types import UNIT, Op
from graphweave.ir.loop import nodes as loop
from graphweave.ir.message.nodes import Push, Ref
from graphweave.lower.blocks import choose_blocks, stores_into, write
from graphweave.lower.draft import CSR, Draft
from graphweave.lower.edge_pass import EdgePass
from graphweave.lower.expressions import shape_of
from graphweave.lower.online import Passes
from graphweave.lower.parameters import map_name, value_name


class RowBody:
    """The work of a kernel for each row `v`: it computes `members`, and copies values to arrays that others read."""

    def __init__(
        self, draft: Draft, members: Iterable[Ref], passes: Passes, kept: Mapping[Ref, str] | None = None
    ) -> None:
        """`passes` are the region's; `kept` are values of the row with the tile arrays to which they are copied."""
        self.draft, self.program = draft, draft.program
        self.members, self.passes, self.kept = tuple(members), passes, kept or {}
        self.positions: dict[Ref, loop.Let] = {}  # map -> the row to which it sends this row, read before anything else

    def statements(self) -> list[loop.Stmt]:
        draft, members = self.draft, self.members
        phases, online = self.passes
        blocks = self._blocks()
        body: list[loop.Stmt] = []
        for p in range(max((phases[r] for r in members), default=0) + 1):
            if p > 0:
                here = [r for r in members if r in draft.on_edges and phases[r] == p]
                body += EdgePass(draft, here, {m: sums for m, sums in online.items() if m in here}).statements()
            for r in members:
                if r not in draft.on_edges and phases[r] == p:
                    body += self._member(r, r in blocks)
        for r, array in self.kept.items():
            if r not in draft.members:
                self._read(r)
            body += write(draft.row, r, stores_into(array, (loop.Var("v"),), shape_of(self.program, r)), draft.names)
        return [*self.positions.values(), *body]

    def _blocks(self) -> frozenset[Ref]:
        """Values of the row, members and others inside them, that are computed once into an array."""
        draft = self.draft
        at_edges = {y for r in draft.on_edges.intersection(self.members) for y in draft.local(r)}
        uses = Counter([*draft.region.outputs, *self.kept])
        for r in at_edges:
            uses[r] += 2  # read again at every edge
        inner: set[Ref] = set()
        for r in (*self.members, *self.kept):
            if r in draft.on_edges or r in draft.region.products:
                continue
            node = self.program.nodes[r]
            inner.update(draft.needs[r].inner)
            if isinstance(node, Push):
                uses[node.x] += 1
            else:
                inner.add(r)
        at_rows = [r for r in inner if space_of(self.program, r) in (draft.region.rows, UNIT)]
        there = draft.given | draft.row.at.keys()
        chosen = choose_blocks(self.program, at_rows, uses, there, frozenset(at_edges), draft.forced)
        return frozenset(chosen)

    def _member(self, ref: Ref, block: bool) -> list[loop.Stmt]:
        draft, node = self.draft, self.program.nodes[ref]
        if ref in draft.region.products:  # the product has been computed
            return draft.output(draft.row, ref, "v") if ref in draft.region.outputs else []
        if isinstance(node, Push) and not draft.is_total(node):
            out = self._degree_times(ref, node)
        else:
            self._read(ref)
            out = self._blocks_inside(ref)
            if isinstance(node, Push):
                return out + draft.total(draft.row, ref, node)
            if block:
                out += draft.comment(ref) + self._block(ref)
        if ref in draft.region.outputs:
            out += draft.output(draft.row, ref, "v")
        return out

    def _read(self, ref: Ref) -> None:
        """Make every leaf of a member that is computed at the row loadable."""
        row, parameters = self.draft.row, self.draft.parameters
        n = self.draft.needs[ref]
        for r in (*n.same, *n.shared):
            self.draft.read_at_row(r)
        for y, m in n.pulls:
            lead = self.draft.of_item(m, loop.Var("v"))
            if lead is not None:
                row.gathered[(y, m)] = (parameters.tensor(y), lead)
                continue
            at = f"{map_name(m)}_v"
            self.positions.setdefault(
                m, loop.Let(at, parameters.index, loop.Load(parameters.flat(m), (loop.Var("v"),)))
            )
            row.gathered[(y, m)] = (parameters.tensor(y), (loop.Var(at),))

    def _blocks_inside(self, ref: Ref) -> list[loop.Stmt]:
        """Compute into arrays what a member at the row recomputes inside (as a total does), where that pays."""
        draft = self.draft
        kept = draft.given | draft.row.at.keys()
        inside = choose_blocks(self.program, draft.needs[ref].inner, {ref: 1}, kept, frozenset(), draft.forced)
        return [s for r in inside for s in self._block(r)]

    def _block(self, ref: Ref) -> list[loop.Stmt]:
        return self.draft.block(self.draft.row, ref, f"{value_name(self.program, ref)}_v")

    def _degree_times(self, ref: Ref, push: Push) -> list[loop.Stmt]:
        const, t = self.draft.constant_push(push), type_of(self.program, ref)
        assert const is not None
        count: loop.Expr = loop.CastTo(loop.Degree(CSR, loop.Var("v")), t.dtype)
        if const.value != 1:
            count = loop.Call(Op.mul, (count, loop.Lit(const.value, t.dtype)))
        return [self.draft.row_array(ref), *self.draft.fill(ref, lambda _: count)]
