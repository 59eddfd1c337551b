"""f(x[dst] - x[src]) -> pull(f(x[second] - x[first]), pair), where f is even: once for both directions of an edge.

A length, its cutoff, and a network of the length are the same for an edge and the edge in the other direction. They are
computed for each unordered pair of ends, of which an undirected graph has half as many as edges, and pulled. A value is
*even* if it keeps its rows when all edges are reversed, and *odd* if it changes their sign, such as a vector along an
edge. The transposes serve the backward: gram(f, g) -> gram(f', push(g, pair)), likewise totals, and forces on both ends
of an edge, push(z, dst) - push(z, src), become forces on the ends of a pair. What is linear in values that are neither
even nor odd is computed from their sums over the edges of a pair.

Legal for any graph. It pays where most edges have a reverse, which is counted in the graph at hand, and where products
are computed from lengths; without products, a gather of the result costs as much as computing it again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeGuard

from graphweave.analysis.facts import Facts
from graphweave.core.types import UNIT, DType, Fold, Op, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder, with_operands
from graphweave.ir.message.pairs import pairs_of
from graphweave.passes.pass_facts import NO_FACTS, PassFacts
from graphweave.passes.rewritten import Rewritten, unchanged
from graphweave.passes.substitute import substitute

MAX_PAIRS = 0.6
"""Upper limit on the pairs for each edge; with more, the pass does nothing. An undirected graph has 0.5."""

Sign: TypeAlias = int
"""1 for an even value, -1 for an odd one."""

_ROW_WISE = (ir.Reshape, ir.Broadcast, ir.Permute, ir.Slice, ir.Concat)
"""Operators that move features of a row, and nothing else."""


@dataclass(frozen=True, slots=True)
class SymmetricPairs:
    name: str = "symmetric-pairs"

    def __call__(self, program: ir.Program, facts: PassFacts = NO_FACTS) -> Rewritten:
        if facts.sharding is not None or facts.measure is None:
            return unchanged(program)
        ends = _find_ends(facts.of(program))
        if ends is None:
            return unchanged(program)
        moved = _Moved(program, *ends, Builder.of(program))
        if not moved.find_products() or not moved.pays(facts):
            return unchanged(program)
        moved.move()
        done = substitute(
            moved.build, len(moved.build.nodes), moved.replaced, program.outputs, facts.keep, program.spaces
        )
        return replace(done, limits=(((moved.space, MAX_PAIRS), (moved.pairs, -1.0)),))


def _find_ends(facts: Facts) -> tuple[Space, ir.Ref, ir.Ref] | None:
    """The edges of the first difference of one value at both ends, and the two index tensors."""
    program = facts.program
    for node in program.nodes:
        if isinstance(node, ir.Pointwise) and node.op is Op.sub and (maps := _both_ends(program, node.args)):
            second, first = maps
            a, b = program.nodes[first], program.nodes[second]
            t = program.types[first]
            assert isinstance(a, ir.MapOf)
            assert isinstance(b, ir.MapOf)
            assert isinstance(t, ir.MapType)
            if {a.index, b.index} <= facts.flow.graph_only:
                return t.dom, a.index, b.index
    return None


def _both_ends(program: ir.Program, args: tuple[ir.Ref, ...]) -> tuple[ir.Ref, ir.Ref] | None:
    """The two maps along which one value is pulled, if these are the operands."""
    x, y = (program.nodes[r] for r in args)
    if not isinstance(x, ir.Pull) or not isinstance(y, ir.Pull) or x.x != y.x:
        return None
    a, b = program.nodes[x.map], program.nodes[y.map]
    differ = isinstance(a, ir.MapOf) and isinstance(b, ir.MapOf) and a.index != b.index
    return (x.map, y.map) if differ else None


def _is_neg(node: ir.Node) -> TypeGuard[ir.Pointwise]:
    return isinstance(node, ir.Pointwise) and node.op is Op.neg


@dataclass(slots=True)
class _Moved:
    """Moves work from the edges `space`, whose ends are the index tensors `a` and `b`, to pairs.

    Pairs have the smaller end first, so an edge with a <= b has the direction of its pair. Odd values of the others
    have the other sign.
    """

    program: ir.Program
    space: Space
    a: ir.Ref
    b: ir.Ref
    build: Builder
    replaced: dict[ir.Ref, ir.Ref] = field(default_factory=dict)
    signs: dict[ir.Ref, Sign] = field(default_factory=dict)
    dear: set[ir.Ref] = field(default_factory=set)
    """Even and odd values for which a product is needed."""
    pairs: Space = UNIT
    """The space of pairs, once it is part of the program."""
    _distinct: ir.Ref = -1
    _pair: ir.Ref = -1
    _on_pairs: dict[ir.Ref, ir.Ref] = field(default_factory=dict)
    _sums: dict[tuple[ir.Ref, Sign], tuple[ir.Ref, bool]] = field(default_factory=dict)

    def find_products(self) -> bool:
        """Find the sign of each value of edges that has one. Whether one of them takes a product."""
        for ref in range(len(self.program.nodes)):
            if self._on_edges(ref) and (sign := self._sign(ref)):
                self.signs[ref] = sign
                if isinstance(self.program.nodes[ref], ir.MatMul) or self.dear & set(self.build.operands[ref]):
                    self.dear.add(ref)
        return bool(self.dear)

    def pays(self, facts: PassFacts) -> bool:
        """Whether the graph at hand has few pairs. This adds the pairs to the program."""
        build, loc = self.build, self.program.locs[self.a]
        keys = tuple(build.add(ir.Pointwise(op, (self.a, self.b)), loc) for op in (Op.minimum, Op.maximum))
        self._distinct = build.add(ir.Distinct(keys, pairs_of(build.nodes, *keys)), loc)
        self.pairs = space = pairs_of(build.nodes, *keys)
        self._pair = build.add(ir.MapOf(build.add(ir.DistinctRow(self._distinct), loc), space), loc)
        first = build.add(ir.DistinctKey(self._distinct, 0), loc)
        counted = Facts(build.program([first], [*self.program.spaces, (space, None)]))
        rows = None if facts.measure is None else facts.measure(counted, first)
        return rows is not None and rows <= MAX_PAIRS * facts.statistics.rows(self.space)

    def move(self) -> None:
        for ref, node in enumerate(self.program.nodes):
            new = self._sink(ref, node)
            if new is None and ref in self.dear and self.signs[ref] == 1:
                new = self.build.add(ir.Pull(self._with_pairs(ref), self._pair), self.program.locs[ref])
            if new is not None:
                self.replaced[ref] = new

    # -------------------------------------------------------- which values are even or odd

    def _on_edges(self, ref: ir.Ref) -> bool:
        t = self.program.types[ref]
        return isinstance(t, ir.Type) and t.space == self.space

    def _sign_of(self, ref: ir.Ref) -> Sign:
        """The sign of an operand, 0 if it has none. Shared data are even."""
        t = self.program.types[ref]
        return 1 if isinstance(t, ir.Type) and t.space == UNIT else self.signs.get(ref, 0)

    def _sign(self, ref: ir.Ref) -> Sign:
        match self.program.nodes[ref]:
            case ir.Const():
                return 1
            case ir.Pointwise(op, args) if len(args) == 2 and (sign := self._sign_of_ends(op, args)):
                return sign
            case ir.Pointwise(op, args):
                return self._sign_of_pointwise(op, [self._sign_of(r) for r in args])
            case ir.Cast(x) | ir.MatMul(x, map=None):
                return self._sign_of(x)
            case ir.Reduce(x, fold):
                sign = self._sign_of(x)
                return sign if fold is Fold.sum or sign == 1 else 0
            case node if isinstance(node, _ROW_WISE):
                found = {self._sign_of(r) for r in self.build.operands[ref]}
                return found.pop() if len(found) == 1 else 0
            case _:
                return 0

    def _sign_of_ends(self, op: Op, args: tuple[ir.Ref, ...]) -> Sign:
        """The sign of a sum or product of one value at both ends, each with a sign, 0 for others."""
        one, other = (self._pulled(r) for r in args)
        if one is None or other is None or one[0] != other[0] or {one[1], other[1]} != {self.a, self.b}:
            return 0
        return {Op.add: one[2] * other[2], Op.sub: -one[2] * other[2], Op.mul: 1}.get(op, 0)

    def _pulled(self, ref: ir.Ref) -> tuple[ir.Ref, ir.Ref, Sign] | None:
        """The value of which `ref` is the pull or its negative, the index tensor of the map, and the sign."""
        node, sign = self.program.nodes[ref], 1
        if _is_neg(node):
            node, sign = self.program.nodes[node.args[0]], -1
        if not isinstance(node, ir.Pull) or not isinstance(along := self.program.nodes[node.map], ir.MapOf):
            return None
        x, of = node.x, self.program.nodes[node.x]
        return (of.args[0], along.index, -sign) if _is_neg(of) else (x, along.index, sign)

    def _sign_of_pointwise(self, op: Op, signs: list[Sign]) -> Sign:
        if all(s == 1 for s in signs):
            return 1
        match op, signs:
            case _, _ if 0 in signs:
                return 0
            case Op.neg, [s]:
                return s
            case ((Op.mul | Op.div), [s, t]):
                return s * t
            case ((Op.add | Op.sub), [-1, -1]):
                return -1
            case _:
                return 0

    # -------------------------------------------------------- values of pairs

    def _with_pairs(self, ref: ir.Ref) -> ir.Ref:
        """The even or odd value `ref`, or the pull that one is made of, for each pair. Shared data are themselves."""
        node, loc = self.program.nodes[ref], self.program.locs[ref]
        if ref not in self._on_pairs:
            match node:
                case ir.Const(value, t):
                    new = self.build.add(ir.Const(value, ir.Type(UNIT, t.shape, t.dtype)), loc)
                case _ if not self._on_edges(ref):
                    return ref
                case ir.Pull(x, along):
                    new = self.build.add(ir.Pull(x, self._end(along)), loc)
                case _:
                    new = self.build.add(with_operands(node, self._with_pairs), loc)
            self._on_pairs[ref] = new
        return self._on_pairs[ref]

    def _end(self, along: ir.Ref) -> ir.Ref:
        """The map from pairs that corresponds to a map of edges to their ends."""
        node, loc = self.program.nodes[along], self.program.locs[along]
        assert isinstance(node, ir.MapOf)
        index = self.build.add(ir.DistinctKey(self._distinct, 0 if node.index == self.a else 1), loc)
        return self.build.add(ir.MapOf(index, node.cod, True), loc)

    # -------------------------------------------------------- sums of the edges of a pair

    def _sum(self, ref: ir.Ref, sign: Sign) -> tuple[ir.Ref, bool]:
        """The sum over the edges of each pair of a value, times -1 for edges in the other direction if `sign` is -1,
        and whether work on edges has gone with it."""
        if (ref, sign) not in self._sums:
            new = self._sum_of_linear(ref, sign)
            self._sums[ref, sign] = (self._push(ref, sign), False) if new is None else (new, True)
        return self._sums[ref, sign]

    def _sum_of_linear(self, ref: ir.Ref, sign: Sign) -> ir.Ref | None:
        node, loc, build = self.program.nodes[ref], self.program.locs[ref], self.build
        if ref in self.signs:
            return None
        match node:
            case ir.Pointwise(Op.neg, (x,)):
                return build.add(ir.Pointwise(Op.neg, (self._sum(x, sign)[0],)), loc)
            case ir.Pointwise((Op.add | Op.sub) as op, (x, y)) if self._on_edges(x) and self._on_edges(y):
                return build.add(ir.Pointwise(op, (self._sum(x, sign)[0], self._sum(y, sign)[0])), loc)
            case ir.Pointwise(Op.mul, (x, y)) if by := self._sign_of(y):
                return build.add(ir.Pointwise(Op.mul, (self._sum(x, sign * by)[0], self._with_pairs(y))), loc)
            case ir.Pointwise(Op.mul, (x, y)) if by := self._sign_of(x):
                return build.add(ir.Pointwise(Op.mul, (self._with_pairs(x), self._sum(y, sign * by)[0])), loc)
            case ir.Pointwise(Op.div, (x, y)) if by := self._sign_of(y):
                return build.add(ir.Pointwise(Op.div, (self._sum(x, sign * by)[0], self._with_pairs(y))), loc)
            case ir.MatMul(x, w, None):
                return build.add(ir.MatMul(self._sum(x, sign)[0], w), loc)
            case ir.Reduce(x, Fold.sum):
                return build.add(with_operands(node, lambda _: self._sum(x, sign)[0]), loc)
            case _ if isinstance(node, _ROW_WISE):
                return build.add(with_operands(node, lambda r: self._sum(r, sign)[0]), loc)
            case _:
                return None

    def _push(self, ref: ir.Ref, sign: Sign) -> ir.Ref:
        t, loc = self.program.types[ref], self.program.locs[ref]
        assert isinstance(t, ir.Type)
        if sign == -1:
            ref = self.build.add(ir.Pointwise(Op.mul, (ref, self._direction(t.dtype, len(t.shape)))), loc)
        return self.build.add(ir.Push(ref, self._pair, Fold.sum), loc)

    def _direction(self, dtype: DType, dims: int) -> ir.Ref:
        """1 for an edge in the direction of its pair and -1 for others."""
        loc, build = self.program.locs[self.a], self.build
        same = build.add(ir.Pointwise(Op.le, (self.a, self.b)), loc)
        ones = (build.add(ir.Const(v, ir.Type(UNIT, (), dtype)), loc) for v in (1.0, -1.0))
        found = build.add(ir.Pointwise(Op.where, (same, *ones)), loc)
        return build.add(ir.Reshape(found, (1,) * dims), loc) if dims else found

    # -------------------------------------------------------- where values leave the edges

    def _sink(self, ref: ir.Ref, node: ir.Node) -> ir.Ref | None:
        loc, build = self.program.locs[ref], self.build
        match node:
            case ir.Gram(x, y, None) if self._on_edges(x) and (sign := self.signs.get(x, 0)):
                return build.add(ir.Gram(self._with_pairs(x), self._sum(y, sign)[0]), loc)
            case ir.Gram(x, y, None) if self._on_edges(y) and (sign := self.signs.get(y, 0)):
                return build.add(ir.Gram(self._sum(x, sign)[0], self._with_pairs(y)), loc)
            case ir.Push(x, along, Fold.sum, 0) if isinstance(self.program.nodes[along], ir.ToUnit):
                if self._on_edges(x) and (found := self._sum(x, 1))[1]:
                    pairs = build.types[found[0]]
                    assert isinstance(pairs, ir.Type)
                    return build.add(ir.Push(found[0], build.add(ir.ToUnit(pairs.space), loc), Fold.sum), loc)
            case ir.Pointwise((Op.add | Op.sub) as op, (x, y)):
                return self._of_both_ends(ref, op, self.program.nodes[x], self.program.nodes[y])
        return None

    def _of_both_ends(self, ref: ir.Ref, op: Op, one: ir.Node, other: ir.Node) -> ir.Ref | None:
        """push(z, dst) - push(z, src), and push(z, dst) + push(-z, src), with pairs for edges."""
        if not (isinstance(one, ir.Push) and isinstance(other, ir.Push) and one.fold is other.fold is Fold.sum):
            return None
        ends = [self.program.nodes[p.map] for p in (one, other)]
        if {n.index for n in ends if isinstance(n, ir.MapOf)} != {self.a, self.b}:
            return None
        if not self._on_edges(one.x) or one.empty != 0 or other.empty != 0:
            return None
        z = one.x if self._is_minus(op, one.x, other.x) else other.x if self._is_minus(op, other.x, one.x) else None
        if z is None:
            return None
        found, moved = self._sum(z, -1)
        if not moved:
            return None
        loc, build = self.program.locs[ref], self.build
        minus = build.add(ir.Pointwise(Op.neg, (found,)), loc)
        of = {one.x: found, other.x: minus} if z == one.x else {one.x: minus, other.x: found}
        if op is Op.sub:
            of = {one.x: found}
        pushes = [build.add(ir.Push(of[p.x], self._end(p.map), Fold.sum), loc) for p in (one, other)]
        return build.add(ir.Pointwise(op, (pushes[0], pushes[1])), loc)

    def _is_minus(self, op: Op, z: ir.Ref, other: ir.Ref) -> bool:
        """Whether the rows that the two pushes add are those of `z` and their negatives."""
        if op is Op.sub:
            return z == other
        node = self.program.nodes[other]
        return _is_neg(node) and node.args == (z,)
