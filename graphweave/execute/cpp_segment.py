"""Kernels as the numbers of which native code makes a segment (`runtime/native/segments.cpp`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from graphweave.analysis.cones import map_type, type_of
from graphweave.analysis.row_limits import Least, Limit, Most, Reach, RowsOf
from graphweave.core.types import UNIT, Space
from graphweave.execute.cpp_step import CppStep
from graphweave.execute.region_step import wraps
from graphweave.execute.row_needs import StepLimit
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import Program, Ref
from graphweave.lower.parameters import Column, Flat, Perm
from graphweave.runtime import long_rows
from graphweave.runtime.segments import Segment

_VALUE, _INSIDE, _INDPTR, _PERM, _COLUMN, _FLAT = range(6)
"""Kinds of pointers."""

_ROWS, _MOST, _LEAST, _REACH = range(4)
"""Kinds of limits."""

_NONE = -1


@dataclass(frozen=True, slots=True)
class SegmentParts:
    """What a segment consists of: its kernels, the limits on them by position, the maps, spaces and values that a call
    gives, the values inside by place (those in one place are never alive together), and matrices inside that are the
    transpose of a value."""

    program: Program
    steps: Sequence[CppStep]
    limits: Mapping[int, StepLimit]
    maps: Sequence[Ref]
    spaces: Sequence[Space]
    reads: Sequence[Ref]
    writes: Sequence[Ref]
    inside: Sequence[Sequence[Ref]]
    turned: Mapping[Ref, Ref]


def made_segment(parts: SegmentParts) -> Segment | None:
    """None if a kernel needs what only Python makes: an order of rows or edges that a schedule asks for."""
    if any(step.reorders for step in parts.steps):
        return None
    ends = [(parts.spaces.index(map_type(parts.program, m).cod), wraps(parts.program, m)) for m in parts.maps]
    names = [step.name for step in parts.steps]
    numbers = _Numbers(parts).made(ends)
    return Segment(numbers, names, ends, len(parts.spaces), len(parts.reads) + len(parts.writes))


@dataclass
class _Numbers:
    parts: SegmentParts
    limits: list[list[int]] = field(default_factory=list)
    positions: dict[Limit, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = self.parts
        self.pointers: dict[Ref, list[int]] = {r: [_VALUE, i, 0] for i, r in enumerate((*parts.reads, *parts.writes))}
        self.pointers |= {r: [_INSIDE, at, 0] for at, refs in enumerate(parts.inside) for r in refs}

    def made(self, ends: Sequence[tuple[int, bool]]) -> list[int]:
        parts = self.parts
        steps = [self.step(step, parts.limits.get(i)) for i, step in enumerate(parts.steps)]
        return [
            len(parts.spaces), len(parts.reads), len(parts.writes), long_rows.LONG // long_rows.PRODUCTS,
            *_listed([list(end) for end in ends]), *_listed(self.limits),
            *_listed([self.turn(r, x) for r, x in parts.turned.items()]),
            *_listed([_listed([self.bytes_of(r) for r in refs]) for refs in parts.inside]),
            *_listed(steps),
        ]  # fmt: skip

    def step(self, step: CppStep, limit: StepLimit | None) -> list[int]:
        program, walked = self.parts.program, step.plan.lowered.map
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

    def pointer(self, of: Ref | Perm | Column | Flat) -> list[int]:
        match of:
            case Perm(m):
                return [_PERM, self.map(m), 0]
            case Column(m, other):
                return [_COLUMN, self.map(m), self.map(other)]
            case Flat(m):
                return [_FLAT, self.map(m), 0]
            case _:
                return self.pointers[of]

    def zero(self, ref: Ref, upto: Limit | None) -> list[int]:
        return [*self.pointers[ref], self.bytes_of(ref)[0], self.limit(upto)]

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

    def turn(self, r: Ref, x: Ref) -> list[int]:
        t = type_of(self.parts.program, r)
        return [t.dtype.itemsize, t.shape[1], t.shape[0], self.pointers[x][1], self.pointers[r][1]]

    def bytes_of(self, ref: Ref) -> list[int]:
        """The bytes of a row of a value, and its space."""
        t = type_of(self.parts.program, ref)
        return [numel(t.shape) * t.dtype.itemsize, self.space(t.space)]

    def space(self, space: Space) -> int:
        return _NONE if space == UNIT else self.parts.spaces.index(space)

    def map(self, m: Ref) -> int:
        return self.parts.maps.index(m)


def _listed(rows: Sequence[Sequence[int]]) -> list[int]:
    """The number of rows, and all rows."""
    return [len(rows), *chain.from_iterable(rows)]
