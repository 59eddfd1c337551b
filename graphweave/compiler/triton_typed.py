"""Fused pushes of typed products as Triton kernels.

There is a kernel for every float type and all widths. Integers are calls. No number of a tensor is asked for: what
depends on how many edges a row has is decided on the device, by tables that are cached with the index tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from graphweave.codegen.triton.axes import power_of_two
from graphweave.codegen.triton.typed import FoldProgram, print_fold, summed
from graphweave.codegen.triton.typed_scatter import ScatterProgram, print_scatter
from graphweave.compiler.typed import TypedProduct
from graphweave.core.counters import bump
from graphweave.core.errors import DataError
from graphweave.core.types import DType
from graphweave.ir.message.aten import TORCH_DTYPE
from graphweave.runtime.index import Index
from graphweave.runtime.triton_kernel import interpreted, module, on_device, precision
from graphweave.runtime.typed_pairs import Cut, column, typed_pairs
from graphweave.runtime.typed_parts import Folds

TypedKernel: TypeAlias = FoldProgram | ScatterProgram

FOLDED = 16
"""Parts that are folded at once."""

PAIRS = 32
"""Of a row and a type: how many a program of a scatter multiplies at once."""

BLOCK = 256
"""Edges of a block of a scatter, at least: of fewer hardly two share a type, of more a small graph has few blocks."""

BLOCKS = 1024
"""Of a scatter, at most."""

PIECE = 256
"""Edges from which a row may be cut into pieces."""

PIECES = 4096
"""Pieces there may be, however few the rows; else one for eight rows."""


class TritonScatter:
    """out[v, b, j] = sum over e with dst(e) = v of scale[e, b] * sum_k x[src(e), b, k] w[t(e), b, k, j].

    Tensors lie on one device, and so does the result.
    """

    def __init__(self, blocks: int, k: int, j: int, dtype: DType, transposed: bool = False) -> None:
        """`transposed`: w is given as [types, blocks, j, k]."""
        self.blocks, self.k, self.j, self.dtype, self.transposed = blocks, k, j, dtype, transposed
        self._product = TypedProduct(blocks, k, j, dtype, transposed)

    def __call__(
        self, x: Tensor, w: Tensor, types: Index, dst: Index, src: Index | None = None, scale: Tensor | None = None
    ) -> Tensor:
        """x [N, ..., k], w [types, ..., k, j], scale [E], [E, 1] or [E, blocks] -> [dst.rows, ..., j].

        E is the length of `types`, `dst` and `src`; without `src`, x has a row for each edge. Rows without edges are
        0. IndexRangeError for a value of an index that names no row.
        """
        num, shape = types.values.numel(), x.shape[1:-1]
        self._check(x, types, dst, src, scale)
        by = None if scale is None else scale.reshape(num, scale.shape[1] if scale.dim() > 1 else 1)
        with torch.no_grad():
            return self._added(x, w, types, dst, src, by).view(dst.rows, *shape, self.j)

    def _add_messages(
        self, out: Tensor, x: Tensor, w: Tensor, types: Index, dst: Index, src: Index | None, scale: Tensor | None
    ) -> Tensor:
        messages = self._product(x, w, types, src).view(types.values.numel(), self.blocks, self.j)
        return out.index_add_(0, dst.flat(), messages if scale is None else messages * scale.unsqueeze(2))

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

    def _added(self, x: Tensor, w: Tensor, types: Index, dst: Index, src: Index | None, scale: Tensor | None) -> Tensor:
        num, width = types.values.numel(), (self.blocks, self.j)
        if num == 0 or 0 in width or self.k == 0:
            return _checked(x.new_zeros((dst.rows, *width)), types, dst, src)
        if not self.dtype.is_float:
            return self._add_messages(x.new_zeros((dst.rows, *width)), x, w, types, dst, src, scale)
        wide = any(i.wide for i in (types, dst, src) if i is not None)
        cut = cut_of(num, dst.rows)
        found = typed_pairs(types, dst, cut, wide)
        sources = found.order if src is None else column(types, dst, src, cut, wide)
        sums = x.new_zeros((dst.rows + found.folds.slots, *width), dtype=TORCH_DTYPE[summed(self.dtype)])
        scales = 0 if scale is None else scale.shape[1]
        kernel = ScatterProgram(self.blocks, self.k, self.j, self.dtype, self.transposed, scales)
        x = x.contiguous()
        by = x if scale is None else scale.contiguous()
        tables = found.order, found.edges, found.targets, found.pairs, found.kinds, found.tiles
        constants = {"M": cut.tile, "PRECISION": precision_of(self.dtype)}
        tensors = [x, w.contiguous(), by, sums, sources, *tables]
        launch(kernel, found.tiles.numel() - 1, tensors, constants)
        return folded(sums, found.folds, dst.rows, self.dtype)


def cut_of(edges: int, rows: int) -> Cut:
    """Powers of two, so that graphs of about one size share what Triton compiles."""
    block = power_of_two(-(-edges // BLOCKS))
    piece = power_of_two(-(-2 * edges // max(rows // 8, PIECES)))
    return Cut(max(block, BLOCK), max(piece, PIECE), PAIRS)


def precision_of(dtype: DType) -> str:
    """TF32 holds every number of a half type; for float64 there is one precision only."""
    if dtype is DType.f32:
        return precision()
    return "ieee" if dtype is DType.f64 else "tf32"


def folded(sums: Tensor, folds: Folds, num_rows: int, dtype: DType) -> Tensor:
    """The first `num_rows` rows of `sums`, after those that consist of parts have been summed; of `dtype`."""
    width = math.prod(sums.shape[1:])
    if folds.rows.numel():
        kernel = FoldProgram(width, summed(dtype))
        launch(kernel, folds.rows.numel(), [sums, folds.rows, folds.begins, folds.ends, num_rows], {"P": FOLDED})
    # A view would keep the memory of the parts alive, which is little unless rows are few.
    return sums.narrow(0, 0, num_rows).to(TORCH_DTYPE[dtype], copy=folds.slots > num_rows // 8)


def launch(
    kernel: TypedKernel, count: int, arguments: Sequence[Any], constants: Mapping[str, Any], warps: int = 4
) -> None:
    """Runs the programs of `count` parts, blocks or folds, asynchronously where the device is.

    `arguments`: tensors, the first on the device, and numbers.
    """
    if count == 0:
        return
    options = {} if interpreted() else {"num_warps": warps, "enable_fp_fusion": True}
    with on_device(arguments[0].device):
        _function(kernel)[(count * kernel.programs,)](*arguments, **constants, **options)
    bump("kernel_launches")


@lru_cache(maxsize=1024)
def _function(kernel: TypedKernel) -> Any:
    match kernel:
        case FoldProgram():
            text = print_fold(kernel)
        case ScatterProgram():
            text = print_scatter(kernel)
    return getattr(module(text), kernel.name)


def _checked(out: Tensor, types: Index, *gathers: Index | None) -> Tensor:
    """`out`, which needs no kernel, whose indices are right all the same."""
    for index in (types, *gathers):
        if index is not None:
            index.flat()
    return out
