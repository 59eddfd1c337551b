"""Products with shared weights on nodes: generated kernels for tall matrices, the vendor's library for all others."""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.codegen.cpp import print_kernel
from graphweave.core.types import DType
from graphweave.ir.loop.verify import verify
from graphweave.lower.tall import Kind, tall_product
from graphweave.runtime import arena
from graphweave.runtime.kernel_cache import load
from graphweave.runtime.launch import Kernel, uniform_chunks
from graphweave.runtime.threads import num_threads

TALL = 16_384
"""Rows from which a matrix is tall; below, a product is no work worth a kernel of its own."""

WIDE = 256
"""Columns up to which the small matrix stays in cache."""

_PART = 4096  # rows that one part of a gram stands for, at least


class Product:
    """x @ w, or x.T @ y; results lie in memory of the arena where they have as many rows as x."""

    def __init__(self, kind: Kind, k: int, j: int, dtype: DType) -> None:
        self.kind, self.k, self.j, self.dtype = kind, k, j, dtype
        self._chosen = 0 < k <= WIDE and 0 < j <= WIDE
        self._kernel: Kernel | None = None

    def __call__(self, x: Tensor, w: Tensor) -> Tensor:
        if not self._tall(x):
            with torch.no_grad():
                if self.kind == "gram":
                    return torch.mm(x.t(), w)
                return torch.mm(x, w, out=arena.empty((x.shape[0], self.j), x.dtype))
        if self.kind == "gram":
            out = torch.empty((self.k, self.j), dtype=x.dtype)
            chunks = uniform_chunks(x.shape[0], max(1, (1 << 14) // _PART))
        else:
            out, chunks = arena.empty((x.shape[0], self.j), x.dtype), uniform_chunks(x.shape[0], self.k + self.j)
        return self._run((x, w), out, chunks)

    def add(self, a: Tensor, x: Tensor, w: Tensor) -> Tensor:
        """a + x @ w, in the memory of `a`."""
        if not self._tall(x) or not a.is_contiguous():
            with torch.no_grad():
                return torch.addmm(a, x, w, out=a)
        return self._run((x, w, a), a, uniform_chunks(x.shape[0], self.k + self.j))

    def _tall(self, x: Tensor) -> bool:
        return self._chosen and x.shape[0] >= TALL

    def _run(self, given: tuple[Tensor, ...], out: Tensor, chunks: Tensor) -> Tensor:
        if self._kernel is None:
            kernel = tall_product(self.kind, self.k, self.j, self.dtype)
            verify(kernel)
            self._kernel = load(print_kernel(kernel), kernel.name)
        held = [t.contiguous() for t in given]
        ptrs = [t.data_ptr() for t in (*held, out)]
        self._kernel(ptrs, (held[0].shape[0],), chunks, num_threads())
        return out
