"""Typed products, their grams and scatters as Triton kernels: the counterparts of `typed.py` and `typed_scatter.py`.

There is a kernel for every float type and all widths. No number of a tensor is asked for: what depends on how many rows
a type has is decided on the device, by tables that are cached with the index tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from graphweave.codegen.triton.axes import power_of_two
from graphweave.codegen.triton.names import computed
from graphweave.codegen.triton.typed import FoldProgram, TypedProgram, print_fold, print_typed
from graphweave.compiler.typed import TypedGram, TypedProduct
from graphweave.core.counters import bump
from graphweave.core.types import DType
from graphweave.ir.message.aten import TORCH_DTYPE
from graphweave.runtime import formats
from graphweave.runtime.index import Index
from graphweave.runtime.triton_kernel import interpreted, module, precision
from graphweave.runtime.typed_parts import Folds, typed_parts

ROWS = 64
"""Rows of one type that a program of a product takes, and a gram in one step."""

PART = 256
"""Rows that a program of a gram takes, at least."""

PARTS = 1024
"""Of a gram there are more only by the number of types."""

PARTS_BYTES = 64 << 20
"""Of all parts together, as far as there is more than one."""

FOLDED = 16
"""Parts that are folded at once."""


class TritonProduct(TypedProduct):
    """See `TypedProduct`; tensors lie on one device, and so does the result."""

    def _multiplied(self, x: Tensor, w: Tensor, types: Index, gather: Index | None) -> Tensor:
        out = x.new_empty((types.values.numel(), self.blocks, self.j))
        if out.numel() == 0 or self.k == 0:
            return _checked(out.zero_(), types, gather)
        order = _Order(types, gather)
        parts = typed_parts(types, ROWS, order.wide)
        kernel = TypedProgram("matmul", self.blocks, self.k, self.j, self.dtype, self.transposed)
        tensors = x.contiguous(), w.contiguous(), out, order.rows(gather), order.rows(), order.indptr
        constants = {"M": ROWS, "PRECISION": precision_of(self.dtype)}
        programs = parts.kinds.numel() * kernel.programs
        launch(print_typed(kernel), kernel.name, programs, [*tensors, parts.kinds, parts.begins], constants)
        return out


class TritonGram(TypedGram):
    """See `TypedGram`; tensors lie on one device, and so does the result."""

    def _summed(self, x: Tensor, y: Tensor, types: Index, gather_x: Index | None, gather_y: Index | None) -> Tensor:
        num, size = types.values.numel(), (self.blocks, self.k, self.j)
        if num == 0 or 0 in size:
            return _checked(x.new_zeros((types.rows, *size)), types, gather_x, gather_y)
        order = _Order(types, gather_x, gather_y)
        acc = TORCH_DTYPE[computed(self.dtype)]
        length = _part(num, self.blocks * self.k * self.j * acc.itemsize)
        parts = typed_parts(types, length, order.wide)
        sums = x.new_zeros((types.rows + parts.folds.slots, *size), dtype=acc)
        kernel = TypedProgram("gram", *size, self.dtype)
        rows = order.rows(gather_x), order.rows(gather_y), order.indptr
        tables = parts.kinds, parts.begins, parts.targets
        constants = {"SIZE": length, "M": min(length, ROWS), "PRECISION": precision_of(self.dtype)}
        programs = parts.kinds.numel() * kernel.programs
        tensors = [x.contiguous(), y.contiguous(), sums, *rows, *tables]
        launch(print_typed(kernel), kernel.name, programs, tensors, constants)
        return folded(sums, parts.folds, types.rows, self.dtype)


class _Order:
    """Rows in the order of types, and which row of a gathered tensor stands at each position."""

    def __init__(self, types: Index, *gathers: Index | None) -> None:
        self.types = types
        self.wide = any(index.wide for index in (types, *gathers) if index is not None)
        self.indptr = formats.csr(types.values, types.rows, types.wrap, self.wide).indptr

    def rows(self, gather: Index | None = None) -> Tensor:
        """The row at each position, int32 or int64 if wide."""
        t = self.types
        if gather is not None:
            return formats.column(t.values, t.rows, t.wrap, gather.values, gather.rows, gather.wrap, self.wide)
        order = formats.perm(t.values, t.rows, t.wrap, self.wide)
        return formats.in_order(t.values.numel(), self.wide) if order is None else order


def precision_of(dtype: DType) -> str:
    """TF32 holds every number of a half type; for float64 there is one precision only."""
    if dtype is DType.f32:
        return precision()
    return "ieee" if dtype is DType.f64 else "tf32"


def folded(sums: Tensor, folds: Folds, num_rows: int, dtype: DType) -> Tensor:
    """The first `num_rows` rows of `sums`, after those that consist of parts have been summed; of `dtype`."""
    width = sums[:1].numel()
    if folds.rows.numel():
        kernel = FoldProgram(width, computed(dtype))
        tensors = [sums, folds.rows, folds.begins, folds.ends, num_rows]
        programs = folds.rows.numel() * kernel.programs
        launch(print_fold(kernel), kernel.name, programs, tensors, {"P": FOLDED})
    # A view would keep the memory of the parts alive, which is little unless rows are few.
    return sums[:num_rows].to(TORCH_DTYPE[dtype], copy=folds.slots > num_rows // 8)


def launch(text: str, symbol: str, programs: int, tensors: Sequence[Any], constants: dict[str, Any]) -> None:
    """Runs the function `symbol` of a module's text on tensors and numbers, asynchronously where the device is."""
    if programs == 0:
        return
    function = getattr(module(text), symbol)
    options = {} if interpreted() else {"num_warps": 4, "enable_fp_fusion": True}
    device = tensors[0].device
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        function[(programs,)](*tensors, **constants, **options)
    bump("kernel_launches")


def _part(num: int, nbytes: int) -> int:
    """Rows of a part, a power of two, of `num` rows whose sums have `nbytes`."""
    most = max(1, min(PARTS, PARTS_BYTES // nbytes))
    return max(PART, power_of_two(-(-num // most)))


def _checked(out: Tensor, types: Index, *gathers: Index | None) -> Tensor:
    """`out`, which needs no kernel, whose indices are right all the same."""
    for index in (types, *gathers):
        if index is not None:
            index.flat()
    return out
