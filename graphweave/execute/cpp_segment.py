"""Kernels as the numbers of which native code makes a segment (`runtime/native/segments.cpp`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from graphweave.analysis.cones import map_type, type_of
from graphweave.core.types import UNIT, Space
from graphweave.execute.cpp_step import CppStep
from graphweave.execute.region_step import Format, wraps
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import Program, Ref
from graphweave.ir.tape.limits import Least, Limit, Most, Reach, RowsOf, StepLimit
from graphweave.ir.tape.nodes import RunKernels, Transpose
from graphweave.lower.parameters import Column, Flat, Perm, Table
from graphweave.runtime import long_rows
from graphweave.runtime.segments import Segment

_VALUE, _INSIDE, _INDPTR, _PERM, _COLUMN, _FLAT = range(6)
"""Kinds of pointers."""

_ROWS, _MOST, _LEAST, _REACH = range(4)
"""Kinds of limits."""

_NONE = -1


def made_segment(program: Program, step: RunKernels, kernels: Sequence[CppStep]) -> Segment | None:
    """The segment that follows a step of a tape, whose members have these kernels. None if a kernel needs what only
    Python makes: an order of rows or edges that a schedule asks for."""
    if any(kernel.reorders for kernel in kernels):
        return None
    ends = [(step.rows.index(map_type(program, m).cod), wraps(program, m)) for m in step.maps]
    numbers = _Numbers(program, step, kernels).made(ends)
    names = [kernel.name for kernel in kernels]
    return Segment(numbers, names, ends, len(step.rows), len(step.reads) + len(step.writes))


@dataclass
class _Numbers:
    program: Program
    taped: RunKernels
    kernels: Sequence[CppStep]
    limits: list[list[int]] = field(default_factory=list)
    positions: dict[Limit, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        values = enumerate((*self.taped.reads, *self.taped.writes))
        self.pointers: dict[Ref, list[int]] = {r: [_VALUE, i, 0] for i, r in values}
        self.pointers |= {one.value: [_INSIDE, one.slot, 0] for one in self.taped.inside}

    def made(self, ends: Sequence[tuple[int, bool]]) -> list[int]:
        taped = self.taped
        steps = [self.step(kernel, m.limit) for kernel, m in zip(self.kernels, taped.members, strict=True)]
        slots: dict[int, list[list[int]]] = {}
        for one in taped.inside:
            slots.setdefault(one.slot, []).append([one.nbytes, self.space(one.space)])
        return [
            len(taped.rows), len(taped.reads), len(taped.writes), long_rows.LONG // long_rows.PRODUCTS,
            *_listed([list(end) for end in ends]), *_listed(self.limits),
            *_listed([self.turn(turn) for turn in taped.transposes]),
            *_listed([_listed(slots[slot]) for slot in range(len(slots))]),
            *_listed(steps),
        ]  # fmt: skip

    def step(self, step: CppStep, limit: StepLimit | None) -> list[int]:
        program, walked = self.program, step.plan.lowered.map
        space = None if walked is None else map_type(program, walked).dom
        maps = [[self.map(m), map_type(program, m).dom == space] for m in step.maps]
        over = [self.space(step.spaces[0]) if over_rows else _NONE for _, over_rows, _ in step.without_rows]
        rows = edges = below = _NONE
        if limit is not None:
            rows = self.limit(limit.rows)
            if limit.edges is not None:
                edges, below = self.map(limit.edges.map), self.limit(limit.edges.below)
        zeros = [] if limit is None else [self.zero(ref, upto) for ref, upto in limit.zeros]
        head = [] if walked is None else [[_INDPTR, self.map(walked), 0]]
        return [
            step.address, _NONE if walked is None else self.map(walked), *_listed(maps),
            *_listed([[self.space(s)] for s in step.spaces]), *_listed([[x] for x in over]),
            step.work.row, step.work.chunk, step.work.tile, step.divided_from,
            rows, edges, below, *_listed(zeros), *_listed([*head, *map(self.pointer, step.operands)]),
        ]  # fmt: skip

    def pointer(self, of: Ref | Format) -> list[int]:
        match of:
            case Perm(m):
                return [_PERM, self.map(m), 0]
            case Column(m, other):
                return [_COLUMN, self.map(m), self.map(other)]
            case Flat(m):
                return [_FLAT, self.map(m), 0]
            case Table():
                raise AssertionError("kernels of schedules that reorder are no part of a segment")
            case _:
                return self.pointers[of]

    def zero(self, ref: Ref, upto: Limit | None) -> list[int]:
        return [*self.pointers[ref], self.bytes_of(ref), self.limit(upto)]

    def limit(self, limit: Limit | None) -> int:
        """The position of a limit among all, behind those that it needs."""
        if limit is None:
            return _NONE
        if limit not in self.positions:
            match limit:
                case RowsOf(space):
                    made = [_ROWS, 1, self.space(space)]
                case Reach(walked, to, below):
                    made = [_REACH, 3, self.map(walked), self.map(to), self.limit(below)]
                case Most(of) | Least(of):
                    made = [_MOST if isinstance(limit, Most) else _LEAST, len(of), *map(self.limit, of)]
            self.positions[limit] = len(self.limits)
            self.limits.append(made)
        return self.positions[limit]

    def turn(self, turn: Transpose) -> list[int]:
        t = type_of(self.program, turn.value)
        return [
            t.dtype.itemsize, t.shape[1], t.shape[0], self.pointers[turn.source][1], self.pointers[turn.value][1]
        ]  # fmt: skip

    def bytes_of(self, ref: Ref) -> int:
        """The bytes of a row of a value."""
        t = type_of(self.program, ref)
        return numel(t.shape) * t.dtype.itemsize

    def space(self, space: Space) -> int:
        return _NONE if space == UNIT else self.taped.rows.index(space)

    def map(self, m: Ref) -> int:
        return self.taped.maps.index(m)


def _listed(rows: Sequence[Sequence[int]]) -> list[int]:
    """The number of rows, and all rows."""
    return [len(rows), *chain.from_iterable(rows)]
