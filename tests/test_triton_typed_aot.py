"""Triton kernels of typed products compiled for GPUs that need not be there: they compile and stay in registers."""

from __future__ import annotations

import pytest

from graphweave.codegen.triton.typed import FoldProgram, TypedProgram, print_fold, print_typed, summed
from graphweave.compiler import triton_typed
from graphweave.compiler.build import build_inference
from graphweave.compiler.divided_rows import divided_kernels
from graphweave.compiler.triton_aot import resources_of
from graphweave.compiler.triton_launch import launches_of
from graphweave.core.types import DType
from graphweave.runtime.triton_aot import Resources, compile_text
from graphweave.schedule.options import options_for
from graphweave.testing.typed_programs import PRODUCT, typed_program
from tests.support import by_default
from tests.test_triton_aot import CAPABILITIES, SHARED, needs_compiler

POINTERS = {DType.f64: "*fp64", DType.f32: "*fp32", DType.f16: "*fp16", DType.bf16: "*bf16"}
TABLES = "*i64"
CASES = [
    (1, 64, 64, DType.f32, "ieee", False, "*i32"),
    (2, 64, 64, DType.bf16, "tf32", True, "*i64"),
    *[
        pytest.param(case, marks=pytest.mark.slow)
        for case in [
            (3, 33, 31, DType.f32, "ieee", True, "*i64"),
            (1, 64, 200, DType.f32, "tf32", True, "*i32"),
            (3, 33, 31, DType.f64, "ieee", False, "*i32"),
            (1, 1, 1, DType.f16, "tf32", True, "*i32"),
        ]
    ],
]
"""Blocks, k, j, dtype, precision, whether matrices are transposed, type of indices."""

SPILLED = 64
"""Bytes a thread: what ptxas keeps elsewhere to fit more warps, and not a kernel that is too large for registers."""


def check(found: Resources, capability: int) -> None:
    assert found.code > 0 and found.shared <= SHARED[capability]
    assert found.spill_stores <= SPILLED and found.spill_loads <= SPILLED


@needs_compiler
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_kernels_stay_in_registers(capability: int, case: tuple[int, int, int, DType, str, bool, str]) -> None:
    blocks, k, j, dtype, precision, transposed, index = case
    x, sums, constant = POINTERS[dtype], POINTERS[summed(dtype)], "constexpr"
    matmul, gram = TypedProgram("matmul", blocks, k, j, dtype, transposed), TypedProgram("gram", blocks, k, j, dtype)
    types = [x, x, x, index, index, index, TABLES, TABLES, constant, constant]
    constants = {"M": triton_typed.ROWS, "PRECISION": precision}
    check(compile_text(print_typed(matmul), matmul.name, types, constants, capability, warps=8), capability)
    types = [x, x, sums, index, index, index, TABLES, TABLES, TABLES, "i32", constant, constant]
    constants = {"M": triton_typed.TERMS, "PRECISION": precision}
    check(compile_text(print_typed(gram), gram.name, types, constants, capability, warps=8), capability)


@needs_compiler
@pytest.mark.parametrize("width", [1, 4096])
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_folds_stay_in_registers(capability: int, width: int) -> None:
    kernel = FoldProgram(width, DType.f32)
    types = ["*fp32", TABLES, TABLES, TABLES, "i32", "constexpr"]
    check(compile_text(print_fold(kernel), kernel.name, types, {"P": triton_typed.FOLDED}, capability), capability)


PROGRAMS = {
    "product": (1, 128, 64, {"gathers": True, "results": (PRODUCT,)}),
    "both": (1, 64, 64, {"gathers": True, "transposed": True}),
    "heads": (8, 8, 8, {"gathers": True}),
}


@needs_compiler
@pytest.mark.parametrize("name", by_default(PROGRAMS, "both"))
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_kernels_of_loop_ir_stay_in_registers(capability: int, name: str) -> None:
    """And those of the pieces of rows, into which all rows are divided."""
    *widths, options = PROGRAMS[name]
    made = build_inference(typed_program(*widths, **options), (), {}, options_for("triton"), {}, verify=False)
    kernel = made.plan.kernels[0].lowered.kernel
    pieces, *_ = divided_kernels(kernel)
    for k in (kernel, pieces):
        check(resources_of(k, capability, how=launches_of(kernel).short), capability)
