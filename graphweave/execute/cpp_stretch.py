"""Kernels that follow one another without a call of PyTorch, as one native call.

Calling a kernel from Python costs 15 to 25 us besides its work: buffers to allocate, addresses to read and to pack, the
call. On small graphs this is as much as the kernel itself takes, and making formats and tables of a graph that is seen
for the first time costs ten times as much. So native code does all of it (`runtime/native/segments.cpp`); each call
passes tensors and row counts. Values that one kernel writes and only others of the stretch read are not tensors, but
lie in one buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from operator import mul
from typing import Any

import torch
from torch import Tensor

from graphweave.analysis.cones import map_type
from graphweave.core.errors import IndexRangeError
from graphweave.core.ranks import LinkName, halo_rows
from graphweave.core.types import UNIT, Space
from graphweave.execute.cpp_segment import made_segment
from graphweave.execute.cpp_step import CppStep
from graphweave.execute.range_errors import of_map
from graphweave.execute.region_step import wraps
from graphweave.execute.row_bounds import LimitTable, Within
from graphweave.execute.watched import Around
from graphweave.ir.message import nodes as ir
from graphweave.ir.tape.nodes import RunKernels
from graphweave.ir.tape.walk import lives_inside
from graphweave.runtime.arena import Maker
from graphweave.runtime.index import Index
from graphweave.runtime.segments import Segment, Watch
from graphweave.runtime.tracked import Mark

MAX_BYTES = 8 << 20
"""Limit in bytes on what the kernels of one native call write. Above it, Python's share of the time is small, and a
value is freed after its last use, so that the next one may take its memory."""

_BYTES = Maker((), torch.uint8)
"""Makes the memory of values inside."""

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
class _Sized:
    """Makers of a call's results, and of the memory of values inside, for some row counts."""

    made: Sequence[Callable[[], Tensor]]
    inside: Callable[[], Tensor]


