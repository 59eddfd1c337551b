"""Region -> loop IR kernel."""

from __future__ import annotations

import math
from collections.abc import Iterable

from graphweave.analysis.cones import Needs, map_type, needs, on_edges, space_of, walks_along
from graphweave.core.types import UNIT, DType, Fold, Op, Space
from graphweave.ir.loop.nodes import (
    Accum,
    Alloc,
    Buffer,
    Call,
    CastTo,
    Comment,
    Csr,
    Degree,
    Edges,
    Expr,
    IndexSum,
    Kernel,
    Let,
    Lit,
    Load,
    Prefetch,
    Role,
    Stash,
    Stmt,
    Store,
    Var,
)
from graphweave.ir.message.builder import operands
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import Broadcast, Const, Program, Push, Ref, Reshape, Type
from graphweave.lower.bindings import Binding, Column, Flat, Lowered, Perm, Value, map_name, value_name
from graphweave.lower.blocks import Namer, Sink, choose_blocks, identity_of, is_expensive, nest, write
from graphweave.lower.index import flatten
from graphweave.lower.phases import assign_phases
from graphweave.lower.values import NeedsLocal, Scope, find, load, shape_of
from graphweave.schedule.options import Options
from graphweave.schedule.regions import Region


def lower(
    program: Program, region: Region, stored: frozenset[Ref], name: str, options: Options, index: DType = DType.i32
) -> Lowered:
    """The kernel of `region`; `stored` are the nodes that exist as tensors."""
    forced: frozenset[Ref] = frozenset()
    while True:
        try:
            return _Lowering(program, region, stored, name, options, index, forced).kernel()
        except NeedsLocal as need:
            assert need.ref not in forced, f"%{need.ref} was given a block and still cannot be indexed"
            forced |= {need.ref}


