"""Launches Triton kernels: which rows they compute, how many rows and edges a program takes, how parts of totals are
folded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from graphweave.codegen.triton import programs_of_a_row
from graphweave.codegen.triton.axes import power_of_two
from graphweave.codegen.triton.parts import DOT, RUN
from graphweave.codegen.triton.products import takes_one_row
from graphweave.core.schedule import GPU_FIELDS, Schedule
from graphweave.core.types import DType, Fold
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.types import identity
from graphweave.ir.loop.walk import csrs_around, statements
from graphweave.ir.message.aten import TORCH_DTYPE
from graphweave.ir.message.infer import numel
from graphweave.runtime.triton_kernel import Launch, TritonKernel, interpreted

MAX_ELEMENTS = 2048
"""Limit on the elements of a tensor in a program of four warps. This many take 16 registers of each thread."""

EDGES_AT_ONCE, ROW_ELEMENTS, ROW_WARPS = 4, 1024, 1
"""A program that takes several rows takes so many edges of each at a time. Its widest tensor has so many elements, and
it has so many warps, or more if a row needs them. Rows come by their number of edges, so few programs wait for a longer
row of theirs, and within one warp edges are summed without a barrier."""

PIECE_ELEMENTS, PIECE_WARPS = 2048, 2
"""The same of a program that takes one piece of a divided row."""

MAX_OF_A_WARP = 1024
"""A warp has at most this many elements of a tensor, 32 of each thread, unless eight warps have too few."""

EDGES_OF_LONG_ROWS = 128
"""Rows are long if they have at least this many edges on average."""

MAX_ROWS, MAX_EDGES = 128, 256
"""Limits on the rows of a program, and on the edges of one."""

WARPS_WITH_TOTALS, PROGRAMS_WITH_TOTALS, PARTS_BYTES = 4096, 512, 8 << 20
"""A launch with totals has about so many warps, which fill a large GPU, or so many programs if that is more. Each
program leaves a part, and the parts are folded afterwards, so they have at most about so many bytes."""

_WIDE_ROW_BYTES = 512
"""If rows have more bytes than this, programs of a fused push take fewer edges at a time."""

PIECES_BYTES = 64 << 20
"""The partial sums of all pieces of divided rows together have at most about this many bytes."""


@dataclass(frozen=True)
class TritonJob:
    """One launch of `kernel` for its rows first .. last - 1. `tensors` are its buffers and the indptr of its CSRs."""

    kernel: loop.Kernel
    function: TritonKernel
    tensors: Mapping[str, Tensor]
    order: Tensor | None
    first: int
    last: int
    how: Launch

    @cached_property
    def totals(self) -> list[loop.Buffer]:
        return [b for b in self.kernel.buffers if b.role is loop.Role.total]

    @cached_property
    def groups(self) -> int:
        """Groups of rows that a program takes, one after the other."""
        if not self.totals:
            return 1
        part = sum(numel(b.shape) * TORCH_DTYPE[b.dtype].itemsize for b in self.totals)
        most = max(PROGRAMS_WITH_TOTALS, min(WARPS_WITH_TOTALS // self.how.warps, PARTS_BYTES // max(part, 1)))
        return -(-self._groups // most)

    @cached_property
    def programs(self) -> int:
        return -(-self._groups // self.groups) if self._groups else 0

    @cached_property
    def _groups(self) -> int:
        return -(-(self.last - self.first) // self.how.rows)

    def run(self, parts: Mapping[str, Tensor]) -> None:
        """Launch the kernel with `parts` [programs, elements], by name, in place of totals."""
        given = [self.tensors[csr.name] for csr in self.kernel.csrs]
        given += [parts.get(b.name, self.tensors[b.name]) for b in self.kernel.buffers]
        self.function(self.programs, given, self.order, self.groups, (self.first, self.last), self.how)


def run(jobs: Sequence[TritonJob], totals: Iterable[tuple[loop.Buffer, Tensor]]) -> None:
    """Run the jobs in order, then fold each total from the parts of all programs. Several jobs may add to one total."""
    jobs = [job for job in jobs if job.programs]
    parts: dict[str, Tensor] = {}
    for buffer, out in totals:
        count = sum(job.programs for job in jobs if buffer in job.totals)
        shape = count, numel(buffer.shape)
        parts[buffer.name] = torch.empty(shape, dtype=TORCH_DTYPE[buffer.dtype], device=out.device)
    done = dict.fromkeys(parts, 0)
    for job in jobs:
        mine = {}
        for buffer in job.totals:
            first = done[buffer.name]
            done[buffer.name] = first + job.programs
            mine[buffer.name] = parts[buffer.name][first : first + job.programs]
        job.run(mine)
    for buffer, out in totals:
        out.copy_(fold_total(buffer, parts[buffer.name]).view(out.shape))


def fold_total(buffer: loop.Buffer, parts: Tensor) -> Tensor:
    """The rows of `parts` folded to one row, in a fixed order."""
    assert buffer.fold is not None
    if not parts.shape[0]:
        return parts.new_full(parts.shape[1:], identity(buffer.fold, buffer.dtype).value)
    if buffer.dtype is DType.bool:
        return parts.any(0) if buffer.fold in (Fold.sum, Fold.max) else parts.all(0)
    fold: Callable[..., Tensor] = getattr(torch, buffer.fold.facts.aten)
    return fold(parts, dim=0, dtype=parts.dtype) if buffer.fold in (Fold.sum, Fold.mul) else fold(parts, dim=0)


# ---------------------------------------------------------------- how kernels are launched


@dataclass(frozen=True, slots=True)
class Launches:
    """How the rows of a kernel are launched. With `short`, a program takes several rows at a time.

    If `pieces` is not None and there are at least `many` rows, one row in `share`, those with the most edges, are
    divided into pieces of at most `size` edges. Fewer rows are too few programs if they are long, so that all are
    divided. Pieces are larger if their partial sums, `piece_bytes` each, would take
    too much memory. Rows are ordered by degree, and a fixed share of them is divided, since the host does not ask the
    device for degrees.
    """

    short: Launch
    pieces: Launch | None = None
    many: int = 1 << 13
    share: int = 16
    size: int = 512
    few: int | None = None
    """Limit on the rows that are divided; None if there is none."""
    piece_bytes: int = 0

    def num_divided(self, num_rows: int, num_edges: int) -> int:
        """How many of `num_rows` rows are divided."""
        if self.few is not None and num_rows > self.few:
            return self.few
        if self.pieces is None:
            return 0
        if num_rows < self.many:
            return num_rows if num_edges >= num_rows * EDGES_OF_LONG_ROWS else 0
        return num_rows // self.share

    def piece_size(self, num_edges: int) -> int:
        """Maximum number of edges of a piece: `size` times a power of two, so that graphs of similar size have equal
        pieces."""
        times = num_edges * self.piece_bytes // (self.size * PIECES_BYTES)
        return self.size * power_of_two(times)


def launches_of(kernel: loop.Kernel) -> Launches:
    """How many rows and edges a program takes, so that its tensors fill the registers for rows of some dozen edges.

    The numbers of products were found with `tests/codegen/triton_resources.py`, which counts registers: no layer of the
    tests spills any on sm_80 or sm_90. Others were found by time on an H200 (docs/measurements.md). Kernels with
    products divide no rows, because another kernel may recompute messages, which must have the same bits there.
    """
    lanes = widest(kernel.body)
    parts = programs_of_a_row(kernel)
    inner = list(statements(kernel.body))
    products = any(isinstance(s, loop.TileMatMul) for s in inner)
    walks = any(isinstance(s, loop.Edges | loop.Tiles) for s in inner)
    if any(around is not None for around in csrs_around(kernel).values()):
        wide = lanes * max(TORCH_DTYPE[b.dtype].itemsize for b in kernel.buffers if b.dtype.is_float) > _WIDE_ROW_BYTES
        return Launches(Launch(1, DOT, warps=8) if wide else Launch(1, 32))
    if takes_one_row(kernel):
        return _by_row(kernel)
    if kernel.tile is not None:
        return Launches(Launch(DOT, 16 if walks else 1, warps=4 if walks else 8))
    if interpreted() and parts == 1:  # calls dominate the interpreter's time
        return Launches(Launch(8, 16), Launch(4, 16) if walks and not products else None, many=12, share=3, size=5)
    if products:
        return Launches(Launch(1, 16, warps=8))
    if parts > 1:
        return Launches(Launch(1, MAX_ELEMENTS // RUN if walks else 1))
    share = 2 if _takes_many_registers(kernel, lanes) else 1
    short = launch_of_rows(lanes, EDGES_AT_ONCE if walks else 1, ROW_ELEMENTS // share, ROW_WARPS)
    return Launches(short, launch_of_piece(lanes, PIECE_ELEMENTS // share, PIECE_WARPS) if walks else None)


def _takes_many_registers(kernel: loop.Kernel, lanes: int) -> bool:
    """Whether a thread holds three wide arrays or more, or numbers of 8 bytes: it takes half the elements of others."""
    wide = [s for s in statements(kernel.body) if isinstance(s, loop.Alloc) and 2 * numel(s.shape) >= lanes]
    return len(wide) >= 3 or any(b.dtype is DType.f64 for b in kernel.buffers)


def launch_of_rows(lanes: int, edges: int, elements: int, warps: int) -> Launch:
    """A program takes `edges` edges of as many rows as give its widest tensor, `lanes` wide, so many elements."""
    while edges > 1 and edges * lanes > elements:
        edges //= 2
    rows = max(1, min(elements // (edges * lanes), MAX_ROWS))
    return Launch(rows, edges, warps=_warps(edges * lanes, warps))


def launch_of_piece(lanes: int, elements: int, warps: int) -> Launch:
    """The same of a program that takes one piece of a divided row."""
    edges = max(1, min(elements // lanes, MAX_EDGES))
    return Launch(1, edges, warps=_warps(edges * lanes, warps))


def _warps(elements: int, least: int) -> int:
    return max(least, min(elements // MAX_OF_A_WARP, 8))


def scheduled(how: Launches, schedule: Schedule) -> Launches:
    """`how`, changed to what the user's schedule asks for, where the kernel takes it."""
    names = {name: name.removeprefix("gpu_") for name in GPU_FIELDS}
    own = {names[f]: value for f, value in schedule.given.items() if f in names}
    pieces = None if how.pieces is None else replace(how.pieces, **{f: v for f, v in own.items() if f != "rows"})
    how = replace(how, short=replace(how.short, **own), pieces=pieces)
    if schedule.walk is None or how.pieces is None:
        return how
    if schedule.walk == "rows":
        return replace(how, pieces=None)
    return replace(how, many=1, share=1) if schedule.walk == "edges" else how


