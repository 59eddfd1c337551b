"""Lowers one pass over the edges of a row: what each edge reads, computes, keeps for later passes, adds to the row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from graphweave.analysis.cones import space_of, type_of
from graphweave.analysis.typed import below, blocks_of, gathered, is_typed, matrices
from graphweave.core.numbers import is_neutral, typed
from graphweave.core.types import UNIT, DType, Fold, Op
from graphweave.ir.loop import nodes as loop_ir
from graphweave.ir.loop.types import identity
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands
from graphweave.ir.message.infer import numel
from graphweave.lower.blocks import choose_blocks, folds_into, is_expensive, stores_into, write
from graphweave.lower.draft import CSR, Draft
from graphweave.lower.edge_tiles import Stage, has_products, read_by_shared, stages
from graphweave.lower.expressions import NeedsLocal, ValueScope, find, load, shape_of
from graphweave.lower.online import Relative
from graphweave.lower.parameters import map_name, value_name

_TILE = "tile"
_K = loop_ir.Var("k")


class EdgePass:
    """Computes `members`: pushes into the row, totals over all edges, and values of the edges themselves."""

    def __init__(self, draft: Draft, members: list[ir.Ref], online: Mapping[ir.Ref, tuple[ir.Ref, ...]]) -> None:
        """`online`: maxima among `members`, and for each the sums that are relative to it while this pass runs."""
        self._draft, self._program, self._members = draft, draft.program, members
        self._online = [Relative.to(draft, m, sums) for m, sums in online.items() if sums]
        self._accumulated = [r for r in members if draft.cones.pushed_along(r) is not None]
        self._operands = self._gathered(draft.kept)
        self._arrays: dict[ir.Ref, str] = {}  # arrays with a row for each edge of the tile, or of the row (stashes)
        self._stashed: frozenset[ir.Ref] = frozenset()

    def statements(self) -> list[loop_ir.Stmt]:
        """Allocation of accumulators, the loop over edges, and what is done with the accumulators after it."""
        draft = self._draft
        out: list[loop_ir.Stmt] = []
        for r in self._accumulated:
            node = self._program.nodes[r]
            fold = node.fold if isinstance(node, ir.Push) else Fold.sum
            start = identity(fold, type_of(self._program, r).dtype).value
            out += [*draft.comment(r), draft.row_array(r, start)]
        for relative in self._online:
            out += relative.start()
        inner = {x for r in self._members for x in draft.cones.needs(r, draft.kept, through=True).inner}
        out += self._shared(inner)
        products = has_products(self._program, self._members, inner)
        if products or self._online:
            sums = frozenset(s for relative in self._online for s in relative.places)
            for r in read_by_shared(self._program, (*self._members, *inner)):
                self._operands.pop(r, None)
            kept = frozenset(draft.stashes) | self._operands.keys()
            plan = stages(self._program, self._members, inner, kept, sums)
            self._stashed = self._wanted_later(r for stage in plan for r in stage.products)
            out.append(loop_ir.Tiles(_TILE, self._size(products), CSR, "v", tuple(self._tile(plan))))
        else:
            out += EdgeLoop(draft, self._members, self._members).statements()
        draft.passed.update(self._members)
        for r in self._accumulated:
            out += self._without_edges(r)
        for r in self._accumulated:
            if r in draft.region.outputs:
                out += draft.output(draft.row, r, "v")
        return out

    def _shared(self, inner: Iterable[ir.Ref]) -> list[loop_ir.Stmt]:
        """Compute shared data once for the row that every edge would compute again."""
        draft, out = self._draft, []
        for r in sorted(inner):
            node = self._program.nodes[r]
            if (
                not isinstance(node, ir.Pointwise)
                or space_of(self._program, r) != UNIT
                or find(draft.row, r) is not None
            ):
                continue
            if numel(shape_of(self._program, r)) <= draft.options.stash_width:
                for s in draft.cones.needs(r, draft.stored, through=True).same:
                    draft.read_at_row(s)
                out += draft.block(draft.row, r, f"{value_name(self._program, r)}_v")
        return out

    def _without_edges(self, ref: ir.Ref) -> list[loop_ir.Stmt]:
        """Give a row without edges the push's `empty` value."""
        push, dtype = self._program.nodes[ref], type_of(self._program, ref).dtype
        if not isinstance(push, ir.Push) or is_neutral(push.empty, push.fold, dtype):
            return []
        no_edges = loop_ir.Call(Op.eq, (loop_ir.Degree(CSR, loop_ir.Var("v")), loop_ir.Lit(0, DType.i64)))
        place, empty = self._draft.row.at[ref], loop_ir.Lit(typed(push.empty, dtype), dtype)
        return self._draft.fill(ref, lambda at: loop_ir.Call(Op.where, (no_edges, empty, load(place, at))))

    # -------------------------------------------------------- tiles

    def _tile(self, plan: Sequence[Stage]) -> list[loop_ir.Stmt]:
        """Loops over the edges of a tile, and the products between them."""
        out: list[loop_ir.Stmt] = []
        fetched: set[loop_ir.Prefetch] = set()
        unsettled = frozenset(r for relative in self._online for r in relative.dependents())
        for stage in plan:
            for r in stage.operands:
                out.append(self._array(r))
            loop = EdgeLoop(self._draft, stage.results, self._members, _TILE, self._arrays, stage.operands, unsettled)
            out += loop.statements(fetched)
            for relative in self._online:
                out += relative.raised(_TILE) if relative.maximum in stage.results else []
            for r in stage.operands:
                self._arrays[r] = self._array(r).name
            for r in stage.products:
                out += self._product(r)
        return out

    def _array(self, ref: ir.Ref) -> loop_ir.TileArray:
        t = type_of(self._program, ref)
        return loop_ir.TileArray(f"{value_name(self._program, ref)}_tile", _TILE, t.dtype, (numel(t.shape),))

    def _product(self, ref: ir.Ref) -> list[loop_ir.Stmt]:
        draft, node = self._draft, self._program.nodes[ref]
        if isinstance(node, ir.Gram):
            typed = node.map is not None
            to = draft.row.at[ref][0] if typed else draft.parameters.tensor(ref, loop_ir.Role.total, Fold.sum)
            blocks = blocks_of(self._program, ref) if typed else 1
            return [*draft.comment(ref), loop_ir.TileGram(_TILE, to, self._place(node.x), self._place(node.y), blocks)]
        assert isinstance(node, ir.MatMul)
        if node.map is not None:
            return self._typed(ref, node)
        draft.read_at_row(node.w)
        weight, _ = draft.row.at[node.w]
        array = self._array(ref)
        declared: tuple[loop_ir.Stmt, ...] = (array,)
        self._arrays[ref] = array.name
        if ref in self._stashed:
            draft.stashes[ref] = loop_ir.Stash(f"{value_name(self._program, ref)}_kept", CSR, array.dtype, array.shape)
            declared, self._arrays[ref] = (), draft.stashes[ref].name
        return [
            *draft.comment(ref),
            *declared,
            loop_ir.TileMatMul(_TILE, self._arrays[ref], self._place(node.x), weight),
        ]

    def _typed(self, ref: ir.Ref, node: ir.MatMul) -> list[loop_ir.Stmt]:
        """The product by the row's own matrix, stored in the user's order of the edges."""
        draft, matrix = self._draft, matrices(self._program, node.w)
        draft.read_at_row(matrix.w)
        if matrix.w not in draft.row.at:  # this kernel computes it, but not into an array
            raise NeedsLocal(matrix.w)
        name, lead = draft.row.at[matrix.w]
        row = lead[0].name if lead and isinstance(lead[0], loop_ir.Var) else None
        assert draft.region.map is not None
        out = loop_ir.Rows(draft.parameters.tensor(ref, loop_ir.Role.output), draft.parameters.perm(draft.region.map))
        x, blocks = self._place(node.x), blocks_of(self._program, ref)
        product = loop_ir.TileMatMul(_TILE, out, x, name, None, row, matrix.transposed, blocks)
        return [*draft.comment(ref), product]

    def _gathered(self, kept: frozenset[ir.Ref]) -> dict[ir.Ref, loop_ir.Rows]:
        """Operands of typed products whose rows are in memory, where the products read them."""
        found: dict[ir.Ref, loop_ir.Rows] = {}
        for r in self._members:
            match self._program.nodes[r]:
                case ir.MatMul(x, _, int()):
                    operands_: tuple[ir.Ref, ...] = (x,)
                case ir.Gram(x, y, int()):
                    operands_ = (x, y)
                case _:
                    continue
            found.update((x, rows) for x in operands_ if (rows := self._rows_of(x, kept)) is not None)
        return found

    def _rows_of(self, ref: ir.Ref, kept: frozenset[ir.Ref]) -> loop_ir.Rows | None:
        """Where the rows of `ref` lie in memory: in the user's order of edges, or gathered along a map; else None."""
        walked, parameters = self._draft.region.map, self._draft.parameters
        assert walked is not None
        rows = gathered(self._program, ref)
        if rows.map is None:
            stored = below(self._program, ref)
            lies = self._draft.cones.leaves((stored,), kept).same == (stored,)
            return loop_ir.Rows(parameters.tensor(stored), parameters.perm(walked)) if lies else None
        if rows.map == walked:
            return None
        return loop_ir.Rows(parameters.tensor(rows.x), parameters.column(walked, rows.map))

    def _size(self, products: bool) -> int:
        """The most edges of a tile."""
        options = self._draft.options
        if any(is_typed(self._program, r) for r in self._members):
            return options.typed_tile
        return options.tile if products else options.online_tile

    def _wanted_later(self, products: Iterable[ir.Ref]) -> frozenset[ir.Ref]:
        """Products that later passes need; not those that are needed only for others that are kept."""
        draft = self._draft
        ahead = draft.on_edges.difference(self._members, draft.passed)
        keep: frozenset[ir.Ref] = frozenset()
        for r in sorted(products, reverse=True):
            narrow = numel(shape_of(self._program, r)) <= draft.options.stash_product
            if narrow and isinstance(self._program.nodes[r], ir.MatMul):
                kept = draft.kept | keep
                if any(r in draft.cones.needs(m, kept, through=True).inner for m in ahead):
                    keep |= {r}
        return keep

    def _place(self, ref: ir.Ref) -> loop_ir.Place:
        if ref in self._operands and ref not in self._arrays:
            return self._operands[ref]
        return self._arrays[ref] if ref in self._arrays else self._draft.stashes[ref].name