class CppStretch:
    """`stretch(rows, indices, held) -> outputs` follows one step of a tape: `rows`, `indices` and `held` are those of
    its rows, maps and reads, and the outputs those of its writes. `held` is a list that the call empties. `around` is
    entered and left around each kernel."""

    def __init__(self, program: ir.Program, step: RunKernels, kernels: Sequence[CppStep]) -> None:
        """`kernels` are those of the step's members."""
        self._program, self._step, self._kernels = program, step, tuple(kernels)
        self._limits = {at: m.limit for at, m in enumerate(step.members) if m.limit is not None}
        made = {r: each for kernel in kernels for r, each in zip(kernel.writes, kernel.writes_each, strict=True)}
        self._sent = {room.value: room.link for room in step.rooms}
        self._outputs = [self._output(r, *made[r]) for r in step.writes]
        self._bytes_each = self._row_bytes()
        self._leads = [(m, step.rows.index(map_type(program, m).cod), wraps(program, m)) for m in step.maps]
        self._last: tuple[tuple[int, ...], _Sized | None] | None = None  # rows, and what was made for them
        self._within: tuple[Any, ...] | None = None  # rows, marks of the indices, the bounds on them

    def __call__(
        self, rows: tuple[int, ...], indices: Sequence[Tensor], held: list[Tensor], around: Around | None = None
    ) -> list[Tensor]:
        sized = self._sized(rows)
        if sized is None or not _together or self._segment is None:
            return self._one_by_one(rows, indices, held, around)
        outputs, inside = [make() for make in sized.made], sized.inside()
        try:
            watch = None if around is None else self._watch(around)
            ran = self._segment(rows, indices, [*held, *outputs], inside.data_ptr(), watch)
        except IndexRangeError as error:
            raise of_map(error, self._program, dict(zip(self._step.maps, indices, strict=True))) from None
        if ran is None:
            return self._one_by_one(rows, indices, held, around)
        held.clear()
        return outputs

    def _watch(self, around: Around) -> Watch:
        """Enters and leaves `around` each kernel of a native call."""
        entered: list[AbstractContextManager[Any]] = []

        def watch(kernel: int, ended: bool) -> None:
            if ended:
                entered.pop().__exit__(None, None, None)
            else:
                entered.append(around(self._kernels[kernel].label))
                entered[-1].__enter__()

        return watch

    @cached_property
    def _segment(self) -> Segment | None:
        return made_segment(self._program, self._step, self._kernels)

    def forget(self) -> None:
        """Release the graph of the last call, whose index tensors and formats would otherwise stay alive."""
        self._last = self._within = None
        if self._segment is not None:
            self._segment.forget()

    # -------------------------------------------------------- kernel after kernel

    def _one_by_one(
        self, rows: tuple[int, ...], indices: Sequence[Tensor], held: list[Tensor], around: Around | None
    ) -> list[Tensor]:
        step = self._step
        count, index = dict(zip(step.rows, rows, strict=True)), dict(zip(step.maps, indices, strict=True))
        values = dict(zip(step.reads, held, strict=True))
        held.clear()
        values.update((turn.value, values[turn.source].t().contiguous()) for turn in step.transposes)
        within = self._within_for(rows, indices)
        for i, (kernel, ended) in enumerate(zip(self._kernels, self._ended, strict=True)):
            inputs = [values[r] for r in kernel.reads]
            for r in ended:
                values.pop(r, None)
            own, of_kernel = tuple(count[s] for s in kernel.spaces), [index[m] for m in kernel.maps]
            with nullcontext() if around is None else around(kernel.label):
                made = kernel(own, of_kernel, inputs, within.get(i), self._sent)
            values.update(zip(kernel.writes, made, strict=True))
        return [values[r] for r in step.writes]

    @cached_property
    def _ended(self) -> list[list[ir.Ref]]:
        """The values that may be freed once each kernel has its inputs."""
        last = {r: end for r, (_, end) in lives_inside(self._step).items()}
        kept = {*self._step.writes, *(turn.source for turn in self._step.transposes)}
        last.update((r, i) for i, kernel in enumerate(self._kernels) for r in kernel.reads if r not in kept)
        return [[r for r, at in last.items() if at == i] for i in range(len(self._kernels))]

    def _within_for(self, rows: tuple[int, ...], indices: Sequence[Tensor]) -> Mapping[int, Within]:
        """The bounds of the kernels that have limits."""
        if not self._limits:
            return {}
        last = self._within
        if last is not None and last[0] == rows and all(map(Mark.holds, last[1], indices)):
            found: Mapping[int, Within] = last[2]
            return found
        count = {UNIT: 1, **dict(zip(self._step.rows, rows, strict=True))}
        index = {m: Index(t, rows[at], wrap) for (m, at, wrap), t in zip(self._leads, indices, strict=True)}
        try:
            bounds = LimitTable(self._limits, self._kernels).on_graph(count, index)
        except IndexRangeError as error:
            raise of_map(error, self._program, dict(zip(self._step.maps, indices, strict=True))) from None
        within = {i: Within(one, index) for i, one in bounds.items()}
        tracked = not any(t.is_inference() for t in indices)  # edits of inference tensors cannot be noticed
        self._within = (rows, tuple(map(Mark, indices)), within) if tracked else None
        return within

    # -------------------------------------------------------- memory

    def _sized(self, rows: tuple[int, ...]) -> _Sized | None:
        """The result of `_layout`, remembered for the last row counts."""
        last = self._last
        if last is None or last[0] != rows:
            self._last = last = rows, self._layout(rows)
        return last[1]

    def _layout(self, rows: tuple[int, ...]) -> _Sized | None:
        """The tensors that a call makes; None if values are so large that kernels are called one by one."""
        nbytes = 0 if self._segment is None else self._segment.nbytes(rows)
        counted = (*rows, 1)
        total = nbytes + sum(map(mul, counted, self._bytes_each))
        if len(self._kernels) > 1 and total > MAX_BYTES:
            return None
        made = [maker.of(counted[at], halo_rows(link) if link else 0) for maker, at, link in self._outputs]
        return _Sized(made, _BYTES.of(nbytes))

    def _row_bytes(self) -> list[int]:
        """The bytes of the outputs in a row of each space, in the order of the row counts, and of shared data, last."""
        each = [0] * (len(self._step.rows) + 1)
        for maker, at, _ in self._outputs:
            each[at] += maker.nbytes(1)
        return each

    def _output(
        self, ref: ir.Ref, shape: tuple[int, ...], dtype: torch.dtype, space: Space
    ) -> tuple[Maker, int, LinkName | None]:
        """The maker of an output, which of the row counts is its own, and the link whose halo it has memory for."""
        at = len(self._step.rows) if space == UNIT else self._step.rows.index(space)
        return Maker(shape, dtype, rows=space != UNIT), at, self._sent.get(ref)


def untransposed(program: ir.Program, ref: ir.Ref) -> ir.Ref | None:
    """The matrix of shared data of which `ref` is the transpose; None if it is no transpose."""
    node, t = program.nodes[ref], program.types[ref]
    is_matrix = isinstance(t, ir.Type) and t.space == UNIT and t.dtype.is_float
    return node.x if is_matrix and isinstance(node, ir.Permute) and node.perm == (1, 0) else None
