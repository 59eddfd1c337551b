"""A compiled region as a Triton kernel: its formats, buffers and the launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphweave.codegen.triton.axes import power_of_two
from graphweave.codegen.walk import statements
from graphweave.compiler.plan import KernelPlan
from graphweave.compiler.region_step import RegionStep
from graphweave.core.types import DType, Fold
from graphweave.ir.loop.nodes import Buffer, Edges, FoldLanes, Kernel, Lanes, Role, Stmt, TileMatMul, Tiles
from graphweave.ir.loop.types import identity
from graphweave.ir.message.aten import TORCH_DTYPE
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import Program
from graphweave.runtime import formats
from graphweave.runtime.triton_kernel import Launch, TritonKernel, interpreted, load

ELEMENTS = 2048
"""Of a tensor in a program of four warps: 16 registers a thread."""

PARTS = 512
"""Programs of a kernel that has totals, at most: each leaves a part, which are folded afterwards."""

_FOLDS: dict[Fold, Callable[..., Tensor]] = {
    Fold.sum: torch.sum, Fold.mul: torch.prod, Fold.max: torch.amax, Fold.min: torch.amin,
}  # fmt: skip


class TritonStep(RegionStep):
    """See `RegionStep`; tensors lie on one device. Numbers that lie on the CPU are sent there."""

    def __init__(self, program: Program, plan: KernelPlan, wide: Callable[[], KernelPlan]) -> None:
        super().__init__(program, plan, wide)
        kernel = plan.lowered.kernel
        self._kernels: dict[bool, TritonKernel] = {}
        self._how = launches_of(kernel)

    def build(self) -> None:
        self._kernel(wide=False)

    def _kernel(self, wide: bool) -> TritonKernel:
        if wide not in self._kernels:
            plan = self._wide_plan() if wide else self.plan
            self._kernels[wide] = load(plan.text, plan.lowered.kernel.name)
        return self._kernels[wide]

    def __call__(self, rows: tuple[int, ...], indices: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
        device = next((t.device for t in (*indices, *inputs) if t.device.type != "cpu"), torch.device("cpu"))
        outputs = [
            torch.empty(shape if at is None else (rows[at], *shape), dtype=dtype, device=device)
            for shape, dtype, at in self._made
        ]
        heads, found, order, wide = self._formats_for(rows, indices)
        given = {
            "format": found,
            "in": [t.to(device, non_blocking=True).contiguous() for t in inputs],
            "out": outputs,
        }
        tensors = [given[kind][i] for kind, i in self._slots]
        launch(self._kernel(wide), self.plan.lowered.kernel, heads, tensors, order, rows[0], self._how)
        self._finish(rows, indices, outputs)
        return outputs

    def _formats_for(
        self, rows: tuple[int, ...], indices: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor], Tensor | None, bool]:
        """indptr, the other formats, the order of rows, and whether 64 bits are needed."""
        counts: Mapping[Any, int] = dict(zip(self.spaces, rows, strict=True))
        index = dict(zip(self.maps, indices, strict=True))
        wide = self._is_wide(rows, indices)
        heads: list[Tensor] = []
        order = None
        m = self.plan.lowered.map
        if m is not None:
            heads = [self._csr(m, index, counts, wide).indptr]
            order = formats.by_degree(index[m], self._rows_of(m, counts), self._wraps(m), wide)
        return heads, [self._format(f, index, counts, wide) for f in self._formats], order, wide


@dataclass(frozen=True, slots=True)
class Launches:
    """How rows are taken: those of most edges by `long`, if it is not None and there are at least `many` of all rows.

    Rows come by degree. A program packs several short ones; a long one has a program of more warps for itself, which
    takes more of its edges at a time. Which rows are long is a share of them, since nobody asks the device for degrees.
    """

    short: Launch
    long: Launch | None = None
    many: int = 1 << 13
    share: int = 16  # of so many rows one is long

    def spans(self, num_rows: int) -> list[tuple[Launch, int, int]]:
        """A launch for the rows from .. to each; none if there are no rows."""
        cut = num_rows // self.share if self.long is not None and num_rows >= self.many else 0
        found = [(self.long, 0, cut), (self.short, cut, num_rows)]
        return [(how, first, last) for how, first, last in found if how is not None and first < last]


def launch(
    function: TritonKernel, kernel: Kernel, heads: Sequence[Tensor], tensors: Sequence[Tensor], order: Tensor | None,
    num_rows: int, how: Launches,
) -> None:  # fmt: skip
    """Runs `kernel` on the indptr of each CSR and the tensor of each buffer; totals are folded from their parts."""
    totals = [i for i, b in enumerate(kernel.buffers) if b.role is Role.total]
    runs: list[tuple[Launch, int, int, int, int]] = []  # rows from .. to, groups a program, programs
    for by, first, last in how.spans(num_rows):
        groups = -(-(last - first) // by.rows)
        each = -(-groups // PARTS) if totals else 1
        runs.append((by, first, last, each, -(-groups // each)))
    parts = {i: _part(sum(run[-1] for run in runs), kernel.buffers[i], tensors[i].device) for i in totals}
    done = 0
    for by, first, last, each, programs in runs:
        own = {i: part[done : done + programs] for i, part in parts.items()}
        given = [*heads, *(own.get(i, t) for i, t in enumerate(tensors))]
        function(programs, given, order, each, (first, last), by)
        done += programs
    for i in totals:
        tensors[i].copy_(folded(kernel.buffers[i], parts[i]).view(tensors[i].shape))


def _part(programs: int, buffer: Buffer, device: torch.device) -> Tensor:
    return torch.empty((programs, numel(buffer.shape)), dtype=TORCH_DTYPE[buffer.dtype], device=device)


def folded(buffer: Buffer, parts: Tensor) -> Tensor:
    """The rows of `parts` as one, in a fixed order."""
    assert buffer.fold is not None
    if not parts.shape[0]:
        return parts.new_full(parts.shape[1:], identity(buffer.fold, buffer.dtype).value)
    if buffer.dtype is DType.bool:
        return parts.any(0) if buffer.fold in (Fold.sum, Fold.max) else parts.all(0)
    if buffer.fold in (Fold.sum, Fold.mul):
        return _FOLDS[buffer.fold](parts, dim=0, dtype=parts.dtype)
    return _FOLDS[buffer.fold](parts, dim=0)


def launches_of(kernel: Kernel) -> Launches:
    """Rows and edges whose tensors fill the registers of a program, for rows of some dozen edges.

    Found with `triton_aot.py`, which counts registers: no layer of the tests then spills any on sm_80 or sm_90. Kernels
    with products take all rows alike: messages that another kernel computes again must have the same bits there.
    """
    lanes = _widest(kernel.body)
    inner = list(statements(kernel.body))
    products = any(isinstance(s, TileMatMul) for s in inner)
    walks = any(isinstance(s, Edges | Tiles) for s in inner)
    if interpreted():  # whose time is that of its calls
        return Launches(Launch(8, 16), Launch(2, 32) if walks and not products else None, many=6, share=3)
    if products:
        return Launches(Launch(1, 16, warps=8))
    edges = 16 if walks else 1
    while edges > 1 and edges * lanes > ELEMENTS:
        edges //= 2
    short = Launch(max(1, min(ELEMENTS // (edges * lanes), 128)), edges)
    if not walks:
        return Launches(short)
    return Launches(short, Launch(1, max(edges, min(2 * ELEMENTS // lanes, 256)), warps=8))


def _widest(body: Sequence[Stmt]) -> int:
    """Elements of the widest tensor of lanes, those of nested lanes multiplied."""
    widest = 1
    for stmt in body:
        if isinstance(stmt, Lanes | FoldLanes | Edges | Tiles):
            own = numel(tuple(n for _, n in stmt.lanes)) if isinstance(stmt, Lanes | FoldLanes) else 1
            widest = max(widest, power_of_two(own) * _widest(stmt.body))
    return widest
