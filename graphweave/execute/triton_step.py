"""A compiled region as Triton kernels: its formats, buffers and launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from graphweave.codegen.triton import print_kernel, programs_of_a_row
from graphweave.compiler.plan import KernelPlan
from graphweave.execute.divided_rows import divided_kernels, num_rows, own_tensors
from graphweave.execute.region_step import RegionStep
from graphweave.execute.triton_launch import Launches, TritonJob, launches_of, run, scheduled
from graphweave.ir.loop.nodes import Kernel, Role
from graphweave.ir.message.aten import TORCH_DTYPE
from graphweave.ir.message.nodes import Program
from graphweave.lower.piece_walk import PIECES
from graphweave.runtime import formats
from graphweave.runtime.row_pieces import RowPieces, row_pieces
from graphweave.runtime.triton_kernel import Launch, TritonKernel, load


@dataclass(frozen=True, slots=True)
class DividedKernel:
    """A kernel of divided rows, and its launch; None if it walks pieces, whose launch the step decides."""

    kernel: Kernel
    function: TritonKernel
    launch: Launch | None

    @classmethod
    def of(cls, kernel: Kernel) -> DividedKernel:
        walks = any(csr.name == PIECES for csr in kernel.csrs)
        return cls(kernel, _loaded(kernel), None if walks else launches_of(kernel).short)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A kernel, and the kernels of its divided rows in the order in which they run, if its rows can be divided."""

    kernel: Kernel
    function: TritonKernel
    pieces: tuple[DividedKernel, ...]

    @classmethod
    def of(cls, kernel: Kernel, text: str | None = None) -> Loaded:
        made = divided_kernels(kernel) if launches_of(kernel).pieces is not None else ()
        return cls(kernel, _loaded(kernel, text), tuple(map(DividedKernel.of, made)))

    def jobs(
        self, tensors: Mapping[str, Tensor], order: Tensor | None, num_rows: int, num_edges: int, how: Launches,
        pieces_of: Callable[[int], RowPieces],
    ) -> list[TritonJob]:  # fmt: skip
        """Launches for all rows. `pieces_of(n)` returns the pieces of the n rows with the most edges."""
        divided = how.num_divided(num_rows, num_edges) if self.pieces and order is not None else 0
        whole = TritonJob(self.kernel, self.function, tensors, order, divided, num_rows, how.short)
        return [*self._of_pieces(tensors, pieces_of(divided), how), whole] if divided else [whole]

    def _of_pieces(self, tensors: Mapping[str, Tensor], table: RowPieces, how: Launches) -> list[TritonJob]:
        assert how.pieces is not None
        device = table.pieces.device
        launches = [one.launch or how.pieces for one in self.pieces]
        if not all(one.function.is_prepared for one in self.pieces):
            with ThreadPoolExecutor(len(self.pieces)) as threads:  # what cannot be compiled raises when it is launched
                for one, by in zip(self.pieces, launches, strict=True):
                    threads.submit(prepare, one.kernel, one.function, by, False, str(device))

        def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        known = {**tensors, **own_tensors((one.kernel for one in self.pieces), tensors, table, empty)}
        return [
            TritonJob(one.kernel, one.function, known, None, 0, num_rows(one.kernel, table), by)
            for one, by in zip(self.pieces, launches, strict=True)
        ]


def prepare(kernel: Kernel, function: TritonKernel, how: Launch, ordered: bool, device: str) -> None:
    """Compile the kernel for a launch, before there are tensors."""
    index = TORCH_DTYPE[kernel.index]
    given = [index if b.role in (Role.column, Role.index) else TORCH_DTYPE[b.dtype] for b in kernel.buffers]
    function.prepare([*(index for _ in kernel.csrs), *given], index if ordered else None, how, torch.device(device))


def _loaded(kernel: Kernel, text: str | None = None) -> TritonKernel:
    return load(text or print_kernel(kernel), kernel.name, programs_of_a_row(kernel))


class TritonStep(RegionStep):
    """The `RegionStep` of a Triton kernel. Tensors lie on one device; numbers on the CPU are sent to it."""

    def __init__(self, program: Program, plan: KernelPlan, wide: Callable[[], KernelPlan]) -> None:
        super().__init__(program, plan, wide)
        self._loaded: dict[bool, Loaded] = {}
        self._how = scheduled(launches_of(plan.lowered.kernel), plan.scheduled.taken)

    def build(self) -> None:
        loaded = self._kernel(wide=False)
        prepare(loaded.kernel, loaded.function, self._how.short, self.plan.lowered.map is not None, self.device)

    def _kernel(self, wide: bool) -> Loaded:
        if wide not in self._loaded:
            plan = self._wide_plan() if wide else self.plan
            self._loaded[wide] = Loaded.of(plan.lowered.kernel, plan.code)
        return self._loaded[wide]

    def __call__(self, rows: tuple[int, ...], indices: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
        device = next((t.device for t in (*indices, *inputs) if t.device.type != "cpu"), torch.device("cpu"))
        outputs = [
            torch.empty(shape if at is None else (rows[at], *shape), dtype=dtype, device=device)
            for shape, dtype, at in self._made
        ]
        wide = self._is_wide(rows, indices)
        loaded = self._kernel(wide)
        buffers = loaded.kernel.buffers
        m, order = self.plan.lowered.map, None
        csrs: dict[str, Tensor] = {}
        with self._indices(rows, indices) as index:
            found = [self._format(f, index, wide) for f in self._formats]
            if m is not None:
                csrs[loaded.kernel.csrs[0].name] = formats.csr(index[m], wide).indptr
                order = formats.by_degree(index[m], wide)
        given: dict[str, Sequence[Tensor]] = {
            "format": found,
            "in": [t.to(device, non_blocking=True).contiguous() for t in inputs],
            "out": outputs,
        }
        tensors = {b.name: given[kind][i] for b, (kind, i) in zip(buffers, self._slots, strict=True)} | csrs

        def pieces_of(divided: int) -> RowPieces:
            assert m is not None
            return row_pieces(index[m], wide, divided, self._how.piece_size(index[m].num_edges))

        num_edges = 0 if m is None else index[m].num_edges
        jobs = loaded.jobs(tensors, order, rows[0], num_edges, self._how, pieces_of)
        run(jobs, [(b, tensors[b.name]) for b in buffers if b.role is Role.total])
        self._finish(rows, indices, outputs)
        return outputs