def _by_row(kernel: loop.Kernel) -> Launches:
    """Launches of a kernel whose rows are types. These are usually few, with any number of edges, so all are divided.

    With a gram, each piece leaves a partial sum as large as the matrix, so if there are many rows only the longest are
    divided.
    """
    inner = list(statements(kernel.body))
    left = sum(numel(s.shape) * s.dtype.itemsize for s in inner if isinstance(s, loop.Alloc))
    few = min(1 << 12, max(1, PIECES_BYTES // left)) if any(isinstance(s, loop.TileGram) for s in inner) else None
    if interpreted():
        how = Launch(1, 16)
        return Launches(how, how, many=0, share=1, size=20, few=few)
    how = Launch(1, 32, warps=8)
    return Launches(how, how, many=0, share=1, few=few, piece_bytes=left)


def widest(body: Sequence[loop.Stmt]) -> int:
    """Elements of the widest tensor of lanes. The lanes of nested loops are multiplied."""
    most = 1
    for stmt in body:
        if isinstance(stmt, loop.Lanes | loop.FoldLanes | loop.Edges | loop.Tiles):
            own = numel(tuple(n for _, n in stmt.lanes)) if isinstance(stmt, loop.Lanes | loop.FoldLanes) else 1
            most = max(most, power_of_two(own) * widest(stmt.body))
    return most
