"""Typed products of edges summed by row, as calls: see `codegen/cpp/typed_scatter.py`."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from graphweave.analysis.typed import WIDEST
from graphweave.codegen.cpp.typed_scatter import ScatterKernel, print_scatter
from graphweave.compiler.typed import TypedProduct
from graphweave.core.errors import DataError
from graphweave.core.types import DType
from graphweave.runtime import arena, formats
from graphweave.runtime.index import Index
from graphweave.runtime.kernel_cache import load
from graphweave.runtime.launch import Kernel
from graphweave.runtime.threads import num_threads
from graphweave.runtime.toolchain import toolchain
from graphweave.runtime.typed_blocks import column, typed_blocks

BLOCK_BYTES = 1 << 19
"""Of the rows of the result that one block adds to: a quarter of a second-level cache."""

BLOCKS = 32
"""Blocks there are at least, to be shared out among threads; fewer where each would have less than `BLOCK_EDGES`."""

BLOCK_EDGES = 2048


class TypedScatter:
    """out[v, b, j] = sum over e with dst(e) = v of scale[e, b] * sum_k x[src(e), b, k] w[t(e), b, k, j]."""

    product: ClassVar[type[TypedProduct]] = TypedProduct
    """Of edges, where there is no kernel of the whole."""

    def __init__(self, blocks: int, k: int, j: int, dtype: DType, transposed: bool = False) -> None:
        """`transposed`: w is given as [types, blocks, j, k]."""
        self.blocks, self.k, self.j, self.dtype, self.transposed = blocks, k, j, dtype, transposed
        self._product = self.product(blocks, k, j, dtype, transposed)

    def __call__(
        self, x: Tensor, w: Tensor, types: Index, dst: Index, src: Index | None = None, scale: Tensor | None = None
    ) -> Tensor:
        """x [N, ..., k], w [types, ..., k, j], scale [E], [E, 1] or [E, blocks] -> [dst.rows, ..., j].

        E is the length of `types`, `dst` and `src`; without `src`, x has a row for each edge. The result lies in memory
        of the arena; rows without edges are 0. IndexRangeError for a value of an index that names no row.
        """
        num, shape = types.values.numel(), x.shape[1:-1]
        self._check(x, types, dst, src, scale)
        by = None if scale is None else scale.reshape(num, scale.shape[1] if scale.dim() > 1 else 1)
        with torch.no_grad():
            return self._added(x, w, types, dst, src, by).view(dst.rows, *shape, self.j)

    def _added(self, x: Tensor, w: Tensor, types: Index, dst: Index, src: Index | None, scale: Tensor | None) -> Tensor:
        """x and w as they are given, scale [E, 1] or [E, blocks] -> [dst.rows, blocks, j]."""
        if self.dtype in (DType.f32, DType.f64) and min(width := (self.k, self.j)) > 0 and max(width) <= WIDEST:
            return self._by_kernel(x, w, types, dst, src, scale)
        out = arena.empty((dst.rows, self.blocks, self.j), x.dtype).zero_()
        return self._add_messages(out, x, w, types, dst, src, scale)

    def _add_messages(
        self, out: Tensor, x: Tensor, w: Tensor, types: Index, dst: Index, src: Index | None, scale: Tensor | None
    ) -> Tensor:
        messages = self._product(x, w, types, src).view(types.values.numel(), self.blocks, self.j)
        return out.index_add_(0, dst.flat(), messages if scale is None else messages * scale.unsqueeze(2))

    def _by_kernel(
        self, x: Tensor, w: Tensor, types: Index, dst: Index, src: Index | None, scale: Tensor | None
    ) -> Tensor:
        num = self._num_blocks(types.values.numel(), dst.rows, x.element_size())
        wide = any(i.wide for i in (types, dst, src) if i is not None) or num * types.rows > formats.INT32_MAX
        found = typed_blocks(types, dst, num, wide)
        out = arena.empty((found.pieces.num_all, self.blocks, self.j), x.dtype)
        rows = found.order if src is None else column(types, dst, src, num, wide)
        # Turned over here: in the kernel, each block would do it for each of its types.
        matrices = w.reshape(types.rows, self.blocks, self.j, self.k).mT if self.transposed else w
        held = [t if t is None else t.contiguous() for t in (x, matrices, scale)]
        tensors = (*held, out, found.indptr, rows, found.rows, found.order)
        ptrs = [0 if t is None else t.data_ptr() for t in tensors]
        kernel = _kernel(toolchain(), ScatterKernel(self.blocks, self.k, self.j, self.dtype, wide))
        sizes = types.rows, 1 if scale is None else scale.shape[1]
        kernel(ptrs, sizes, found.bounds, num_threads())
        return found.pieces.folded(out)

    def _num_blocks(self, edges: int, rows: int, itemsize: int) -> int:
        """A power of two, so that layers of about equal widths share the order of edges."""
        by_size = rows * self.blocks * self.j * itemsize // BLOCK_BYTES
        wanted = max(by_size, min(BLOCKS, edges // BLOCK_EDGES), 1)
        return 1 << (wanted - 1).bit_length()

    def _check(self, x: Tensor, types: Index, dst: Index, src: Index | None, scale: Tensor | None) -> None:
        num = types.values.numel()
        lengths = [num, dst.values.numel(), x.shape[0] if src is None else src.values.numel()]
        lengths += [] if scale is None else [scale.shape[0]]
        if len(set(lengths)) > 1 or (src is not None and src.rows > x.shape[0]):
            raise DataError(
                f"expected a type, two ends and a scale for each edge (got {lengths}). Give equally many of each."
            )
        if scale is not None and scale.numel() not in (num, num * self.blocks):
            raise DataError(
                f"expected a scale of 1 or {self.blocks} numbers an edge (got {list(scale.shape)}). Give one of these."
            )


@lru_cache(maxsize=1024)
def _kernel(tools: object, spec: ScatterKernel) -> Kernel:
    """`tools` is only the key, so that a change of compiler settings is honoured."""
    return load(print_scatter(spec), spec.name)