class EdgeLoop:
    """A loop over the edges of the row, or of a tile, that finishes the members `results` of the pass over `members`.

    `arrays` are the values that have a row for each edge of the tile; `operands` those that this loop computes.
    `unsettled` values depend on a maximum that later edges may raise, so they are not kept for later passes.
    """

    def __init__(
        self,
        draft: Draft,
        results: Sequence[ir.Ref],
        members: Sequence[ir.Ref],
        tile: str | None = None,
        arrays: dict[ir.Ref, str] | None = None,
        operands: Sequence[ir.Ref] = (),
        unsettled: frozenset[ir.Ref] = frozenset(),
    ) -> None:
        assert draft.region.map is not None
        self._draft, self._program, self._map = draft, draft.program, draft.region.map
        self._results, self._members, self._tile, self._operands = results, members, tile, operands
        self._unsettled = unsettled
        self._e = loop_ir.Var("e") if draft.runs is None else _K
        self._edge = ValueScope(draft.program, map=self._map, outer=draft.row, position=self._e)
        self._edge.at.update((r, (name, (_K,))) for r, name in (arrays or {}).items())

    def statements(self, fetched: set[loop_ir.Prefetch] | None = None) -> list[loop_ir.Stmt]:
        """The loop, or nothing if it would be empty. Prefetches in `fetched` are left out; others are added to it."""
        if not self._results and not self._operands:
            return []
        inner = self._reads()
        prefetch, body = self._lets(inner)
        body += self._blocks(inner)
        for r in self._results:
            body += self._result(r)
        fetched = set() if fetched is None else fetched
        hints = tuple(p for p in prefetch if p not in fetched)
        fetched.update(hints)
        return [loop_ir.Edges("k", CSR, "v", hints, tuple(body), self._tile)]

    # -------------------------------------------------------- what an edge reads

    def _reads(self) -> list[ir.Ref]:
        """Make the leaves of what the loop computes loadable, and give the nodes that it recomputes. Array values are
        leaves."""
        draft, stashes = self._draft, self._draft.stashes
        kept = draft.kept.union(self._edge.at)
        inner: set[ir.Ref] = set()
        found = [draft.cones.needs(r, kept, through=True) for r in self._results if r not in self._edge.at]
        for n in [*found, draft.cones.leaves(self._operands, kept)]:
            inner.update(n.inner)
            for y, m in n.pulls:
                if m == self._map:
                    draft.read_at_row(y)
                else:
                    lead = draft.of_item(m, self._e)
                    lead = (loop_ir.Var(f"{map_name(m)}_k"),) if lead is None else lead
                    self._edge.gathered[(y, m)] = (draft.parameters.tensor(y), lead)
            for s in n.same:
                if s in self._edge.at:
                    continue
                if s in stashes:
                    self._edge.at[s] = (stashes[s].name, (_K,))
                else:
                    self._edge.at[s] = (draft.parameters.tensor(s), (self._e,))
            for s in n.shared:
                draft.read_at_row(s)
        return sorted(inner)

    def _lets(self, inner: list[ir.Ref]) -> tuple[list[loop_ir.Prefetch], list[loop_ir.Stmt]]:
        """The prefetches of the loop, and the numbers of the rows that its edge touches, each read once."""
        parameters, options = self._draft.parameters, self._draft.options
        index = parameters.index
        lets: list[loop_ir.Stmt] = []
        prefetch: list[loop_ir.Prefetch] = []
        stores = any(not isinstance(self._program.nodes[r], ir.Push) for r in self._results)
        draws = any(isinstance(self._program.nodes[r], ir.Random) for r in (*inner, *self._results))
        read = [*self._edge.at.values(), *self._edge.gathered.values()]
        reads = any(lead == (loop_ir.Var("e"),) for _, lead in read)
        if self._draft.runs is None and (stores or draws or reads):
            lets.append(loop_ir.Let("e", index, loop_ir.Load(parameters.perm(self._map), (_K,))))
        for name, lead in read:
            if (
                lead == (loop_ir.Var("e"),) and options.prefetch_distance
            ):  # in the user's order, so at an arbitrary address
                prefetch.append(loop_ir.Prefetch(name, parameters.perm(self._map), options.prefetch_distance))
        for (y, m), (name, _) in self._edge.gathered.items():
            if self._draft.of_item(m, self._e) is not None:
                continue
            column = parameters.column(self._map, m)
            let = loop_ir.Let(f"{map_name(m)}_k", index, loop_ir.Load(column, (_K,)))
            if let not in lets:
                lets.append(let)
            t = type_of(self._program, y)
            if options.prefetch_distance and numel(t.shape) * t.dtype.itemsize >= options.prefetch_bytes:
                prefetch.append(loop_ir.Prefetch(name, column, options.prefetch_distance))
        return prefetch, lets

    # -------------------------------------------------------- what an edge computes once

    def _blocks(self, inner: list[ir.Ref]) -> list[loop_ir.Stmt]:
        draft = self._draft
        later = self._wanted_later(inner) - self._unsettled
        uses = Counter(later)
        for r in self._results:
            node = self._program.nodes[r]
            uses.update((node.x,) if isinstance(node, ir.Push) else operands(node))
        out = [s for r in self._operands if r not in inner for s in self._keep(r)]
        kept = frozenset(self._edge.at) | frozenset(draft.row.at)
        forced = draft.forced | later | frozenset(self._operands)
        for r in choose_blocks(self._program, inner, uses, kept, frozenset(), forced):
            out += draft.comment(r)
            if r in later or r in self._operands:
                out += self._keep(r)
            else:
                out += draft.block(self._edge, r, value_name(self._program, r))
        return out

    def _wanted_later(self, inner: list[ir.Ref]) -> frozenset[ir.Ref]:
        """Expensive narrow nodes of this loop that a later pass would otherwise recompute."""
        draft = self._draft
        ahead: set[ir.Ref] = set()
        for r in draft.on_edges.difference(self._members, draft.passed):
            ahead.update(draft.needs[r].inner)
        return frozenset(
            r for r in inner
            if r in ahead and r not in self._operands and is_expensive(self._program, r)
            and numel(shape_of(self._program, r)) <= draft.options.stash_width and space_of(self._program, r) != UNIT
        )  # fmt: skip

    def _keep(self, ref: ir.Ref) -> list[loop_ir.Stmt]:
        """Compute `ref` into an array of the tile, for its products, or into a stash, for later passes."""
        t, name = type_of(self._program, ref), value_name(self._program, ref)
        if ref in self._operands:
            place: tuple[str, tuple[loop_ir.Expr, ...]] = (f"{name}_tile", (_K,))
        else:
            stash = loop_ir.Stash(f"{name}_kept", CSR, t.dtype, (numel(t.shape),))
            self._draft.stashes[ref] = stash
            place = (stash.name, (_K,))
        body = write(self._edge, ref, stores_into(*place, t.shape), self._draft.names)
        self._edge.at[ref] = place
        return body

    # -------------------------------------------------------- what the results go into

    def _result(self, ref: ir.Ref) -> list[loop_ir.Stmt]:
        draft, node = self._draft, self._program.nodes[ref]
        if not isinstance(node, ir.Push):
            return draft.output(self._edge, ref, self._e.name)
        if draft.is_total(node):
            return draft.total(self._edge, ref, node)
        name, lead = draft.row.at[ref]
        sink = folds_into(name, shape_of(self._program, ref), node.fold, lead)
        return write(self._edge, node.x, sink, draft.names)
