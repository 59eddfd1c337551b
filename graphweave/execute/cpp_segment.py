"""Kernels as the numbers of which native code makes a segment (`runtime/native/segments.cpp`)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from graphweave.analysis.cones import map_type, type_of
from graphweave.core.types import UNIT, Space
from graphweave.execute.cpp_divided import PIECE_TABLES, listed
from graphweave.execute.cpp_step import CppStep, OnGraph
from graphweave.execute.region_step import Format, max_narrow_count, wraps
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import Program, Ref
from graphweave.ir.tape.limits import Least, Limit, Most, Reach, RowsOf, StepLimit
from graphweave.ir.tape.nodes import RunKernels, Transpose
from graphweave.lower.divide import SLOT_PIECE, SLOTS
from graphweave.lower.parameters import Column, Flat, Perm, Table
from graphweave.lower.piece_walk import PIECES
from graphweave.runtime import long_rows
from graphweave.runtime.segments import Segment

_VALUE, _INSIDE, _INDPTR, _PERM, _COLUMN, _FLAT, _FIXED = range(7)
"""Kinds of pointers."""

_ROWS, _MOST, _LEAST, _REACH = range(4)
"""Kinds of limits."""

_NONE = -1


NONE_GIVEN: Mapping[int, OnGraph] = MappingProxyType({})


def made_segment(
    program: Program, step: RunKernels, kernels: Sequence[CppStep], given: Mapping[int, OnGraph] = NONE_GIVEN
) -> Segment | None:
    """The segment that follows a step of a tape, whose members have these kernels. None if a kernel needs what only
    Python makes, an order of rows or edges that a schedule asks for, unless that is `given`, by position, on the one
    graph that the caller has."""
    if any(kernel.reorders and i not in given for i, kernel in enumerate(kernels)):
        return None
    ends = [(step.rows.index(map_type(program, m).cod), wraps(program, m)) for m in step.maps]
    numbers = segment_numbers(
        program, step, kernels, ends, [0 if i in given else k.address for i, k in enumerate(kernels)], given
    )
    names = [kernel.name for kernel in kernels]

    def divided(i: int) -> list[int]:
        there = given.get(i)
        rows = kernels[i].divided_rows(wide=False) if there is None else there.divided
        assert rows is not None
        return rows.numbers()

    return Segment(numbers, names, ends, len(step.rows), len(step.reads) + len(step.writes), divided)


def segment_numbers(
    program: Program, step: RunKernels, kernels: Sequence[CppStep], ends: Sequence[tuple[int, bool]],
    addresses: Sequence[object], given: Mapping[int, OnGraph] = NONE_GIVEN,
) -> list[int]:  # fmt: skip
    """The numbers that native code reads. `ends` are as in `Segment`, and `addresses` those of the kernels, or texts
    that stand for them."""
    return _Numbers(program, step, kernels, given, addresses).record_numbers(ends)


@dataclass
class _Numbers:
    program: Program
    taped: RunKernels
    kernels: Sequence[CppStep]
    given: Mapping[int, OnGraph]
    addresses: Sequence[Any]
    limits: list[list[int]] = field(default_factory=list)
    positions: dict[Limit, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        values = enumerate((*self.taped.reads, *self.taped.writes))
        self.pointers: dict[Ref, list[int]] = {r: [_VALUE, i, 0] for i, r in values}
        self.pointers |= {one.value: [_INSIDE, one.slot, 0] for one in self.taped.inside}

    def record_numbers(self, ends: Sequence[tuple[int, bool]]) -> list[int]:
        taped = self.taped
        members = enumerate(zip(self.kernels, taped.members, strict=True))
        steps = [self.step(kernel, m.limit, self.given.get(i), self.addresses[i]) for i, (kernel, m) in members]
        slots: dict[int, list[list[int]]] = {}
        for one in taped.inside:
            slots.setdefault(one.slot, []).append([one.nbytes, self.space(one.space)])
        return [
            len(taped.rows), len(taped.reads), len(taped.writes), max_narrow_count(),
            long_rows.LONG // long_rows.PRODUCTS,
            *listed([list(end) for end in ends]), *listed(self.limits),
            *listed([self.turn(turn) for turn in taped.transposes]),
            *listed([listed(slots[slot]) for slot in range(len(slots))]),
            *listed(steps),
        ]  # fmt: skip

    def step(self, step: CppStep, limit: StepLimit | None, given: OnGraph | None, address: int) -> list[int]:
        program, walked = self.program, step.plan.lowered.map
        space = None if walked is None else map_type(program, walked).dom
        maps = [[self.map(m), map_type(program, m).dom == space] for m in step.maps]
        rows = edges = below = _NONE
        if limit is not None:
            rows = self.limit(limit.rows)
            if limit.edges is not None:
                edges, below = self.map(limit.edges.map), self.limit(limit.edges.below)
        zeros = [] if limit is None else [self.zero(ref, upto) for ref, upto in limit.zeros]
        if given is None:
            head = [] if walked is None else [[_INDPTR, self.map(walked), 0]]
            pointers = [*head, *map(self.pointer, step.operands)]
        else:
            address, pointers = given.kernel.address, self.fixed(step, given)
        return [
            address, _NONE if walked is None else self.map(walked), *listed(maps),
            *listed([[self.space(s)] for s in step.spaces]), *listed(self.fills(step)),
            step.work.row, step.work.chunk, step.work.tile, step.has_totals, step.divides, *step.division.numbers,
            rows, edges, below, *listed(zeros), *listed(pointers), *_on_graph(given, step.has_totals),
        ]  # fmt: skip

    def fills(self, step: CppStep) -> list[list[int]]:
        """For each total with a value of its own if there are no rows, or edges: the space of these rows, and what is
        written then."""
        out: list[list[int]] = []
        for i, over, value in step.without_rows:
            shape, dtype, _ = step.writes_each[i]
            with torch.inference_mode(False):
                one = bytes(torch.tensor([value], dtype=dtype, device="cpu").view(torch.uint8).tolist())
            space = _NONE if over is None else self.space(step.spaces[over])
            bits = int.from_bytes(one, sys.byteorder, signed=True) if len(one) == 8 else int.from_bytes(one, "little")
            out.append([space, *self.pointers[step.writes[i]], dtype.itemsize, numel(shape), bits])
        return out

    def fixed(self, step: CppStep, given: OnGraph) -> list[list[int]]:
        """The pointers of a kernel whose formats are given."""
        found = iter(given.found)
        places = [[_FIXED, head, 0] for head in given.heads]
        formats = (Perm, Column, Flat, Table)
        return places + [[_FIXED, next(found), 0] if isinstance(x, formats) else self.pointer(x) for x in step.operands]

    def pointer(self, of: Ref | Format) -> list[int]:
        match of:
            case Perm(m):
                return [_PERM, self.map(m), 0]
            case Column(m, other):
                return [_COLUMN, self.map(m), self.map(other)]
            case Flat(m):
                return [_FLAT, self.map(m), 0]
            case Table(name):
                raise AssertionError(f"only Python makes the table '{name}'")
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


def _on_graph(given: OnGraph | None, has_totals: bool) -> list[int]:
    """The numbers that a kernel needs of one graph, besides its formats."""
    if given is None:
        return [0]
    long = given.long
    numbers = [1, *listed([[size] for size in given.sizes]), given.chunks.data_ptr(), given.chunks.numel() - 1]
    if long is None:
        return [*numbers, 0, 0]
    table = long.pieces
    names = {SLOTS: table.slots, PIECES: table.pieces, SLOT_PIECE: table.slot_piece}
    tables = [names[name] if name in names else getattr(table, name) for name in PIECE_TABLES]
    return [
        *numbers, long.is_all and not has_totals, 1, *(0 if t is None else t.data_ptr() for t in tables),
        table.piece_row.numel(), table.slot_row.numel(), table.num_edges,
    ]  # fmt: skip
