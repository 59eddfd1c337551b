"""typed(push(x, m), W, t) -> push(typed(x, W, t . m), m): from relations x nodes to edges, where these are fewer.

A merged loop over relations has a row for each relation and node; where relations are many, most of these rows have no
edge. Linear work on them, also with a factor or divisor a row (a mean), can be done on edges instead: before the push
in the forward, behind the pull in the backward, and in the gram of the weights' gradient. Pushes or pulls that then
follow each other become one. It is legal if rows without edges are known to stay 0, and pays by the row counts of the
graph at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphweave.analysis.facts import Facts
from graphweave.analysis.statistics import Statistics
from graphweave.core.types import Fold
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import numel
from graphweave.passes.composed_maps import composed
from graphweave.passes.factors import Factor, below_reshapes, product, shaped, value_type
from graphweave.passes.pass_facts import NO_FACTS, PassFacts
from graphweave.passes.rewritten import Rewritten, unchanged
from graphweave.passes.rules.factor import is_harmless
from graphweave.passes.rules.linear_through_push import Pushed, ends, moved_into, pulled, times_pulled
from graphweave.passes.substitute import substitute


@dataclass(frozen=True, slots=True)
class ToEdges:
    name: str = "to-edges"

    def __call__(self, program: ir.Program, facts: PassFacts = NO_FACTS) -> Rewritten:
        """`program` with linear work moved to edges; the same object where none is."""
        typed = any(isinstance(n, ir.MatMul | ir.Gram) and n.map is not None for n in program.nodes)
        if not typed or not facts.choices.merge:
            return unchanged(program)
        mover = _Mover(facts.of(program), facts.statistics)
        replaced = mover.replaced()
        if not replaced:
            return unchanged(program)
        return substitute(mover.build, len(program.nodes), replaced, program.outputs, facts.keep, program.spaces)


@dataclass(frozen=True, slots=True)
class _ScaledRows:
    """`sign` times node `rows` (a push or a product) times `scales`, each of which is one number a row."""

    rows: ir.Ref
    scales: tuple[Factor, ...]
    sign: int


class _Mover:
    def __init__(self, facts: Facts, statistics: Statistics) -> None:
        self.program, self.statistics = facts.program, statistics
        self.build = Builder.of(facts.program)
        self.users = facts.flow.users

    def replaced(self) -> dict[ir.Ref, ir.Ref]:
        out: dict[ir.Ref, ir.Ref] = {}
        for ref, node in enumerate(self.program.nodes):
            new: ir.Ref | None = None
            if isinstance(node, ir.MatMul) and node.map is not None:
                new = self._product(ref, node)
                if new is not None:
                    self._fold(self.users[ref], new, out)
            elif isinstance(node, ir.Gram) and node.map is not None:
                new = self._product(ref, node)
            elif isinstance(node, ir.Pull):
                new = self._pulled(ref, node)
            if new is not None:
                out[ref] = new
        return out

    # -------------------------------------------------------- the three forms

    def _product(self, ref: ir.Ref, node: ir.MatMul | ir.Gram) -> ir.Ref | None:
        """typed(push(x, m) * s, W, t) -> push(typed(x, W, t . m) * pull(s, m), m); likewise for a gram of such rows."""
        for side, end in enumerate(ends(node)):
            found = self._pushed(end)
            if found is not None:
                return moved_into(self.build, ref, side, found)
        return None

    def _fold(self, users_of: Sequence[ir.Ref], new: ir.Ref, out: dict[ir.Ref, ir.Ref]) -> None:
        """push(push(x, m), fold) -> push(x, fold . m)"""
        push = self.build.nodes[new]
        for ref in users_of:
            node = self.build.nodes[ref]
            if isinstance(node, ir.Push) and self._is_sum(node) and isinstance(push, ir.Push):
                loc = self.build.locs[ref]
                both = composed(self.build, node.map, push.map, loc)
                assert both is not None
                out[ref] = self.build.add(ir.Push(push.x, both, Fold.sum), loc)

    def _pulled(self, ref: ir.Ref, node: ir.Pull) -> ir.Ref | None:
        """pull(typed(x, W, t) * s, m) -> typed(pull(x, m), W, t . m) * pull(s, m)"""
        if not self._fewer(node.map):
            return None
        scaled = self._scaled(node.x)
        typed = self.build.nodes[scaled.rows] if scaled is not None else None
        if (
            scaled is None
            or not isinstance(typed, ir.MatMul)
            or typed.map is None
            or not self._only_pulled(scaled.rows, node.map)
        ):
            return None
        loc, m = self.build.locs[ref], node.map
        x = pulled(self.build, typed.x, m, loc)
        inner = self.build.add(ir.MatMul(x, typed.w, composed(self.build, typed.map, m, loc)), loc)
        out = times_pulled(self.build, inner, scaled.scales, scaled.sign, m, loc)
        return shaped(self.build, out, value_type(self.build, ref).shape, loc)

    # -------------------------------------------------------- questions about nodes

    def _pushed(self, ref: ir.Ref) -> Pushed | None:
        """`ref` as a scaled push from fewer rows that only typed products and grams read; None if it is not one."""
        scaled = self._scaled(ref)
        push = self.build.nodes[scaled.rows] if scaled is not None else None
        if scaled is None or not isinstance(push, ir.Push) or not self._is_sum(push) or not self._fewer(push.map):
            return None
        harmless = all(is_harmless(self.build, f, push.map) for f in scaled.scales)
        good = harmless and self._only_multiplied(scaled.rows)
        return Pushed(push, scaled.scales, scaled.sign) if good else None

    def _scaled(self, ref: ir.Ref) -> _ScaledRows | None:
        """`ref` as scaled rows. Views as blocks are looked through, since a scale is one number a row."""
        p, whole = product(self.build, below_reshapes(self.build, ref)), numel(value_type(self.build, ref).shape)
        rows = [f for f in p.factors if numel(f.shape) == whole and not f.inverse and self._makes_rows(f.ref)]
        scales = tuple(f for f in p.factors if f not in rows[:1])
        if not rows or any(numel(f.shape) != 1 for f in scales):
            return None
        return _ScaledRows(below_reshapes(self.build, rows[0].ref), scales, p.sign)

    def _makes_rows(self, ref: ir.Ref) -> bool:
        return isinstance(self.build.nodes[below_reshapes(self.build, ref)], ir.Push | ir.MatMul)

    def _is_sum(self, push: ir.Push) -> bool:
        return push.is_plain_sum and isinstance(self.build.nodes[push.map], ir.MapOf)

    def _fewer(self, m: ir.Ref) -> bool:
        t = self.build.types[m]
        assert isinstance(t, ir.MapType)
        return isinstance(self.build.nodes[m], ir.MapOf) and self.statistics.rows(t.dom) < self.statistics.rows(t.cod)

    def _only_multiplied(self, ref: ir.Ref) -> bool:
        """Whether nothing but typed products and grams reads `ref`, through pointwise operations and reshapes."""
        return ref not in self.program.outputs and all(
            (isinstance(n := self.program.nodes[u], ir.MatMul | ir.Gram) and n.map is not None)
            or (isinstance(n, ir.Pointwise | ir.Reshape) and self._only_multiplied(u))
            for u in self.users[ref]
        )

    def _only_pulled(self, ref: ir.Ref, m: ir.Ref) -> bool:
        return ref not in self.program.outputs and all(
            (isinstance(n := self.program.nodes[u], ir.Pull) and n.map == m)
            or (isinstance(n, ir.Pointwise | ir.Reshape) and self._only_pulled(u, m))
            for u in self.users[ref]
        )
