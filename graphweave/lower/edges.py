"""One pass over the edges of a row: what each edge reads, computes, keeps for later passes and adds to the row."""

from __future__ import annotations

from collections import Counter

from graphweave.analysis.cones import needs, space_of, type_of
from graphweave.core.types import UNIT, DType, Op
from graphweave.ir.loop.nodes import Call, Degree, Edges, Let, Lit, Load, Prefetch, Stash, Stmt, Var
from graphweave.ir.loop.types import identity
from graphweave.ir.message.builder import operands
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import Push, Random, Ref
from graphweave.lower.blocks import choose_blocks, folds_into, is_expensive, stores_into, write
from graphweave.lower.draft import CSR, Draft
from graphweave.lower.parameters import map_name, value_name
from graphweave.lower.values import Scope, load, shape_of


class EdgePass:
    """Computes `members`: pushes into the row, totals over all edges, and values of the edges themselves."""

    def __init__(self, draft: Draft, members: list[Ref]) -> None:
        assert draft.region.map is not None
        self._draft, self._program, self._members, self._map = draft, draft.program, members, draft.region.map
        self._edge = Scope(draft.program, map=self._map, outer=draft.row, position=Var("e"))
        nodes = ((r, self._program.nodes[r]) for r in members)
        self._accumulated = {r: n for r, n in nodes if isinstance(n, Push) and not draft.is_total(n)}

    def statements(self) -> list[Stmt]:
        """Accumulators, the loop over edges, and what is done with the accumulators after it."""
        out: list[Stmt] = []
        for r, push in self._accumulated.items():
            start = identity(push.fold, type_of(self._program, r).dtype).value
            out += [*self._draft.comment(r), self._draft.row_array(r, start)]
        inner = self._reads()
        prefetch, body = self._lets(inner)
        body += self._blocks(inner)
        for r in self._members:
            body += self._result(r)
        out.append(Edges("k", CSR, "v", tuple(prefetch), tuple(body)))
        for r, push in self._accumulated.items():
            out += self._without_edges(r, push)
        for r in self._accumulated:
            if r in self._draft.region.outputs:
                out += self._draft.output(self._draft.row, r, "v")
        return out

    # -------------------------------------------------------- what an edge reads

    def _reads(self) -> list[Ref]:
        """Bind the leaves of the members' cones; the nodes to recompute, stashed ones being leaves."""
        draft, stashes = self._draft, self._draft.stashes
        kept = draft.stored | stashes.keys()
        inner: set[Ref] = set()
        for r in self._members:
            n = needs(self._program, r, kept, through=True)
            inner.update(n.inner)
            for y, m in n.pulls:
                if m == self._map:
                    draft.read_at_row(y)
                else:
                    self._edge.gathered[(y, m)] = (draft.parameters.tensor(y), (Var(f"{map_name(m)}_k"),))
            for s in n.same:
                if s in stashes:
                    self._edge.at[s] = (stashes[s].name, (Var("k"),))
                else:
                    self._edge.at[s] = (draft.parameters.tensor(s), (Var("e"),))
            for s in n.shared:
                draft.read_at_row(s)
        return sorted(inner)

    def _lets(self, inner: list[Ref]) -> tuple[list[Prefetch], list[Stmt]]:
        """The rows that this edge touches, read once; and which of them to ask for early."""
        parameters, options = self._draft.parameters, self._draft.options
        index = parameters.index
        lets: list[Stmt] = []
        prefetch: list[Prefetch] = []
        stores = any(not isinstance(self._program.nodes[r], Push) for r in self._members)
        draws = any(isinstance(self._program.nodes[r], Random) for r in (*inner, *self._members))
        if stores or draws or any(lead == (Var("e"),) for _, lead in self._edge.at.values()):
            lets.append(Let("e", index, Load(parameters.perm(self._map), (Var("k"),))))
        for (y, m), (name, _) in self._edge.gathered.items():
            column = parameters.column(self._map, m)
            let = Let(f"{map_name(m)}_k", index, Load(column, (Var("k"),)))
            if let not in lets:
                lets.append(let)
            t = type_of(self._program, y)
            if numel(t.shape) * t.dtype.itemsize >= options.prefetch_bytes:
                prefetch.append(Prefetch(name, column, options.prefetch_distance))
        return prefetch, lets

    # -------------------------------------------------------- what an edge computes once

    def _blocks(self, inner: list[Ref]) -> list[Stmt]:
        draft = self._draft
        later = self._wanted_later(inner)
        uses = Counter(later)
        for r in self._members:
            node = self._program.nodes[r]
            uses.update((node.x,) if isinstance(node, Push) else operands(node))
        kept = frozenset(self._edge.at) | frozenset(draft.row.at)
        out: list[Stmt] = []
        for r in choose_blocks(self._program, inner, uses, kept, frozenset(), draft.forced | later):
            out += draft.comment(r)
            out += self._stash(r) if r in later else draft.block(self._edge, r, value_name(self._program, r))
        return out

    def _wanted_later(self, inner: list[Ref]) -> frozenset[Ref]:
        """Expensive narrow nodes of this pass that a later pass would otherwise recompute."""
        draft = self._draft
        ahead: set[Ref] = set()
        for r in draft.on_edges.difference(self._members, draft.row.at):
            ahead.update(draft.needs[r].inner)
        return frozenset(
            r for r in inner
            if r in ahead and is_expensive(self._program, r)
            and numel(shape_of(self._program, r)) <= draft.options.stash_width and space_of(self._program, r) != UNIT
        )  # fmt: skip

    def _stash(self, ref: Ref) -> list[Stmt]:
        """Compute `ref` where later passes will find it."""
        t = type_of(self._program, ref)
        stash = Stash(f"{value_name(self._program, ref)}_kept", CSR, t.dtype, (numel(t.shape),))
        self._draft.stashes[ref] = stash
        body = write(self._edge, ref, stores_into(stash.name, (Var("k"),), t.shape), self._draft.names)
        self._edge.at[ref] = (stash.name, (Var("k"),))
        return body

    # -------------------------------------------------------- what becomes of it

    def _result(self, ref: Ref) -> list[Stmt]:
        node = self._program.nodes[ref]
        if not isinstance(node, Push):
            return self._draft.output(self._edge, ref, "e")
        if ref not in self._accumulated:
            return self._draft.total(self._edge, ref, node)
        sink = folds_into(self._draft.row.at[ref][0], shape_of(self._program, ref), node.fold)
        return write(self._edge, node.x, sink, self._draft.names)

    def _without_edges(self, ref: Ref, push: Push) -> list[Stmt]:
        """A row without edges gets the push's `empty` value."""
        dtype = type_of(self._program, ref).dtype
        if identity(push.fold, dtype).value == push.empty:
            return []
        no_edges = Call(Op.eq, (Degree(CSR, Var("v")), Lit(0, DType.i64)))
        place = self._draft.row.at[ref]
        return self._draft.fill(ref, lambda at: Call(Op.where, (no_edges, Lit(push.empty, dtype), load(place, at))))
