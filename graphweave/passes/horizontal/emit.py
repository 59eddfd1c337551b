"""Builds the program in which every pack is one node over the disjoint union of its members' spaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphweave.core.calls import named
from graphweave.core.lines import NOWHERE, Location
from graphweave.core.types import UNIT
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder, with_operands
from graphweave.passes.horizontal.node_graph import NodeGraph, Tree
from graphweave.passes.horizontal.packs import Packs
from graphweave.passes.horizontal.unions import Picked, Segments, Unions


class Emitter:
    """Builds the merged program. The graph's program is called the original.

    `one(i)` is node i of the original in the merged program; `many(refs)` is one value on a union for several lanes.
    """

    def __init__(self, graph: NodeGraph, packs: Packs) -> None:
        self.graph, self.packs = graph, packs
        self.build = Builder()
        self.unions = Unions(graph.program, self.build, self.one)
        self._packed: dict[int, ir.Ref] = {}
        self._done: dict[ir.Ref, ir.Ref] = {}
        for i, node in enumerate(graph.program.nodes):
            if isinstance(node, ir.Input):
                self._done[i] = self.build.add(node, self.loc(i))

    def loc(self, i: ir.Ref) -> Location:
        return self.graph.program.locs[i] if i < len(self.graph.program.locs) else NOWHERE

    def segments(self, refs: Sequence[ir.Ref]) -> Segments:
        return tuple(self.graph.value(r).space for r in refs)

    # -------------------------------------------------------- nodes of the original program

    def node(self, i: ir.Ref) -> None:
        """Add a node that is in no pack, unchanged."""
        if i in self._done:
            return
        node = self.graph.nodes[i]
        if isinstance(node, ir.Join) and self.unions.made.get(self.segments(self.graph.ops[i])) == node.space:
            self._done[i] = self.many(self.graph.ops[i], self.loc(i))
        elif not isinstance(node, Tree):
            self._done[i] = self.build.add(self._renamed(i), self.loc(i))
        elif i >= len(self.graph.program.nodes):
            self._done[i] = self.one(self.graph.ops[i][0])
        else:
            for inner in (*self.graph.inner[i], i):
                original = with_operands(self.graph.program.nodes[inner], self.one)
                self._done[inner] = self.build.add(original, self.loc(inner))

    def _renamed(self, i: ir.Ref) -> ir.Node:
        node, args = self.graph.nodes[i], iter(self.graph.ops[i])
        assert not isinstance(node, Tree)
        whole = self._whole_pack(i) if isinstance(node, ir.Concat) and node.dim == 0 and self.graph.is_unit(i) else None
        return whole or with_operands(node, lambda _: self.one(next(args)))

    def _whole_pack(self, i: ir.Ref) -> ir.Aten | None:
        """For a Concat of all members of a pack in order: the pack's value reshaped. None for any other."""
        refs = self.graph.ops[i]
        p = self.packs.of.get(refs[0], (None, 0))[0]
        if p is None or len(refs) == 1 or self.packs.lanes[p] != refs:
            return None
        return ir.Aten(named.RESHAPE, (ir.Operand(self._packed[p]), self.graph.value(i).shape), (), self.graph.value(i))

    def pack(self, p: int, value: ir.Ref) -> None:
        self._packed[p] = value

    def packed(self, p: int) -> ir.Ref:
        return self._packed[p]

    def one(self, i: ir.Ref) -> ir.Ref:
        """Node i in the merged program: a part of its pack, if it is in one."""
        if i in self.packs.of:
            p, lane = self.packs.of[i]
            lanes = self.packs.lanes[p]
            if len(lanes) == 1:
                return self._packed[p]
            if i not in self._done:
                self._done[i] = self.build.add(ir.Part(self._packed[p], self.segments(lanes), lane), self.loc(i))
            return self._done[i]
        if i not in self._done:
            self.node(i)
        return self._done[i]

    def asked(self) -> dict[ir.Ref, ir.Ref]:
        """Where each node of the original that was added, or cut out of its pack, lies in the merged program."""
        return {i: ref for i, ref in self._done.items() if i < len(self.graph.program.nodes)}

    # -------------------------------------------------------- operands of packs

    def picked(self, refs: Sequence[ir.Ref], loc: Location) -> Picked:
        """One value that holds all of `refs`: their pack, the only one of them, or a copy of each distinct one."""
        distinct = list(dict.fromkeys(refs))
        if len(distinct) == 1:
            return Picked(self.one(refs[0]), self.segments(distinct), (0,) * len(refs))
        packs = {self.packs.of[r][0] if r in self.packs.of else None for r in distinct}
        p = packs.pop()
        if p is not None and not packs:
            at = tuple(self.packs.of[r][1] for r in refs)
            return Picked(self._packed[p], self.segments(self.packs.lanes[p]), at)
        whole = self._slices(distinct)
        if whole is not None:
            return Picked(whole[0], (UNIT,) * whole[1], tuple(self._start(r) for r in refs))
        of = self.segments(distinct)
        place = {r: k for k, r in enumerate(distinct)}
        return Picked(self._join(distinct, of, loc), of, tuple(place[r] for r in refs))

    def _join(self, refs: Sequence[ir.Ref], of: Segments, loc: Location) -> ir.Ref:
        return self.build.add(ir.Join(tuple(self.one(r) for r in refs), self.unions.space(of)), loc)

    def _slices(self, refs: Sequence[ir.Ref]) -> tuple[ir.Ref, int] | None:
        """The shared value of which all `refs` are slices of size 1 along dim 0, as rows, and its number of rows."""
        nodes = [self.graph.nodes[r] for r in refs]
        of = {(n.x, n.dim, n.step, n.stop - n.start) if isinstance(n, ir.Slice) else None for n in nodes}
        if len(of) > 1 or None in of or not self.graph.is_unit(refs[0]):
            return None
        ((x, dim, _, size),) = of  # type: ignore[misc]
        count, t = self.graph.value(x).shape[0], self.graph.value(refs[0])
        if (dim, size) != (0, 1) or count < 2:
            return None
        rows = ir.Type(self.unions.space((UNIT,) * count), t.shape, t.dtype)
        return self.build.add(ir.Aten(named.RESHAPE, (ir.Operand(self.one(x)), (count, *t.shape)), (), rows)), count

    def _start(self, i: ir.Ref) -> int:
        node = self.graph.nodes[i]
        assert isinstance(node, ir.Slice)
        return node.start

    def many(self, refs: Sequence[ir.Ref], loc: Location) -> ir.Ref:
        """`refs` on the union of their spaces, in order."""
        node, t = self.graph.nodes[refs[0]], self.graph.value(refs[0])
        segments = self.segments(refs)
        if isinstance(node, ir.Const) and self._one_constant(refs, node):
            return self.build.add(ir.Const(node.value, ir.Type(self.unions.space(segments), t.shape, t.dtype)), loc)
        found = self.picked(refs, loc)
        m = self.unions.rows(segments, found, loc)
        return found.ref if m is None else self.build.add(ir.Pull(found.ref, m), loc)

    def _one_constant(self, refs: Sequence[ir.Ref], first: ir.Const) -> bool:
        return all(isinstance(n := self.graph.nodes[r], ir.Const) and repr(n.value) == repr(first.value) for r in refs)

    def operand(self, refs: Sequence[ir.Ref], on: Segments, loc: Location) -> ir.Ref:
        """`refs`, one for each lane, as an operand of row-wise work on the union `on`."""
        if not self.graph.is_unit(refs[0]):
            return self.many(refs, loc)
        node = self.graph.nodes[refs[0]]
        if len(set(refs)) == 1 or (isinstance(node, ir.Const) and self._one_constant(refs, node)):
            return self.one(refs[0])
        shared = self.many(refs, loc)
        if on[0] == UNIT:
            return shared
        return self.build.add(ir.Pull(shared, self.unions.types(on, range(len(on)), len(on), loc)), loc)

    def types(self, of: Segments, number: Sequence[int], count: int, loc: Location) -> ir.Ref | None:
        """`Unions.types` as the map of a product: None for the map to unit."""
        return None if count == 1 else self.unions.types(of, number, count, loc)

    # -------------------------------------------------------- packs

    def merged(self, lanes: Sequence[ir.Ref]) -> ir.Ref:
        """The members `lanes` of a pack as one node."""
        graph, loc = self.graph, self.loc(lanes[0])
        node = graph.nodes[lanes[0]]
        columns = list(zip(*(graph.ops[i] for i in lanes), strict=True))
        match node:
            case ir.Pull():
                return self._pull(columns[0], columns[1], lanes, loc)
            case ir.Push(_, _, fold, empty):
                m = self._map(columns[1], self.segments(lanes), range(len(lanes)), loc)
                return self.build.add(ir.Push(self.many(columns[0], loc), m, fold, empty), loc)
            case ir.MatMul() | ir.Gram():
                return self._product(node, columns, lanes, loc)
            case ir.Pointwise() | ir.Concat():
                on = self.segments(lanes)
                args = iter([self.operand(column, on, loc) for column in columns])
                assert not isinstance(node, Tree)
                return self.build.add(with_operands(node, lambda _: next(args)), loc)
            case ir.Part(x, of):
                found = Picked(self.one(x), of, tuple(n.at for i in lanes if isinstance(n := graph.nodes[i], ir.Part)))
                rows = self.unions.rows(self.segments(lanes), found, loc)
                return found.ref if rows is None else self.build.add(ir.Pull(found.ref, rows), loc)
            case ir.Aten():  # a copy
                x, t = self.many(columns[0], loc), graph.value(lanes[0])
                t = ir.Type(self.unions.space(self.segments(lanes)), t.shape, t.dtype)
                return self.build.add(replace(node, args=(ir.Operand(x),), type=t), loc)
            case _:
                assert not isinstance(node, Tree)
                return self.build.add(with_operands(node, lambda _: self.many(columns[0], loc)), loc)

    def _product(
        self, node: ir.MatMul | ir.Gram, columns: Sequence[Sequence[ir.Ref]], lanes: Sequence[ir.Ref], loc: Location
    ) -> ir.Ref:
        """The product of all lanes. Weights that differ from lane to lane are chosen along a map."""
        m: ir.Ref | None
        if isinstance(node, ir.MatMul) and node.map is None and len(set(columns[1])) == 1:
            return self.build.add(ir.MatMul(self.many(columns[0], loc), self.one(columns[1][0])), loc)
        if isinstance(node, ir.MatMul) and node.map is not None:
            found = self.picked(columns[1], loc)
            m = self._map(columns[2], found.of, found.at, loc)
            return self.build.add(ir.MatMul(self.many(columns[0], loc), found.ref, m), loc)
        if node.map is None:
            m = self.types(self.segments(columns[0]), range(len(lanes)), len(lanes), loc)
        else:
            m = self._map(columns[2], self.segments(lanes), range(len(lanes)), loc)
        ends = self.many(columns[0], loc), self.many(columns[1], loc)
        return self.build.add(ir.MatMul(*ends, m) if isinstance(node, ir.MatMul) else ir.Gram(*ends, m), loc)

    def _pull(self, xs: Sequence[ir.Ref], maps: Sequence[ir.Ref], lanes: Sequence[ir.Ref], loc: Location) -> ir.Ref:
        if not isinstance(self.graph.nodes[maps[0]], ir.MapOf):
            return self._spread(xs, lanes, loc)
        found = self.picked(xs, loc)
        return self.build.add(ir.Pull(found.ref, self.unions.joined(maps, found.of, found.at, loc)), loc)

    def _spread(self, xs: Sequence[ir.Ref], lanes: Sequence[ir.Ref], loc: Location) -> ir.Ref:
        """Pulls of shared data to every row."""
        on = self.segments(lanes)
        if len(set(xs)) == 1:
            return self.build.add(ir.Pull(self.one(xs[0]), self.unions.types(on, (0,) * len(on), 1, loc)), loc)
        return self.build.add(ir.Pull(self.many(xs, loc), self.unions.types(on, range(len(on)), len(on), loc)), loc)

    def _map(self, maps: Sequence[ir.Ref], to: Segments, at: Sequence[int], loc: Location) -> ir.Ref:
        """Maps of pushes, or of types, into the segments `at` of the union `to`."""
        if isinstance(self.graph.nodes[maps[0]], ir.MapOf):
            return self.unions.joined(maps, to, at, loc)
        doms = tuple(t.dom for m in maps if (t := self.graph.types[m]) and not isinstance(t, ir.Type))  # type: ignore
        return self.unions.types(doms, at, len(to), loc)
