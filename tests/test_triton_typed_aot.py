"""Triton kernels of typed products compiled for GPUs that need not be there: they compile and stay in registers."""

from __future__ import annotations

import re

import pytest

from graphweave.codegen.triton.typed import FoldProgram, print_fold, summed
from graphweave.codegen.triton.typed_scatter import ScatterProgram, print_scatter
from graphweave.compiler import triton_typed
from graphweave.compiler.build import build_inference
from graphweave.compiler.divided_rows import divided_kernels
from graphweave.compiler.triton_aot import Variant, resources_of
from graphweave.compiler.triton_launch import launches_of
from graphweave.core.types import DType
from graphweave.ir.message.nodes import Program
from graphweave.runtime.triton_aot import Resources, compile_text
from graphweave.runtime.triton_kernel import module
from graphweave.schedule.options import options_for
from graphweave.testing.typed_programs import PRODUCT, computed_rows, typed_program
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
    scatter = ScatterProgram(blocks, k, j, dtype, transposed, blocks)
    types = [x, x, x, sums, index, index, index, index, TABLES, TABLES, TABLES, constant, constant]
    constants = {"M": triton_typed.PAIRS, "PRECISION": precision}
    check(compile_text(print_scatter(scatter), scatter.name, types, constants, capability), capability)


@needs_compiler
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_a_scatter_waits_for_its_own_stores(precision: str) -> None:
    """What a program has stored for a tile, other threads of it read for the next: there is a barrier in between."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = ScatterProgram(1, 64, 64, DType.f32)
    function = getattr(module(print_scatter(kernel)), kernel.name)
    types = [*["*fp32"] * 4, *["*i32"] * 4, *[TABLES] * 3, "constexpr", "constexpr"]
    source = ASTSource(
        fn=function,
        signature=dict(zip(function.arg_names, types, strict=True)),
        constexprs={"M": triton_typed.PAIRS, "PRECISION": precision},
    )
    options = {"num_warps": 4, "enable_fp_fusion": True}
    text = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
    steps = "".join(step[0] for step in re.findall(r"bar\.sync|ld\.global|st\.global", text))
    found = re.fullmatch(r"[bl]*b(l+)b*(s+)[bl]*", steps)
    assert found is not None and len(found[1]) == len(found[2])  # a barrier, then the loads of the sums and no others


@needs_compiler
@pytest.mark.parametrize("width", [1, 4096])
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_folds_stay_in_registers(capability: int, width: int) -> None:
    kernel = FoldProgram(width, DType.f32)
    types = ["*fp32", TABLES, TABLES, TABLES, "i32", "constexpr"]
    check(compile_text(print_fold(kernel), kernel.name, types, {"P": triton_typed.FOLDED}, capability), capability)


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
    """And those of the pieces of rows, into which all rows are divided, and of what folds them."""
    made = build_inference(PROGRAMS[name], (), {}, options_for("triton"), {}, verify=False)
    assert not made.plan.refused
    for plan in made.plan.kernels.values():
        kernel = plan.lowered.kernel
        products = {k: launches_of(kernel).short for k in (kernel, *divided_kernels(kernel)[:1])}
        others = {k: launches_of(k).short for k in divided_kernels(kernel)[1:] if precision == "ieee"}
        for k, how in (products | others).items():
            check(resources_of(k, capability, Variant(precision=precision), how), capability)
