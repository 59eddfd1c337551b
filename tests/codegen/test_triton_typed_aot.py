"""Triton kernels of typed products compiled for GPUs that need not be there: they compile and stay in registers."""

from __future__ import annotations

import pytest

from graphweave.codegen.triton.folds import FoldProgram, print_fold
from graphweave.core.options import options_for
from graphweave.core.types import DType
from graphweave.execute import triton_folds
from graphweave.execute.divided_rows import divided_kernels
from graphweave.execute.triton_launch import launches_of
from graphweave.ir.message.nodes import Program
from tests.codegen.test_triton_aot import CAPABILITIES, SHARED, needs_compiler
from tests.codegen.triton_resources import Resources, Variant, compile_text, resources_of
from tests.program_support import built
from tests.support import by_default
from tests.typed_programs import PRODUCT, computed_rows, typed_program

TABLES = "*i64"
SPILLED = 64
"""Bytes a thread that ptxas may spill to fit more warps. A kernel too large for the registers spills more."""


def check(found: Resources, capability: int) -> None:
    assert found.code > 0 and found.shared <= SHARED[capability]
    assert found.spill_stores <= SPILLED and found.spill_loads <= SPILLED


@needs_compiler
@pytest.mark.parametrize("width", [1, 4096])
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_folds_stay_in_registers(capability: int, width: int) -> None:
    kernel = FoldProgram(width, DType.f32)
    types = ["*fp32", TABLES, TABLES, TABLES, "i32", "constexpr"]
    check(compile_text(print_fold(kernel), kernel.name, types, {"P": triton_folds.FOLDED}, capability), capability)


PROGRAMS: dict[str, Program] = {
    "product": typed_program(1, 128, 64, gathers=True, results=(PRODUCT,)),
    "both": typed_program(1, 64, 64, gathers=True, transposed=True),
    "heads": typed_program(8, 8, 8, gathers=True),
    "half": typed_program(1, 64, 64, DType.bf16, gathers=True),
    "wide": typed_program(1, 128, 128, gathers=True, transposed=True),
    "wide_half": typed_program(1, 200, 256, DType.f16, gathers=True),
    "widest": typed_program(1, 512, 512, gathers=True),
    "wide_f64": typed_program(1, 1000, 40, DType.f64, transposed=True),
    "half_heads": typed_program(8, 32, 32, DType.bf16, gathers=True),
    "many_heads": typed_program(16, 16, 16, DType.bf16),
    "blocks_f64": typed_program(3, 33, 31, DType.f64, transposed=True),
    "least": typed_program(1, 1, 1, DType.f16, transposed=True),
    "computed": computed_rows(1, 64, 64, DType.f32),
    "computed_half": computed_rows(1, 128, 128, DType.bf16),
    "computed_wide": computed_rows(1, 256, 100, DType.f32),
    "computed_f64": computed_rows(1, 250, 64, DType.f64),
}


@needs_compiler
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("name", by_default(PROGRAMS, "both", "half", "wide"))
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_kernels_of_loop_ir_stay_in_registers(capability: int, name: str, precision: str) -> None:
    """This includes kernels of pieces, into which all rows are divided, and kernels that fold pieces."""
    made = built(PROGRAMS[name], options_for("triton"))
    assert not made.plan.refused
    for plan in made.plan.kernels.values():
        kernel = plan.lowered.kernel
        products = {k: launches_of(kernel).short for k in (kernel, *divided_kernels(kernel)[:1])}
        others = {k: launches_of(k).short for k in divided_kernels(kernel)[1:] if precision == "ieee"}
        for k, how in (products | others).items():
            check(resources_of(k, capability, Variant(precision=precision), how), capability)
