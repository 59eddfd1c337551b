"""Which values travel to other ranks, and which are computed there again from others that do.

A value with halo rows can be had in two ways: its own rows are sent, or, if it is row-wise work, it is computed on own
and halo rows together from operands that have halo rows. So `x W` is sent if it is narrower than x, x if several
functions of it are read, and nothing if x has been kept from an earlier call. Both ways are priced, work and wire, and
the cheapest is taken (`Wire` says what a byte costs).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from graphweave.analysis.flow import Flow
from graphweave.analysis.statistics import Statistics
from graphweave.core.types import UNIT, Space
from graphweave.ir.message.builder import operands
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import (
    Broadcast,
    Cast,
    Concat,
    Const,
    Input,
    MatMul,
    Pad,
    Permute,
    Pointwise,
    Program,
    Pull,
    Reduce,
    Ref,
    Reshape,
    Slice,
    ToUnit,
    Type,
)

WIRE_BANDWIDTH = 1e9
"""Bytes a second between two ranks: ten gigabits, about what machines of a cluster have."""
WIRE_LATENCY = 50e-6
"""Seconds of one exchange without rows."""
_VECTOR_RATE, _PRODUCT_RATE, _BANDWIDTH = 40e9, 200e9, 20e9
"""As in `analysis/cost.py`."""

_ROW_WISE = (Pointwise, Cast, Reduce, Reshape, Broadcast, Permute, Slice, Pad, Concat)
_MAX_CANDIDATES = 32
"""At most this many values that nobody asked for are tried as ones to send."""


@dataclass(frozen=True, slots=True)
class HaloCosts:
    """Rows of a space and of its halo on an average rank, and inputs that are likely to be the same at the next call."""

    statistics: Statistics
    halo: Mapping[Space, int]
    steady: frozenset[str] = frozenset()


def computed_with_halo(
    program: Program, asked: Iterable[Ref], owned: Iterable[Ref], costs: HaloCosts
) -> frozenset[Ref]:
    """The values that are computed on halo rows from others; all other values that are needed there are sent.

    `asked` are the values that are read on halo rows, `owned` those that are read on own rows, too.
    """
    return _Choice(program, frozenset(asked), frozenset(owned), costs).choose()


class _Choice:
    def __init__(self, program: Program, asked: frozenset[Ref], owned: frozenset[Ref], costs: HaloCosts) -> None:
        self.program, self.asked, self.owned, self.costs = program, asked, owned, costs
        self.once = Flow(program).graph_only

    def choose(self) -> frozenset[Ref]:
        sent = frozenset[Ref]()
        best, price = self._plan(sent)
        for candidate in self._candidates():
            tried, cheaper = self._plan(sent | {candidate})
            if cheaper < price:
                best, price, sent = tried, cheaper, sent | {candidate}
        return best

    def _candidates(self) -> list[Ref]:
        """Values from which several of the asked ones are computed row by row, the nearest first."""
        below: dict[Ref, set[Ref]] = {}
        for ref in sorted(self.asked):
            todo, seen = list(self._parts(ref) or ()), set[Ref]()
            while todo:
                r = todo.pop()
                if r not in seen:
                    seen.add(r)
                    below.setdefault(r, set()).add(ref)
                    todo.extend(self._parts(r) or ())
        shared = (r for r, by in below.items() if len(by) > 1 and r not in self.asked)
        return sorted(shared, reverse=True)[:_MAX_CANDIDATES]

    def _plan(self, sent: frozenset[Ref]) -> tuple[frozenset[Ref], float]:
        """What is computed on halo rows, and the seconds that this and sending the rest takes, if the values in `sent`
        are sent in any case."""
        have: set[Ref] = set()  # with halo rows
        computed: set[Ref] = set()
        seconds = 0.0
        for ref in sorted(sent):
            seconds += self._sending(ref)
            have.add(ref)
        for ref in sorted(self.asked - sent):
            made, again = self._again(ref, have)
            sending = self._sending(ref)
            if again < sending:
                computed |= made - have
                have |= made
            seconds += min(again, sending)
            have.add(ref)
        return frozenset(computed), seconds

    def _again(self, ref: Ref, have: set[Ref]) -> tuple[set[Ref], float]:
        """The values that are computed to have `ref` on halo rows without sending it, and the seconds that takes."""
        parts = self._parts(ref)
        if parts is None:
            return set(), float("inf")
        made, seconds = {ref}, self._work(ref)
        for part in parts:
            if part in have or part in made:
                continue
            deeper, again = self._again(part, have)
            sending = self._sending(part)
            if again < sending:
                made |= deeper
            seconds += min(again, sending)
        return made, seconds

    def _parts(self, ref: Ref) -> tuple[Ref, ...] | None:
        """The operands of row-wise work that have rows; None if the value is no such work."""
        node = self.program.nodes[ref]
        if isinstance(node, MatMul) and node.map is None:
            return (node.x,)
        if not isinstance(node, _ROW_WISE):
            return None
        return tuple(dict.fromkeys(r for r in operands(node) if self._space(r) != UNIT))

    def _sending(self, ref: Ref) -> float:
        node = self.program.nodes[ref]
        steady = isinstance(node, Input) and node.name in self.costs.steady
        spread = isinstance(node, Pull) and isinstance(self.program.nodes[node.map], ToUnit)
        if isinstance(node, Const) or spread or steady or ref in self.once:
            return 0.0
        t = self._type(ref)
        sent = self._bytes(ref) * self.costs.halo.get(t.space, 0)
        return sent / WIRE_BANDWIDTH + WIRE_LATENCY

    def _work(self, ref: Ref) -> float:
        """Seconds to compute rows of `ref` for the halo, and for own rows once more if these are needed apart."""
        t, node = self._type(ref), self.program.nodes[ref]
        rows = self.costs.halo.get(t.space, 0) + (self.costs.statistics.rows(t.space) if ref in self.owned else 0)
        if isinstance(node, MatMul):
            w = self._type(node.w)
            return rows * (2 * numel(w.shape) / _PRODUCT_RATE + self._bytes(ref) / _BANDWIDTH)
        return rows * (numel(t.shape) / _VECTOR_RATE + self._bytes(ref) / _BANDWIDTH)

    def _bytes(self, ref: Ref) -> int:
        t = self._type(ref)
        return numel(t.shape) * t.dtype.itemsize

    def _type(self, ref: Ref) -> Type:
        t = self.program.types[ref]
        assert isinstance(t, Type)
        return t

    def _space(self, ref: Ref) -> Space:
        t = self.program.types[ref]
        return t.space if isinstance(t, Type) else UNIT
