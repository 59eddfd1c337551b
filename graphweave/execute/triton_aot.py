"""The registers and memory that the Triton kernel of a region needs on a GPU, found without a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphweave.codegen.triton import print_kernel
from graphweave.core.types import DType, computed
from graphweave.execute.triton_launch import launches_of
from graphweave.ir.loop.nodes import Buffer, Kernel, Role
from graphweave.runtime.triton_aot import Resources, compile_text
from graphweave.runtime.triton_kernel import Launch

_TYPES = {
    DType.f64: "fp64", DType.f32: "fp32", DType.f16: "fp16", DType.bf16: "bf16",
    DType.i64: "i64", DType.i32: "i32", DType.i16: "i16", DType.i8: "i8", DType.u8: "u8", DType.bool: "i1",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Variant:
    """Facts about a launch for which Triton compiles a separate kernel: whether rows come in an order, whether each
    program takes a single group of rows (only kernels with totals take more, on large graphs), and the precision of
    products of f32."""

    ordered: bool = True
    one_group: bool = True
    precision: str = "ieee"


def signature(kernel: Kernel, variant: Variant) -> tuple[str, ...]:
    """Triton's type of each parameter of the kernel's text, in order (`codegen/triton/kernel.py`)."""
    index = f"*{_TYPES[kernel.index]}"
    pointers = [*(index for _ in kernel.csrs), *(_pointer(kernel, buffer) for buffer in kernel.buffers)]
    order = index if variant.ordered else pointers[0]  # without an order, the first tensor is passed in its place
    groups = "constexpr" if variant.one_group else "i32"
    return (*pointers, order, groups, "i32", "i32", *("constexpr" for _ in ("R", "K", "ORDERED", "PRECISION")))


def constants(variant: Variant, how: Launch) -> dict[str, Any]:
    """The values of the parameters that are `constexpr`. Triton makes every number that is 1 a constexpr."""
    groups = {"groups": 1} if variant.one_group else {}
    return {**groups, "R": how.rows, "K": how.edges, "ORDERED": variant.ordered, "PRECISION": variant.precision}


def resources_of(
    kernel: Kernel, capability: int, variant: Variant | None = None, how: Launch | None = None
) -> Resources:
    """Print and compile `kernel` for `capability` (80: sm_80), launched by `how`, by default as a step would.

    Raises:
        IRError: for what Triton cannot express.
        ToolchainError, CompileError: see `runtime/triton_aot.py`.
    """
    variant, how = variant or Variant(), how or launches_of(kernel).short
    types, values = signature(kernel, variant), constants(variant, how)
    text = print_kernel(kernel)
    return compile_text(text, kernel.name, types, values, capability, warps=how.warps, registers=how.registers)


def _pointer(kernel: Kernel, buffer: Buffer) -> str:
    """Triton's type of a pointer to a buffer. A program's part of a total has the type in which it is computed."""
    if buffer.role in (Role.column, Role.index):
        return f"*{_TYPES[kernel.index]}"
    return f"*{_TYPES[computed(buffer.dtype) if buffer.role is Role.total else buffer.dtype]}"
