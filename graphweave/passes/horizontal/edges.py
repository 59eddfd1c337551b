"""typed(push(x, m), W, t) -> push(typed(x, W, t . m), m): from relations x nodes to edges, where these are fewer.

A merged loop over relations has a row for each relation and node, most of them without edges where relations are many.
Linear work on them, divided or multiplied by a number a row (a mean), is the same on edges: forward before the push,
backward behind the pull, and the gram of the weights' gradient too. Pushes and pulls that meet then are one. By the row
counts of the graph at hand; rows without edges must be known to stay 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from graphweave.analysis.flow import users
from graphweave.analysis.statistics import Statistics
from graphweave.core.types import Fold
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import (
    Gram,
    MapOf,
    MapType,
    MatMul,
    Pointwise,
    Program,
    Pull,
    Push,
    Ref,
    Reshape,
    ToUnit,
)
from graphweave.passes.products import Factor, below_reshapes, multiplied, negated, product, shaped, value_type
from graphweave.passes.rewritten import Rewritten, unchanged
from graphweave.passes.rules.factor import is_harmless
from graphweave.passes.substitute import substitute


@dataclass(frozen=True, slots=True)
class ToEdges:
    """`keep` are calls that must stay though nobody reads them."""

    statistics: Statistics = field(default_factory=Statistics)
    keep: tuple[Ref, ...] = ()
    name: str = "to-edges"

    def __call__(self, program: Program) -> Rewritten:
        """`program` with such work on edges; the same object where there is none."""
        if not any(isinstance(n, MatMul | Gram) and n.map is not None for n in program.nodes):
            return unchanged(program)
        mover = _Mover(program, self.statistics)
        replaced = mover.replaced()
        if not replaced:
            return unchanged(program)
        return substitute(mover.build, len(program.nodes), replaced, program.outputs, self.keep, program.spaces)


@dataclass(frozen=True, slots=True)
class _Scaled:
    """`sign` times the rows of node `rows` (a push, or a typed product), times one number a row each of `scales`."""

    rows: Ref
    scales: tuple[Factor, ...]
    sign: int


class _Mover:
    def __init__(self, program: Program, statistics: Statistics) -> None:
        self.program, self.statistics = program, statistics
        self.build = Builder.of(program)
        self.users = users(program)

    def replaced(self) -> dict[Ref, Ref]:
        out: dict[Ref, Ref] = {}
        for ref, node in enumerate(self.program.nodes):
            new: Ref | None = None
            if isinstance(node, MatMul) and node.map is not None:
                new = self._product(ref, node)
                if new is not None:
                    self._fold(self.users[ref], new, out)
            elif isinstance(node, Gram) and node.map is not None:
                new = self._gram(ref, node)
            elif isinstance(node, Pull):
                new = self._pulled(ref, node)
            if new is not None:
                out[ref] = new
        return out

    # -------------------------------------------------------- the three forms

    def _product(self, ref: Ref, node: MatMul) -> Ref | None:
        """typed(push(x, m) * s, W, t) -> push(typed(x, W, t . m) * pull(s, m), m)"""
        found = self._pushed(node.x)
        if found is None:
            return None
        scaled, push, loc = found[0], found[1], self.build.locs[ref]
        rows = shaped(self.build, push.x, value_type(self.build, node.x).shape, loc)
        inner = self.build.add(MatMul(rows, node.w, self._composed(node.map, push.map, loc)), loc)
        return self.build.add(Push(self._times(inner, scaled, push.map, loc), push.map, Fold.sum), loc)

    def _fold(self, users_of: list[Ref], new: Ref, out: dict[Ref, Ref]) -> None:
        """push(push(x, m), fold) -> push(x, fold . m)"""
        push = self.build.nodes[new]
        for ref in users_of:
            node = self.build.nodes[ref]
            if isinstance(node, Push) and self._is_sum(node) and isinstance(push, Push):
                loc = self.build.locs[ref]
                out[ref] = self.build.add(Push(push.x, self._composed(node.map, push.map, loc), Fold.sum), loc)

    def _gram(self, ref: Ref, node: Gram) -> Ref | None:
        """gram(push(x, m) * s, y, t) -> gram(x, pull(y, m) * pull(s, m), t . m), and the other way round"""
        loc = self.build.locs[ref]
        for first in (True, False):
            one, other = (node.x, node.y) if first else (node.y, node.x)
            found = self._pushed(one)
            if found is None:
                continue
            scaled, push = found
            rows = shaped(self.build, push.x, value_type(self.build, one).shape, loc)
            far = self._times(self._pull(other, push.map, loc), scaled, push.map, loc)
            t = self._composed(node.map, push.map, loc)
            return self.build.add(Gram(rows, far, t) if first else Gram(far, rows, t), loc)
        return None

    def _pulled(self, ref: Ref, node: Pull) -> Ref | None:
        """pull(typed(x, W, t) * s, m) -> typed(pull(x, m), W, t . m) * pull(s, m)"""
        if not self._fewer(node.map):
            return None
        scaled = self._scaled(node.x)
        typed = self.build.nodes[scaled.rows] if scaled is not None else None
        if (
            scaled is None
            or not isinstance(typed, MatMul)
            or typed.map is None
            or not self._only_pulled(scaled.rows, node.map)
        ):
            return None
        loc, t = self.build.locs[ref], value_type(self.build, ref)
        x = self._pull(typed.x, node.map, loc)
        inner = self.build.add(MatMul(x, typed.w, self._composed(typed.map, node.map, loc)), loc)
        return shaped(self.build, self._times(inner, scaled, node.map, loc), t.shape, loc)

    # -------------------------------------------------------- what is there

    def _pushed(self, ref: Ref) -> tuple[_Scaled, Push] | None:
        """`ref` as a push from fewer rows, whose rows are used in typed products only."""
        scaled = self._scaled(ref)
        push = self.build.nodes[scaled.rows] if scaled is not None else None
        if scaled is None or not isinstance(push, Push) or not self._is_sum(push) or not self._fewer(push.map):
            return None
        harmless = all(is_harmless(self.build, f, push.map) for f in scaled.scales)
        return (scaled, push) if harmless and self._only_multiplied(scaled.rows) else None

    def _scaled(self, ref: Ref) -> _Scaled | None:
        p, whole = product(self.build, ref), numel(value_type(self.build, ref).shape)
        rows = [f for f in p.factors if numel(f.shape) == whole and not f.inverse and self._makes_rows(f.ref)]
        scales = tuple(f for f in p.factors if f not in rows[:1])
        if not rows or any(numel(f.shape) != 1 for f in scales):
            return None
        return _Scaled(below_reshapes(self.build, rows[0].ref), scales, p.sign)

    def _makes_rows(self, ref: Ref) -> bool:
        return isinstance(self.build.nodes[below_reshapes(self.build, ref)], Push | MatMul)

    def _is_sum(self, push: Push) -> bool:
        return push.fold is Fold.sum and push.empty == 0 and isinstance(self.build.nodes[push.map], MapOf)

    def _fewer(self, m: Ref) -> bool:
        t = self.build.types[m]
        assert isinstance(t, MapType)
        return isinstance(self.build.nodes[m], MapOf) and self.statistics.rows(t.dom) < self.statistics.rows(t.cod)

    def _only_multiplied(self, ref: Ref) -> bool:
        """Do nothing but typed products and grams read the rows, through factors and views?"""
        return ref not in self.program.outputs and all(
            (isinstance(n := self.program.nodes[u], MatMul | Gram) and n.map is not None)
            or (isinstance(n, Pointwise | Reshape) and self._only_multiplied(u))
            for u in self.users[ref]
        )

    def _only_pulled(self, ref: Ref, m: Ref) -> bool:
        return ref not in self.program.outputs and all(
            (isinstance(n := self.program.nodes[u], Pull) and n.map == m)
            or (isinstance(n, Pointwise | Reshape) and self._only_pulled(u, m))
            for u in self.users[ref]
        )

    # -------------------------------------------------------- what is made

    def _times(self, ref: Ref, scaled: _Scaled, m: Ref, loc: str) -> Ref:
        """`ref` times the scales, pulled along `m`."""
        t = value_type(self.build, ref)
        ones = (1,) * len(t.shape)
        factors = [Factor(ref, t.shape)]
        for f in scaled.scales:
            factors.append(Factor(self._pull(f.ref, m, loc), ones, f.inverse))
        out = multiplied(self.build, factors, t.dtype, t.space, loc)
        return negated(self.build, out, scaled.sign, loc)

    def _pull(self, ref: Ref, m: Ref, loc: str) -> Ref:
        """pull(pull(x, n), m) -> pull(x, n . m)"""
        node, t, mt = self.build.nodes[ref], value_type(self.build, ref), self.build.types[m]
        assert isinstance(mt, MapType)
        if t.space != mt.cod:
            return ref  # shared data
        if isinstance(node, Pull) and isinstance(self.build.nodes[node.map], MapOf):
            return self.build.add(Pull(node.x, self._composed(node.map, m, loc)), loc)
        return self.build.add(Pull(ref, m), loc)

    def _composed(self, m: Ref | None, n: Ref, loc: str) -> Ref:
        """The map r -> m(n(r))."""
        assert m is not None
        outer = self.build.nodes[m]
        if not isinstance(outer, MapOf):
            t = self.build.types[n]
            assert isinstance(t, MapType)
            return self.build.add(ToUnit(t.dom), loc)
        return self.build.add(MapOf(self.build.add(Pull(outer.index, n), loc), outer.cod, outer.wrap), loc)
