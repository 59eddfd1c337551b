"""Steps in the order that needs the least memory at its peak.

A step makes values, and the last step that reads a value frees it. Where steps do not need each other, their order
decides how many values exist at once. The search is a beam: of the sets of steps that may have run, as many as
`_BEAM` are kept for each number of steps, those with the lowest peak first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from graphweave.analysis.flow import BETWEEN_RANKS, shares_memory
from graphweave.analysis.statistics import Statistics
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands
from graphweave.ir.message.infer import numel
from graphweave.lower.dependencies import StepNodes, dependencies

S = TypeVar("S")

MIN_PEAK = 64 << 20
"""Bytes at the peak up to which the order stays as it is."""

_GAIN = 0.05
"""An order is taken if its peak is lower by at least this part."""

_BEAM = 16
"""Sets of steps that are kept for each number of steps."""


def least_memory(
    program: ir.Program,
    steps: Sequence[tuple[S, StepNodes]],
    statistics: Statistics | None,
    passing: frozenset[ir.Ref],
) -> list[S] | None:
    """`steps` in an order that respects their dependencies and has a lower peak. None where that gains little, where
    nothing is known of sizes, and where rows travel between ranks. `passing` are the inputs that are freed after their
    last use; other inputs are the caller's, and outputs stay."""
    made = [m for _, m in steps]
    if statistics is None or any(isinstance(program.nodes[r], BETWEEN_RANKS) for m in made for r in m.nodes):
        return None
    every = {r for m in made for r in m.stored} | passing
    if sum(nbytes(program, r, statistics) for r in every) <= MIN_PEAK:
        return None
    search = _OrderSearch(program, made, statistics, passing)
    given = search.peak(range(len(steps)))
    if given <= MIN_PEAK:
        return None
    peak, order = search.best()
    return [steps[i][0] for i in order] if peak < (1 - _GAIN) * given else None


def nbytes(program: ir.Program, ref: ir.Ref, statistics: Statistics) -> int:
    """The bytes of a value, if it has a space."""
    t = program.types[ref]
    return statistics.rows(t.space) * numel(t.shape) * t.dtype.itemsize if isinstance(t, ir.Type) else 0


@dataclass(frozen=True, slots=True)
class _State:
    """Steps that have run, in `order`: as a set of bits, the `peak` so far, and the bytes `alive` now."""

    peak: int
    alive: int
    order: tuple[int, ...]
    done: int


class _OrderSearch:
    def __init__(
        self, program: ir.Program, made: Sequence[StepNodes], statistics: Statistics, passing: frozenset[ir.Ref]
    ) -> None:
        self._program, self._statistics, self._count = program, statistics, len(made)
        needed = dependencies(program, made)
        self._before = [sum(1 << p for p in before) for before in needed]
        self._owner = {r: r for m in made for r in m.stored if not shares_memory(program.nodes[r])}
        self._owner |= {r: r for r in passing}
        makes = [{r for r in m.stored if self._owner.get(r) == r} for m in made]
        self._makes = [sum(map(self._bytes, values)) for values in makes]
        kept = {self._owner_of(r) for r in program.outputs if r is not None}
        self._readers: dict[ir.Ref, int] = {}  # for each value that is freed, the steps that have to do with it
        for i, m in enumerate(made):
            for r in (makes[i] | self._read(m)) - kept:
                self._readers[r] = self._readers.get(r, 0) | 1 << i
        self._ends: list[list[tuple[int, int]]] = [[] for _ in made]  # of the values that a step may free
        for r, readers in self._readers.items():
            for i in range(len(made)):
                if readers >> i & 1:
                    self._ends[i].append((readers, self._bytes(r)))
        self._start = sum(map(self._bytes, passing.intersection(self._readers)))

    def _bytes(self, ref: ir.Ref) -> int:
        return nbytes(self._program, ref, self._statistics)

    def _owner_of(self, ref: ir.Ref) -> ir.Ref | None:
        """The stored value in whose memory `ref` lies; None if it is the caller's."""
        while ref not in self._owner and shares_memory(self._program.nodes[ref]):
            ref = operands(self._program.nodes[ref])[0]
        return self._owner.get(ref)

    def _read(self, step: StepNodes) -> set[ir.Ref]:
        """The stored values that a step reads, also through nodes that it computes itself."""
        found, seen = set[ir.Ref](), set[ir.Ref]()
        todo = [r for m in step.nodes for r in operands_read(self._program, m)]
        while todo:
            ref = todo.pop()
            if ref in seen or ref in step.nodes:
                continue
            seen.add(ref)
            owner = self._owner_of(ref)
            if owner is not None:
                found.add(owner)
            else:
                todo.extend(operands_read(self._program, ref))
        return found

    # -------------------------------------------------------- orders

    def peak(self, order: Iterable[int]) -> int:
        """The bytes at the peak of an order."""
        state = self._first
        for i in order:
            state = self._after(state, i)
        return state.peak

    def best(self) -> tuple[int, tuple[int, ...]]:
        """The lowest peak that the search finds, and its order."""
        beam = [self._first]
        for _ in range(self._count):
            found: dict[int, _State] = {}
            for state in beam:
                for after in self._next(state):
                    if after.done not in found or _rank(after) < _rank(found[after.done]):
                        found[after.done] = after
            beam = sorted(found.values(), key=_rank)[:_BEAM]
        return beam[0].peak, beam[0].order

    @property
    def _first(self) -> _State:
        return _State(self._start, self._start, (), 0)

    def _next(self, state: _State) -> list[_State]:
        """The states after one step more. A step that frees as much as it makes, below the peak so far, is the only
        one that need be tried."""
        found: list[_State] = []
        for i in range(self._count):
            if state.done >> i & 1 or self._before[i] & ~state.done:
                continue
            after = self._after(state, i)
            if after.peak == state.peak and after.alive <= state.alive:
                return [after]
            found.append(after)
        return found

    def _after(self, state: _State, i: int) -> _State:
        done, during = state.done | 1 << i, state.alive + self._makes[i]
        freed = sum(size for readers, size in self._ends[i] if not readers & ~done)
        return _State(max(state.peak, during), during - freed, (*state.order, i), done)


def _rank(state: _State) -> tuple[int, int, tuple[int, ...]]:
    return state.peak, state.alive, state.order


def operands_read(program: ir.Program, ref: ir.Ref) -> tuple[ir.Ref, ...]:
    """The values that a node reads. It only waits for the others of `After`."""
    node = program.nodes[ref]
    return (node.x,) if isinstance(node, ir.After) else tuple(operands(node))
