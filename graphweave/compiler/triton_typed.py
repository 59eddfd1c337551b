"""Typed products and their grams as Triton kernels: the counterparts of `typed.py`.

There is a kernel for every float type and all widths. Integers, of which PyTorch has no products of matrices on a GPU,
are multiplied one by one, with a copy of its matrix for each row. No number of a tensor is asked for: what depends on
how many rows a type has is decided on the device, by tables that are cached with the index tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from torch import Tensor

from graphweave.codegen.triton.axes import power_of_two
from graphweave.codegen.triton.typed import FoldProgram, TypedProgram, print_fold, print_typed, summed
from graphweave.compiler.typed import TypedGram, TypedProduct, add_outer, gathered_rows
from graphweave.core.counters import bump
from graphweave.core.types import DType
from graphweave.ir.message.aten import TORCH_DTYPE
from graphweave.runtime import formats
from graphweave.runtime.index import Index
from graphweave.runtime.triton_kernel import interpreted, module, on_device, precision
from graphweave.runtime.typed_parts import Folds, typed_parts

TypedKernel: TypeAlias = TypedProgram | FoldProgram

ROWS = 64
"""Rows of one type that a program of a product takes."""

TERMS = 16
"""Rows that a gram multiplies in one step: see `codegen/triton/typed.py` about more."""

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
        if not self.dtype.is_float:
            matrices = (w.mT if self.transposed else w).index_select(0, types.flat())
            return (gathered_rows(x, gather).unsqueeze(3) * matrices).sum(2, dtype=x.dtype)
        order = _Order(types, gather)
        parts = typed_parts(types, ROWS, order.wide)
        kernel = TypedProgram("matmul", self.blocks, self.k, self.j, self.dtype, self.transposed)
        tensors = x.contiguous(), w.contiguous(), out, order.rows(gather), order.rows(), order.indptr
        constants = {"M": ROWS, "PRECISION": precision_of(self.dtype)}
        launch(kernel, parts.kinds.numel(), [*tensors, parts.kinds, parts.begins], constants, warps=8)
        return out


class TritonGram(TypedGram):
    """See `TypedGram`; tensors lie on one device, and so does the result."""

    def _summed(self, x: Tensor, y: Tensor, types: Index, gather_x: Index | None, gather_y: Index | None) -> Tensor:
        num, size = types.values.numel(), (self.blocks, self.k, self.j)
        if num == 0 or 0 in size:
            return _checked(x.new_zeros((types.rows, *size)), types, gather_x, gather_y)
        if not self.dtype.is_float:
            rows = gathered_rows(x, gather_x), gathered_rows(y, gather_y)
            return add_outer(x.new_zeros((types.rows, *size)), *rows, types)
        order = _Order(types, gather_x, gather_y)
        acc = TORCH_DTYPE[summed(self.dtype)]
        length = _part(num, self.blocks * self.k * self.j * acc.itemsize)
        parts = typed_parts(types, length, order.wide)
        sums = x.new_zeros((types.rows + parts.folds.slots, *size), dtype=acc)
        kernel = TypedProgram("gram", *size, self.dtype)
        positions = order.rows(gather_x), order.rows(gather_y), order.indptr
        tables = parts.kinds, parts.begins, parts.targets
        constants = {"M": TERMS, "PRECISION": precision_of(self.dtype)}
        arguments = [x.contiguous(), y.contiguous(), sums, *positions, *tables, length]
        launch(kernel, parts.kinds.numel(), arguments, constants, warps=8)
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
    width = math.prod(sums.shape[1:])
    if folds.rows.numel():
        kernel = FoldProgram(width, summed(dtype))
        launch(kernel, folds.rows.numel(), [sums, folds.rows, folds.begins, folds.ends, num_rows], {"P": FOLDED})
    # A view would keep the memory of the parts alive, which is little unless rows are few.
    return sums.narrow(0, 0, num_rows).to(TORCH_DTYPE[dtype], copy=folds.slots > num_rows // 8)


def launch(
    kernel: TypedKernel, count: int, arguments: Sequence[Any], constants: Mapping[str, Any], warps: int = 4
) -> None:
    """Runs the programs of `count` parts or folds, asynchronously where the device is.

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
        case TypedProgram():
            text = print_typed(kernel)
        case FoldProgram():
            text = print_fold(kernel)
    return getattr(module(text), kernel.name)


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
