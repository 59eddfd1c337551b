"""The divided rows of a region on the CPU. Their kernels are called one after the other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from graphweave.codegen.cpp import print_kernel
from graphweave.core.counters import bump
from graphweave.execute.divided_rows import divided_kernels, num_rows, own_tensors, verified
from graphweave.ir.loop.interp import FOLDS
from graphweave.ir.loop.nodes import Alloc, Kernel, Role, TileGram, TileMatMul, Tiles
from graphweave.ir.loop.walk import statements
from graphweave.ir.message.infer import numel
from graphweave.lower.scheduled import Scheduled
from graphweave.runtime import arena, kernel_cache, launch
from graphweave.runtime.chunks import equal_rows
from graphweave.runtime.launch import CHUNK_WORK, Work, uniform_chunks
from graphweave.runtime.long_rows import PRODUCTS, SUMS, LongRows, Weight
from graphweave.runtime.threads import num_threads


def weight_of(kernel: Kernel) -> Weight:
    """The weight of the rows of `kernel`. With products, a piece of a row leaves partial sums as large as those of the
    row."""
    inner = list(statements(kernel.body))
    products = any(isinstance(s, TileMatMul | TileGram) for t in inner if isinstance(t, Tiles) for s in t.body)
    leaves = sum(numel(s.shape) * s.dtype.itemsize for s in inner if isinstance(s, Alloc))
    return Weight(PRODUCTS, leaves) if products else SUMS


class DividedRows:
    """The kernels that compute divided rows (the long ones, or all rows), compiled when they are first needed."""

    def __init__(self, made: Scheduled) -> None:
        kernel, self._schedule = made.whole, made.taken
        self._given = [*(csr.name for csr in kernel.csrs), *(b.name for b in kernel.buffers)]
        self._kernels = verified(made.pieces) if made.pieces else divided_kernels(kernel)
        self._functions: Sequence[launch.NativeKernel] = ()

    def build(self) -> None:
        """Compile the kernels in parallel, or find them in the cache."""
        if not self._functions:
            texts = [(print_kernel(k), k.name) for k in self._kernels]
            with ThreadPoolExecutor(min(len(texts), os.cpu_count() or 1)) as pool:
                self._functions = list(pool.map(lambda text: kernel_cache.load(*text), texts))

    @property
    def compiled(self) -> tuple[Sequence[str], Sequence[Kernel], Sequence[launch.NativeKernel]]:
        """Names of the arguments of the kernel whose rows are divided, and the kernels in order, once they are
        built."""
        return self._given, self._kernels, self._functions

    def __call__(self, long: LongRows, ptrs: Sequence[int], totals: Mapping[str, Tensor]) -> None:
        """Run the kernels, after the kernel itself. `ptrs` are that kernel's arguments. The parts of rows are folded
        into `totals`, given by name."""
        known = dict(zip(self._given, ptrs, strict=True))
        own = own_tensors(self._kernels, known, long.pieces, arena.empty)
        known.update((name, t.data_ptr()) for name, t in own.items())
        for kernel, function in zip(self._kernels, self._functions, strict=True):
            mine = {b.name: torch.empty_like(totals[b.name]) for b in kernel.buffers if b.role is Role.total}
            known.update((name, t.data_ptr()) for name, t in mine.items())
            rows = num_rows(kernel, long.pieces)
            given = [known[csr.name] for csr in kernel.csrs] + [known[b.name] for b in kernel.buffers]
            # These kernels read only the first size. They have no stashes, which would need the largest degrees.
            sizes = [rows] + [0] * (len(kernel.sizes) - 1 + len(kernel.csrs))
            function(given, sizes, self._chunks(rows), num_threads(self._schedule.threads))
            for b in kernel.buffers:
                if b.fold is not None:
                    totals[b.name].copy_(FOLDS[b.fold](totals[b.name], mine[b.name]))
        bump("divided_launches")

    def _chunks(self, rows: int) -> Tensor:
        asked = self._schedule.chunks if self._schedule.in_pieces else None
        return uniform_chunks(rows, Work(CHUNK_WORK)) if asked is None else equal_rows(rows, asked)
