"""Kernels that follow one another without a call of PyTorch, as one native call.

Calling a kernel from Python costs 15 to 25 us besides its work: buffers to allocate, addresses to read and to pack, the
call. On small graphs this is as much as the kernel itself takes. For a graph that it has seen, a stretch is a table
(`runtime/native/drive.cpp`) of all its kernels' addresses, formats and sizes, and each call passes only the addresses
of inputs and outputs. Values that one kernel writes and only others of the stretch read are not tensors, but lie in one
buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor

from graphweave.analysis.cones import map_type, type_of
from graphweave.core.errors import IndexRangeError
from graphweave.core.ranks import LinkName, halo_rows
from graphweave.core.types import UNIT, Space
from graphweave.execute.cpp_step import NONE_SENT, BoundKernel, CppStep
from graphweave.execute.range_errors import of_map
from graphweave.execute.region_step import wraps
from graphweave.execute.row_bounds import LimitTable, Within
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import Permute, Program, Ref, Type
from graphweave.ir.tape.limits import StepLimit
from graphweave.runtime import arena
from graphweave.runtime.drive import Drive, Place, turn
from graphweave.runtime.index import Index
from graphweave.runtime.tracked import Mark

MAX_BYTES = 32 << 20
"""Limit in bytes on what the kernels of one native call write. Above it, Python's share of the time is small, and a
value is freed after its last use, so that the next one may take its memory."""

_ALIGNMENT = 64

Made: TypeAlias = tuple[tuple[int, ...], torch.dtype, int]
"""Shape and dtype of a tensor to make, and the further rows for which it has memory."""

_together = True


@contextmanager
def kernel_by_kernel() -> Iterator[None]:
    """In this block, Python calls every kernel separately, so that each can be measured."""
    global _together
    before, _together = _together, False
    try:
        yield
    finally:
        _together = before


@dataclass(frozen=True, slots=True)
class _Bound:
    """A stretch on a graph: the native call, and what makes the tensors that it gives, and the memory of values that
    stay inside."""

    drive: Drive
    made: Sequence[Callable[[], Tensor]]
    inside: Callable[[], Tensor]
    kernels: Sequence[BoundKernel]


class CppStretch:
    """`stretch(rows, indices, held) -> outputs`, as a `RegionStep`. `held` is a list that the call empties."""

    def __init__(
        self, program: Program, steps: Sequence[CppStep], kept: Collection[Ref],
        limits: Mapping[int, StepLimit] | None = None, sent: Mapping[Ref, LinkName] = NONE_SENT,
    ) -> None:  # fmt: skip
        """`kept` are the values that the steps write and others read. `limits` are those of steps by position. Outputs
        in `sent` have room for the halo rows of their links."""
        limits, self._sent = limits or {}, sent
        self._limits = LimitTable(limits, steps) if limits else None
        told_by = sorted({m for limit in limits.values() for m in limit.maps})
        self.maps: tuple[Ref, ...] = tuple(dict.fromkeys((*(m for step in steps for m in step.maps), *told_by)))
        told = sorted({s for limit in limits.values() for s in limit.spaces}, key=lambda s: s.name)
        ends = [map_type(program, m).cod for m in told_by]
        of_steps = (s for step in steps for s in step.spaces)
        self.spaces: tuple[Space, ...] = tuple(dict.fromkeys((*of_steps, *ends, *told)))
        written = dict.fromkeys(r for step in steps for r in step.writes)
        read = dict.fromkeys(r for step in steps for r in step.reads if r not in written)
        self._program, self._steps = program, tuple(steps)
        self._turned = {r: x for r in read if (x := turned(program, r)) is not None}
        """Matrices that are read transposed -> the matrices that they are the transpose of."""
        self.reads: tuple[Ref, ...] = tuple(dict.fromkeys(self._turned.get(r, r) for r in read))
        self.writes: tuple[Ref, ...] = tuple(r for r in written if r in kept)
        last = {r: i for i, step in enumerate(steps) for r in (*step.reads, *step.writes) if r not in kept}
        made = {r: each for step in steps for r, each in zip(step.writes, step.writes_each, strict=True)}
        self._outputs = [made[r] for r in self.writes]
        turned_over = {r: type_of(program, r) for r in self._turned}
        self._inside = [
            *((r, numel(t.shape) * t.dtype.itemsize, UNIT) for r, t in turned_over.items()),
            *((r, numel(s) * dtype.itemsize, space) for r, (s, dtype, space) in made.items() if r not in kept),
        ]
        """Values inside, the bytes of a row of each, and its space."""
        self._leads = [(m, self.spaces.index(map_type(program, m).cod), wraps(program, m)) for m in self.maps]
        self._ended = [[r for r, at in last.items() if at == i] for i in range(len(steps))]
        self._last: tuple[Any, ...] | None = None  # rows, marks of the indices, what was bound to them
        self._within: tuple[Any, ...] | None = None  # rows, marks of the indices, the bounds on them

    def __call__(self, rows: tuple[int, ...], indices: Sequence[Tensor], held: list[Tensor]) -> list[Tensor]:
        bound = self._bound_to(rows, indices)
        if bound is None:
            return self._one_by_one(rows, indices, held)
        inputs = [t if t.is_contiguous() else t.contiguous() for t in held]
        held.clear()
        outputs = [make() for make in bound.made]
        inside = bound.inside()
        bound.drive([t.data_ptr() for t in (*inputs, *outputs, inside)])
        return outputs

    def forget(self) -> None:
        """Release the graph of the last call, whose index tensors and formats would otherwise stay alive."""
        self._last = self._within = None

    def _one_by_one(self, rows: tuple[int, ...], indices: Sequence[Tensor], held: list[Tensor]) -> list[Tensor]:
        count, index = dict(zip(self.spaces, rows, strict=True)), dict(zip(self.maps, indices, strict=True))
        values = dict(zip(self.reads, held, strict=True))
        held.clear()
        values.update((r, values[x].t().contiguous()) for r, x in self._turned.items())
        within = self._within_for(rows, indices)
        for i, (step, ended) in enumerate(zip(self._steps, self._ended, strict=True)):
            inputs = [values[r] for r in step.reads]
            for r in ended:
                values.pop(r, None)
            of_step = tuple(count[s] for s in step.spaces)
            outputs = step.made(of_step, self._sent)
            made = step.fill(outputs, of_step, [index[m] for m in step.maps], inputs, within.get(i))
            values.update(zip(step.writes, made, strict=True))
        return [values[r] for r in self.writes]

    # -------------------------------------------------------- the graph

    def _bound_to(self, rows: tuple[int, ...], indices: Sequence[Tensor]) -> _Bound | None:
        """The result of `_bind`, remembered for the last graph. None for inference tensors, whose edits cannot be
        noticed."""
        if not _together:
            return None
        last = self._last
        if last is not None and last[0] == rows and all(map(Mark.holds, last[1], indices)):
            found: _Bound | None = last[2]
            return found
        self._last = None
        if any(t.is_inference() for t in indices):
            return None
        bound = self._bind(rows, indices)
        self._last = rows, tuple(map(Mark, indices)), bound
        return bound

    def _within_for(self, rows: tuple[int, ...], indices: Sequence[Tensor]) -> Mapping[int, Within]:
        """The bounds of the steps that have limits."""
        if self._limits is None:
            return {}
        last = self._within
        if last is not None and last[0] == rows and all(map(Mark.holds, last[1], indices)):
            found: Mapping[int, Within] = last[2]
            return found
        count = {UNIT: 1, **dict(zip(self.spaces, rows, strict=True))}
        index = {m: Index(t, rows[at], wrap) for (m, at, wrap), t in zip(self._leads, indices, strict=True)}
        try:
            bounds = self._limits.on_graph(count, index)
        except IndexRangeError as error:
            raise of_map(error, self._program, dict(zip(self.maps, indices, strict=True))) from None
        within = {i: Within(one, index) for i, one in bounds.items()}
        tracked = not any(t.is_inference() for t in indices)  # edits of inference tensors cannot be noticed
        self._within = (rows, tuple(map(Mark, indices)), within) if tracked else None
        return within

    def _bind(self, rows: tuple[int, ...], indices: Sequence[Tensor]) -> _Bound | None:
        """The table for a graph; None if Python has work between the kernels, or if values inside are large."""
        count = {UNIT: 1, **dict(zip(self.spaces, rows, strict=True))}
        places, made, nbytes = self._layout(count)
        if len(self._steps) > 1 and nbytes + sum(prod(shape) * dtype.itemsize for shape, dtype, _ in made) > MAX_BYTES:
            return None
        index = {m: Index(t, rows[at], wrap) for (m, at, wrap), t in zip(self._leads, indices, strict=True)}
        kernels: list[BoundKernel] = []
        within = self._within_for(rows, indices)
        try:
            for i, step in enumerate(self._steps):
                of = within.get(i)
                given = {m: index[m] for m in step.maps} if of is None else of.index
                bound = step.bound(tuple([count[s] for s in step.spaces]), given, of)
                if bound is None:
                    return None
                kernels.append(bound)
        except IndexRangeError as error:
            raise of_map(error, self._program, dict(zip(self.maps, indices, strict=True))) from None
        table = [self._turn(r, x, places) for r, x in self._turned.items()]
        names = ["" for _ in table]
        for kernel, name in zip(kernels, (step.name for step in self._steps), strict=True):
            table += [*kernel.cleared(places), kernel.step(places)]
            names += [*("" for _ in kernel.zeros), name]
        drive = Drive(table, names, len(self.reads) + len(self.writes) + 1)
        return _Bound(drive, [arena.maker(*each) for each in made], arena.maker((nbytes,), torch.uint8), kernels)

    def _layout(self, count: Mapping[Space, int]) -> tuple[dict[Ref, Place], Sequence[Made], int]:
        """Where values lie, the tensors to make, and the bytes of what lies inside."""
        places: dict[Ref, Place] = {r: (i, 0) for i, r in enumerate((*self.reads, *self.writes))}
        inside, nbytes = len(places), 0
        for r, each, space in self._inside:
            places[r] = inside, nbytes
            nbytes += -(-each * count[space] // _ALIGNMENT) * _ALIGNMENT
        rooms = {r: halo_rows(link) for r, link in self._sent.items()}
        made = [
            (shape if space == UNIT else (count[space], *shape), dtype, rooms.get(r, 0))
            for r, (shape, dtype, space) in zip(self.writes, self._outputs, strict=True)
        ]
        return places, made, nbytes

    def _turn(self, r: Ref, x: Ref, places: Mapping[Ref, Place]) -> list[int]:
        t = type_of(self._program, r)
        return turn(t.dtype.itemsize, t.shape[1], t.shape[0], places[x], places[r])


def turned(program: Program, ref: Ref) -> Ref | None:
    """The matrix of shared data of which `ref` is the transpose; None if it is no transpose."""
    node, t = program.nodes[ref], program.types[ref]
    is_matrix = isinstance(t, Type) and t.space == UNIT and t.dtype.is_float
    return node.x if is_matrix and isinstance(node, Permute) and node.perm == (1, 0) else None