class _Lowering:
    def __init__(
        self, program: Program, region: Region, stored: frozenset[Ref], name: str, options: Options, index: DType,
        forced: frozenset[Ref],
    ) -> None:  # fmt: skip
        self.program, self.region, self.stored = program, region, stored
        self.name, self.options, self.index, self.forced = name, options, index, forced
        self.names = Namer()
        self.buffers: list[Buffer] = []
        self.bindings: list[Binding] = []
        self.bound: dict[tuple[Binding, Role], str] = {}
        self.spaces: list[Space] = [region.rows]
        self.stashes: dict[Ref, Stash] = {}
        self.csr = "csr" if region.map is not None else None
        self.row = Scope(program)
        self.members = frozenset(region.members)
        self.on_edges = frozenset(r for r in region.members if self._walks_edges(r))
        self.needs: dict[Ref, Needs] = {
            r: needs(program, r, stored, through=on_edges(program, r)) for r in region.members
        }
        self.prologue: list[Stmt] = []

    # -------------------------------------------------------- structure of the region

    def _walks_edges(self, ref: Ref) -> bool:
        node = self.program.nodes[ref]
        if not isinstance(node, Push):
            return self.region.map is not None and walks_along(self.program, ref) == self.region.map
        m = map_type(self.program, node.map)
        if m.cod != UNIT:
            return self._constant_push(ref) is None
        return m.dom != self.region.rows

    def _constant_push(self, ref: Ref) -> Const | None:
        """The constant that a sum pushes: the result is the degree times it, and needs no pass over edges."""
        node = self.program.nodes[ref]
        assert isinstance(node, Push)
        x = self.program.nodes[node.x]
        while isinstance(x, Broadcast | Reshape):
            x = self.program.nodes[x.x]
        if not isinstance(x, Const) or not math.isfinite(x.value):  # 0 * inf is not the sum of nothing
            return None
        return x if node.fold is Fold.sum and node.empty == 0 else None

    def _local(self, ref: Ref) -> list[Ref]:
        """Members that `ref` needs at its own row."""
        n = self.needs[ref]
        reads = [y for y, m in n.pulls if m == self.region.map] if ref in self.on_edges else list(n.same)
        return [r for r in reads if r in self.members]

    def kernel(self) -> Lowered:
        phases = assign_phases(
            self.region.members,
            {r: self._local(r) for r in self.region.members},
            self.on_edges,
            {r: self._wide_gathers(r) for r in self.on_edges},
        )
        body = self._rows(phases)
        csrs = (Csr(self.csr),) if self.csr is not None else ()
        sizes = tuple(f"num_{s.name}" for s in self.spaces)
        kernel = Kernel(
            self.name, "v", sizes, self.index, csrs, tuple(self.buffers), tuple(self.stashes.values()), tuple(body)
        )
        return Lowered(kernel, self.region.map, tuple(self.bindings), tuple(self.spaces))

    def _wide_gathers(self, ref: Ref) -> frozenset[Ref]:
        wide = (y for y, m in self.needs[ref].pulls if m != self.region.map)
        return frozenset(y for y in wide if numel(shape_of(self.program, y)) >= self.options.wide)

    # -------------------------------------------------------- parameters

    def _buffer(self, binding: Binding, role: Role, dtype: DType, rows: str | None, shape: tuple[int, ...], hint: str,
                fold: Fold | None = None) -> str:  # fmt: skip
        key = (binding, role)
        if key not in self.bound:
            self.bound[key] = hint
            self.buffers.append(Buffer(hint, role, dtype, rows, shape, fold))
            self.bindings.append(binding)
        return self.bound[key]

    def _size(self, space: Space) -> str | None:
        if space == UNIT:
            return None
        if space not in self.spaces:
            self.spaces.append(space)
        return f"num_{space.name}"

    def _tensor(self, ref: Ref, role: Role = Role.input, fold: Fold | None = None) -> str:
        t = self.program.types[ref]
        assert isinstance(t, Type)
        hint = value_name(self.program, ref) + ("_out" if role is not Role.input else "")
        return self._buffer(Value(ref), role, t.dtype, self._size(t.space), (numel(t.shape),), hint, fold)

    # -------------------------------------------------------- the body of a row

    def _rows(self, phases: dict[Ref, int]) -> list[Stmt]:
        body: list[Stmt] = []
        blocks = self._row_blocks()
        for p in range(max(phases.values(), default=0) + 1):
            if p > 0:
                body += self._pass([r for r in self.region.members if r in self.on_edges and phases[r] == p])
            for r in self.region.members:
                if r not in self.on_edges and phases[r] == p:
                    body += self._row_member(r, r in blocks)
        return self.prologue + body

    def _row_blocks(self) -> frozenset[Ref]:
        """Row-level members (and the rows' part of totals) that are computed once into an array."""
        roots: dict[Ref, int] = {r: 1 for r in self.region.outputs}
        at_edges: set[Ref] = set()
        for r in self.on_edges:
            at_edges.update(self._local(r))
        for r in self.region.members:
            node = self.program.nodes[r]
            if isinstance(node, Push) and r not in self.on_edges:
                roots[node.x] = roots.get(node.x, 0) + 1
        inner: set[Ref] = set()
        for r in self.region.members:
            inner.update(self.needs[r].inner if r not in self.on_edges else ())
            if not isinstance(self.program.nodes[r], Push) and r not in self.on_edges:
                inner.add(r)
        for r in at_edges:
            roots[r] = roots.get(r, 0) + 2
        kept = frozenset(r for r in self.stored if r not in self.members)
        rows_only = frozenset(r for r in inner if space_of(self.program, r) in (self.region.rows, UNIT))
        return frozenset(choose_blocks(self.program, rows_only, roots, kept, frozenset(at_edges), self.forced))

    def _row_member(self, ref: Ref, block: bool) -> list[Stmt]:
        node = self.program.nodes[ref]
        out: list[Stmt] = []
        if isinstance(node, Push):
            if map_type(self.program, node.map).cod == UNIT:
                return self._row_reads(ref) + self._inner_blocks(ref) + self._total(self.row, ref)
            out += self._degree_times(ref)
        else:
            out += self._row_reads(ref) + self._inner_blocks(ref)
            if block:
                out += self._comment(ref) + self._into_block(self.row, ref, f"{value_name(self.program, ref)}_v")
        if ref in self.region.outputs:
            out += self._to_output(ref)
        return out

    def _inner_blocks(self, ref: Ref) -> list[Stmt]:
        """Arrays for what a row-level member recomputes on the way (the inside of a total)."""
        out: list[Stmt] = []
        roots = {ref: 1}
        kept = frozenset(self.row.at) | frozenset(r for r in self.stored if r not in self.members)
        for r in choose_blocks(self.program, self.needs[ref].inner, roots, kept, frozenset(), self.forced):
            out += self._into_block(self.row, r, f"{value_name(self.program, r)}_v")
        return out

    def _row_reads(self, ref: Ref) -> list[Stmt]:
        """Make every leaf of a row-level member loadable."""
        n = self.needs[ref]
        for r in (*n.same, *n.shared):
            if find(self.row, r) is None and r not in self.members:
                lead: tuple[Expr, ...] = () if space_of(self.program, r) == UNIT else (Var("v"),)
                self.row.at[r] = (self._tensor(r), lead)
        for y, m in n.pulls:
            if (y, m) not in self.row.gathered:
                name = map_name(self.program, m)
                at, rows = f"{name}_v", self._size(self.region.rows)
                flat = self._buffer(Flat(m), Role.index, self.index, rows, (), f"{name}_index")
                let = Let(at, self.index, Load(flat, (Var("v"),)))
                if let not in self.prologue:
                    self.prologue.append(let)
                self.row.gathered[(y, m)] = (self._tensor(y), (Var(at),))
        return []

    def _into_block(self, scope: Scope, ref: Ref, name: str) -> list[Stmt]:
        if find(scope, ref) is not None:
            return []
        t = self.program.types[ref]
        assert isinstance(t, Type)
        body = write(scope, ref, self._storing(name, (), t.shape), self.names)
        scope.at[ref] = (name, ())
        return [Alloc(name, t.dtype, (numel(t.shape),), None), *body]

    def _storing(self, name: str, lead: tuple[Expr, ...], shape: tuple[int, ...]) -> Sink:
        return lambda index, value: Store(name, (*lead, flatten(index, shape)), value)

    def _to_output(self, ref: Ref) -> list[Stmt]:
        out = self._tensor(ref, Role.output)
        return self._comment(ref) + write(
            self.row, ref, self._storing(out, (Var("v"),), shape_of(self.program, ref)), self.names
        )

    def _total(self, scope: Scope, ref: Ref) -> list[Stmt]:
        node = self.program.nodes[ref]
        assert isinstance(node, Push)
        out = self._tensor(ref, Role.total, node.fold)
        shape = shape_of(self.program, ref)
        return self._comment(ref) + write(
            scope, node.x, lambda index, value: Accum(out, (flatten(index, shape),), node.fold, value), self.names
        )

    def _degree_times(self, ref: Ref) -> list[Stmt]:
        const = self._constant_push(ref)
        t = self.program.types[ref]
        assert const is not None and isinstance(t, Type) and self.csr is not None
        count: Expr = CastTo(Degree(self.csr, Var("v")), t.dtype)
        if const.value != 1:
            count = Call(Op.mul, (count, Lit(const.value, t.dtype)))
        name = f"{value_name(self.program, ref)}_v"
        lanes = [(self.names.lane(), numel(t.shape))] if numel(t.shape) > 1 else []
        at = IndexSum(tuple((v, 1) for v, _ in lanes))
        self.row.at[ref] = (name, ())
        return [Alloc(name, t.dtype, (numel(t.shape),), None), *nest(lanes, [Store(name, (at,), count)])]

    # -------------------------------------------------------- one pass over the edges of a row

    def _pass(self, pushes: list[Ref]) -> list[Stmt]:
        """Accumulators, the loop over edges, and what is done with the accumulators after it."""
        assert self.csr is not None
        before: list[Stmt] = []
        after: list[Stmt] = []
        accumulated = [r for r in pushes if self._accumulates(r)]
        for r in accumulated:
            before += self._comment(r) + self._accumulator(r)
        edge = Scope(self.program, map=self.region.map, outer=self.row)
        inner = self._edge_reads(edge, pushes)
        stores = any(not isinstance(self.program.nodes[r], Push) for r in pushes)
        prefetch, lets = self._edge_lets(edge, stores)
        body: list[Stmt] = [*lets, *self._edge_blocks(edge, pushes, inner)]
        for r in pushes:
            body += self._accumulate(edge, r)
        before.append(Edges("k", self.csr, "v", tuple(prefetch), tuple(body)))
        for r in accumulated:
            after += self._finish_accumulator(r)
        for r in accumulated:
            if r in self.region.outputs:
                after += self._to_output(r)
        return before + after

    def _accumulates(self, ref: Ref) -> bool:
        """Whether edges add up in the row: not for totals over all rows, nor for values of the edges themselves."""
        node = self.program.nodes[ref]
        return isinstance(node, Push) and map_type(self.program, node.map).cod != UNIT

    def _push(self, ref: Ref) -> Push:
        node = self.program.nodes[ref]
        assert isinstance(node, Push)
        return node

    def _accumulator(self, ref: Ref) -> list[Stmt]:
        t = self.program.types[ref]
        assert isinstance(t, Type)
        name = f"{value_name(self.program, ref)}_v"
        self.row.at[ref] = (name, ())
        return [Alloc(name, t.dtype, (numel(t.shape),), identity_of(self._push(ref).fold, t.dtype))]

    def _accumulate(self, edge: Scope, ref: Ref) -> list[Stmt]:
        node, shape = self.program.nodes[ref], shape_of(self.program, ref)
        if not isinstance(node, Push):
            out = self._tensor(ref, Role.output)
            return self._comment(ref) + write(edge, ref, self._storing(out, (Var("e"),), shape), self.names)
        if map_type(self.program, node.map).cod == UNIT:
            return self._total(edge, ref)
        name = self.row.at[ref][0]
        return write(
            edge, node.x, lambda index, value: Accum(name, (flatten(index, shape),), node.fold, value), self.names
        )

    def _finish_accumulator(self, ref: Ref) -> list[Stmt]:
        """A row without edges gets the push's `empty` value."""
        node, t = self._push(ref), self.program.types[ref]
        assert isinstance(t, Type) and self.csr is not None
        if identity_of(node.fold, t.dtype) == node.empty:
            return []
        place = self.row.at[ref]
        lanes = [(self.names.lane(), numel(t.shape))] if numel(t.shape) > 1 else []
        at = IndexSum(tuple((v, 1) for v, _ in lanes))
        no_edges = Call(Op.eq, (Degree(self.csr, Var("v")), Lit(0, DType.i64)))
        value = Call(Op.where, (no_edges, Lit(node.empty, t.dtype), load(place, at)))
        return nest(lanes, [Store(place[0], (at,), value)])

    # -------------------------------------------------------- what an edge reads

    def _edge_reads(self, edge: Scope, pushes: list[Ref]) -> list[Ref]:
        """Bind the leaves of the pushes' cones; the nodes to recompute, stashed ones being leaves."""
        kept = self.stored | self._stashed(pushes)
        inner: set[Ref] = set()
        for r in pushes:
            n = needs(self.program, r, kept, through=True)
            inner.update(n.inner)
            for y, m in n.pulls:
                if m == self.region.map:
                    self._readable_row(y)
                else:
                    edge.gathered.setdefault((y, m), (self._tensor(y), (Var(f"{map_name(self.program, m)}_k"),)))
            for s in n.same:
                if s in self.stashes:
                    edge.at[s] = (self.stashes[s].name, (Var("k"),))
                elif not isinstance(self.program.nodes[s], Const):
                    edge.at[s] = (self._tensor(s), (Var("e"),))
            for s in n.shared:
                self._readable_row(s)
        return sorted(inner)

    def _readable_row(self, ref: Ref) -> None:
        """A value of the row, or shared data: a member is computed here, anything else is read."""
        if find(self.row, ref) is None and ref not in self.members and not isinstance(self.program.nodes[ref], Const):
            lead: tuple[Expr, ...] = () if space_of(self.program, ref) == UNIT else (Var("v"),)
            self.row.at[ref] = (self._tensor(ref), lead)

    def _stashed(self, pushes: list[Ref]) -> frozenset[Ref]:
        """Nodes that an earlier pass keeps for this one."""
        return frozenset(self.stashes)

    def _edge_lets(self, edge: Scope, stores: bool) -> tuple[list[Prefetch], list[Stmt]]:
        """The rows that this edge touches, read once; and which of them to ask for early."""
        lets: list[Stmt] = []
        prefetch: list[Prefetch] = []
        space = map_type(self.program, self._map()).dom
        if stores or any(lead == (Var("e"),) for _, lead in edge.at.values()):
            perm = self._buffer(Perm(self._map()), Role.column, self.index, self._size(space), (), "perm")
            lets.append(Let("e", self.index, Load(perm, (Var("k"),))))
        for (y, m), (name, lead) in edge.gathered.items():
            binding = Column(self._map(), m)
            hint = map_name(self.program, m)
            column = self._buffer(binding, Role.column, self.index, self._size(space), (), f"{hint}_column")
            let = Let(f"{hint}_k", self.index, Load(column, (Var("k"),)))
            if let not in lets:
                lets.append(let)
            t = self.program.types[y]
            assert isinstance(t, Type) and lead
            if numel(t.shape) * t.dtype.itemsize >= self.options.prefetch_bytes:
                prefetch.append(Prefetch(name, column, self.options.prefetch_distance))
        return prefetch, lets

    def _map(self) -> Ref:
        assert self.region.map is not None
        return self.region.map

    def _edge_blocks(self, edge: Scope, pushes: list[Ref], inner: list[Ref]) -> list[Stmt]:
        roots: dict[Ref, int] = {}
        for r in pushes:
            node = self.program.nodes[r]
            for x in (node.x,) if isinstance(node, Push) else operands(node):
                roots[x] = roots.get(x, 0) + 1
        later = self._keep_for_later(pushes, inner)
        for r in later:
            roots[r] = roots.get(r, 0) + 1
        kept = frozenset(edge.at) | frozenset(self.row.at)
        out: list[Stmt] = []
        for r in choose_blocks(self.program, inner, roots, kept, frozenset(), self.forced | frozenset(later)):
            out += self._comment(r)
            out += self._into_stash(edge, r) if r in later else self._into_block(edge, r, value_name(self.program, r))
        return out

    def _into_stash(self, edge: Scope, ref: Ref) -> list[Stmt]:
        """Compute `ref` where later passes will find it."""
        t = self.program.types[ref]
        assert isinstance(t, Type) and self.csr is not None
        stash = Stash(f"{value_name(self.program, ref)}_kept", self.csr, t.dtype, (numel(t.shape),))
        self.stashes[ref] = stash
        body = write(edge, ref, self._storing(stash.name, (Var("k"),), t.shape), self.names)
        edge.at[ref] = (stash.name, (Var("k"),))
        return body

    def _keep_for_later(self, pushes: list[Ref], inner: Iterable[Ref]) -> list[Ref]:
        """Expensive narrow nodes of this pass that a later pass would otherwise recompute."""
        done = set(pushes) | set(self.row.at)
        ahead: set[Ref] = set()
        for r in self.on_edges - done:
            ahead.update(self.needs[r].inner)
        narrow = [
            r for r in inner
            if r in ahead and is_expensive(self.program, r)
            and numel(shape_of(self.program, r)) <= self.options.stash_width and space_of(self.program, r) != UNIT
        ]  # fmt: skip
        return narrow

    def _comment(self, ref: Ref) -> list[Stmt]:
        loc = self.program.locs[ref]
        return [Comment(loc)] if loc else []
