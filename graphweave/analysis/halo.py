"""Which values travel to other ranks, and which are computed there again from others that do.

A value with halo rows can be had in two ways: its own rows are sent, or, if it is row-wise work, it is computed on own
and halo rows together from operands that have halo rows. So `x W` is sent if it is narrower than x, x if several
functions of it are read, and nothing if x has been kept from an earlier call. Both ways are priced, work and wire, and
the cheapest is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphweave.analysis.cones import row_bytes, row_space, type_of
from graphweave.analysis.flow import Flow
from graphweave.analysis.ownership import HaloRows, Sharding
from graphweave.analysis.ownership_rules import owned_rows
from graphweave.analysis.statistics import Statistics
from graphweave.analysis.work import BANDWIDTH, PRODUCT_RATE, VECTOR_RATE
from graphweave.core.types import UNIT, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands
from graphweave.ir.message.infer import numel

WIRE_BANDWIDTH = 1e9
"""Bytes a second between two ranks: ten gigabits, about what machines of a cluster have."""
WIRE_LATENCY = 50e-6
"""Seconds of one exchange without rows."""
ROW_WISE = (ir.Pointwise, ir.Cast, ir.Reduce, ir.Reshape, ir.Broadcast, ir.Permute, ir.Slice, ir.Pad, ir.Concat)
"""Nodes each row of which depends on the same rows of their operands, and on shared data."""
_MAX_CANDIDATES = 32
"""Upper limit on the values that are tried as ones to send though no edge reads them."""


@dataclass(frozen=True, slots=True)
class HaloCosts:
    """How a program lies on the ranks, mean row counts, and inputs that are likely to be the same at the next call."""

    sharding: Sharding
    statistics: Statistics
    steady: frozenset[str] = frozenset()


def computed_with_halo(program: ir.Program, halo: HaloRows, costs: HaloCosts) -> frozenset[ir.Ref]:
    """The values that are computed on halo rows from others; all other values that are needed there are sent."""
    return _Choice(program, halo, costs).choose()[0]


def seconds_on_the_wire(program: ir.Program, costs: HaloCosts) -> float:
    """Seconds that an average rank takes to have values with halo rows, and to send back what is pushed to such."""
    choice = _Choice(program, owned_rows(program, costs.sharding).halo, costs)
    back = (r for r, n in enumerate(program.nodes) if isinstance(n, ir.Push | ir.Gram) and n.map in choice.halo.leaving)
    return choice.choose()[1] + sum(choice.sending(r) for r in back)


class _Choice:
    """`asked` are values that are read along maps that leave, `owned` those that others read on own rows."""

    def __init__(self, program: ir.Program, halo: HaloRows, costs: HaloCosts) -> None:
        self.program, self.halo, self.costs = program, halo, costs
        self.once = Flow(program).graph_only
        self.mean = dict(costs.sharding.mean_halo)
        asked, owned = set[ir.Ref](), {r for r in program.outputs if r is not None}
        for node in program.nodes:
            if isinstance(node, ir.Pull) and node.map in halo.leaving:
                asked.update(self._joined(node.x))
            else:
                owned.update(operands(node))
        self.asked, self.owned = frozenset(asked), frozenset(owned)

    def _joined(self, ref: ir.Ref) -> tuple[ir.Ref, ...]:
        """The values whose halo rows those of `ref` are: the operands if rows are concatenated, else `ref` itself."""
        node = self.program.nodes[ref]
        of = self.halo.unions.get(row_space(self.program, ref))
        if not isinstance(node, ir.Join) or of != tuple(row_space(self.program, x) for x in node.xs):
            return (ref,)
        return tuple(x for x in node.xs if self.halo.of(row_space(self.program, x)))

    def _halo_rows(self, space: Space) -> int:
        """The mean number of halo rows of a rank."""
        return sum(self.mean[t] for t in self.halo.of(space))

    def choose(self) -> tuple[frozenset[ir.Ref], float]:
        """The values that are computed on halo rows, and the seconds that all of it takes."""
        sent = frozenset[ir.Ref]()
        best, price = self._plan(sent)
        for candidate in self._candidates():
            tried, cheaper = self._plan(sent | {candidate})
            if cheaper < price:
                best, price, sent = tried, cheaper, sent | {candidate}
        return best, price

    def _candidates(self) -> list[ir.Ref]:
        """Values from which several of the asked ones are computed row by row, the nearest first."""
        below: dict[ir.Ref, set[ir.Ref]] = {}
        for ref in sorted(self.asked):
            todo, seen = list(self._parts(ref) or ()), set[ir.Ref]()
            while todo:
                r = todo.pop()
                if r not in seen:
                    seen.add(r)
                    below.setdefault(r, set()).add(ref)
                    todo.extend(self._parts(r) or ())
        shared = (r for r, by in below.items() if len(by) > 1 and r not in self.asked)
        return sorted(shared, reverse=True)[:_MAX_CANDIDATES]

    def _plan(self, sent: frozenset[ir.Ref]) -> tuple[frozenset[ir.Ref], float]:
        """The values that are computed on halo rows, and the seconds that this and sending the rest takes, if the
        values in `sent` are sent in any case."""
        have: set[ir.Ref] = set()  # with halo rows
        computed: set[ir.Ref] = set()
        seconds = 0.0
        for ref in sorted(sent):
            seconds += self.sending(ref)
            have.add(ref)
        for ref in sorted(self.asked - sent):
            made, again = self._again(ref, have)
            sending = self.sending(ref)
            if again < sending:
                computed |= made - have
                have |= made
            seconds += min(again, sending)
            have.add(ref)
        return frozenset(computed), seconds

    def _again(self, ref: ir.Ref, have: set[ir.Ref]) -> tuple[set[ir.Ref], float]:
        """The values that are computed to have `ref` on halo rows without sending it, and the seconds that takes."""
        parts = self._parts(ref)
        if parts is None:
            return set(), float("inf")
        made, seconds = {ref}, self._work(ref)
        for part in parts:
            if part in have or part in made:
                continue
            deeper, again = self._again(part, have)
            sending = self.sending(part)
            if again < sending:
                made |= deeper
            seconds += min(again, sending)
        return made, seconds

    def _parts(self, ref: ir.Ref) -> tuple[ir.Ref, ...] | None:
        """The operands of row-wise work that have rows; None if the value is no such work."""
        node = self.program.nodes[ref]
        if isinstance(node, ir.MatMul) and node.map is None:
            return (node.x,)
        if not isinstance(node, ROW_WISE):
            return None
        return tuple(dict.fromkeys(r for r in operands(node) if row_space(self.program, r) != UNIT))

    def sending(self, ref: ir.Ref) -> float:
        """Seconds to send the halo rows of `ref`; none if it stays the same from call to call."""
        node = self.program.nodes[ref]
        steady = isinstance(node, ir.Input) and node.name in self.costs.steady
        spread = isinstance(node, ir.Pull) and isinstance(self.program.nodes[node.map], ir.ToUnit)
        if isinstance(node, ir.Const) or spread or steady or ref in self.once:
            return 0.0
        t = type_of(self.program, ref)
        sent = row_bytes(self.program, ref) * self._halo_rows(t.space)
        return sent / WIRE_BANDWIDTH + WIRE_LATENCY * max(len(self.halo.of(t.space)), 1)

    def _work(self, ref: ir.Ref) -> float:
        """Seconds to compute rows of `ref` for the halo, and for own rows once more if these are needed apart. Of a
        product, the own rows are read where they are."""
        t, node = type_of(self.program, ref), self.program.nodes[ref]
        halo = self._halo_rows(t.space)
        if isinstance(node, ir.MatMul):
            w = type_of(self.program, node.w)
            return halo * (2 * numel(w.shape) / PRODUCT_RATE + row_bytes(self.program, ref) / BANDWIDTH)
        rows = halo + (self.costs.statistics.rows(t.space) if ref in self.owned else 0)
        return rows * (numel(t.shape) / VECTOR_RATE + row_bytes(self.program, ref) / BANDWIDTH)
