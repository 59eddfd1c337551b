"""Generated C++ against the interpreter, on awkward graphs, with one and two threads, and under sanitizers."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from graphweave.codegen.cpp import print_kernel
from graphweave.core.types import DType, Fold, Op
from graphweave.ir.loop.nodes import Buffer, Call, CastTo, Expr, Kernel, Lanes, Lit, Load, Role, Store, Var
from graphweave.ir.loop.parse import parse
from graphweave.ir.loop.show import show
from graphweave.ir.loop.types import result_type, supports
from graphweave.ir.loop.verify import verify
from graphweave.lower.widen import widened
from graphweave.runtime import kernel_cache
from tests.loop_support import (
    DEGREES,
    HALVES,
    TORCH,
    Case,
    arguments,
    attention,
    case_for,
    chunks_of,
    compiled,
    edge_mlp,
    interpreted,
    node_mlp,
    node_stages,
    online_attention,
    reindexed,
    row_sums,
    sddmm,
    spmm,
    totals,
    two_ends,
)
from tests.sanitizer_support import ENVIRONMENT, build_sanitized
from tests.support import needs_float16

# Another order of summation, over at most 40 terms, and contracted multiply-adds.
RTOL = {torch.float32: 2e-5, torch.float64: 1e-13}

KERNELS = {
    "spmm_sum_1": spmm(1),
    "spmm_sum_31_f64_i64": spmm(31, dtype=DType.f64, index=DType.i64, ahead=1),
    "spmm_sum_33_ahead": spmm(33, ahead=8),
    "spmm_max_33": spmm(33, Fold.max),
    "spmm_min_31_f64": spmm(31, Fold.min, DType.f64),
    "spmm_mul_3": spmm(3, Fold.mul),
    "spmm_sum_i32": spmm(33, dtype=DType.i32),
    "spmm_max_i64": spmm(5, Fold.max, DType.i64),
    "spmm_no_features": spmm(0, ahead=2),
    "sddmm_1": sddmm(1, index=DType.i32),
    "sddmm_33": sddmm(33),
    "sddmm_max_31": sddmm(31, Fold.max),
    "sddmm_min_33_f64": sddmm(33, Fold.min, DType.f64),
    "sddmm_max_i32": sddmm(33, Fold.max, DType.i32),
    "sddmm_no_features": sddmm(0),
    "attention_1_33": attention(1, 33),
    "attention_4_16": attention(4, 16),
    "attention_8_1": attention(8, 1),
    "attention_3_5_f64": attention(3, 5, DType.f64, DType.i64),
    "totals_1": totals(1),
    "totals_9_f64": totals(9, DType.f64),
    "edge_mlp_33_31_33": edge_mlp(33, 31, 33),
    "edge_mlp_64": edge_mlp(64, 64, 65, size=7),
    "edge_mlp_1_1_1": edge_mlp(1, 1, 1, index=DType.i64),
    "edge_mlp_5_3_2_f64": edge_mlp(5, 3, 2, DType.f64, size=1),
    "online_4_16": online_attention(4, 16),
    "online_1_33": online_attention(1, 33, size=1),
    "online_3_5_f64": online_attention(3, 5, DType.f64, size=2),
    "two_ends": two_ends(),
    "reindexed": reindexed(),
    "reindexed_i64": reindexed(DType.i64),
    "node_mlp_31_33": node_mlp(31, 33),
    "node_mlp_16_5_f64": node_mlp(16, 5, DType.f64, size=1),
    "node_stages_31_33": node_stages(31, 33),
    "row_sums_31_64": row_sums(31, 64),
    "node_stages_64_17_f64": node_stages(64, 17, DType.f64, size=8),
}


def assert_same(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    assert got.keys() == want.keys()
    for name, expected in want.items():
        rtol = RTOL.get(expected.dtype, 0.0)
        torch.testing.assert_close(
            got[name], expected, rtol=rtol, atol=rtol, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("graph", DEGREES)
@pytest.mark.parametrize("name", KERNELS)
def test_compiled_equals_interpreted(name: str, graph: str) -> None:
    case = case_for(KERNELS[name], DEGREES[graph])
    verify(case.kernel)
    one, two = compiled(case, threads=1), compiled(case, threads=2)
    assert_same(one, interpreted(case))
    for result in one:
        assert torch.equal(one[result], two[result]), f"{result} depends on the number of threads"


@pytest.mark.parametrize(
    "name", ["spmm_sum_33_ahead", "spmm_max_33", "sddmm_33", "sddmm_max_31", "totals_9_f64", "online_4_16"]
)
def test_nan_and_inf_travel_as_in_torch(name: str) -> None:
    case = case_for(KERNELS[name], DEGREES["mixed"], special=True)
    want = interpreted(case)
    assert any(result.isnan().any() for result in want.values() if result.dtype.is_floating_point)
    assert_same(compiled(case), want)


def test_chunks_do_not_change_what_rows_hold() -> None:
    case = case_for(KERNELS["attention_4_16"], DEGREES["hub"])
    small, large = compiled(case, chunk=1), compiled(case, chunk=100)
    assert torch.equal(small["y"], large["y"])


@pytest.mark.parametrize("size", [1, 3, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("widths", "dtype"), [((7, 33, 1), DType.f32), ((20, 64, 130), DType.f32), ((5, 31, 65), DType.f64)]
)
def test_the_size_of_tiles_changes_no_bit(widths: tuple[int, int, int], dtype: DType, size: int) -> None:
    """A later kernel computes messages again in other tiles, and compares them for equality with their maximum."""
    degrees = (1, 2, 3, 4, 5, 6, 7, 8, 0, 31, 33, 13)
    of_two = compiled(case_for(edge_mlp(*widths, dtype, size=16), degrees), chunk=3)
    got = compiled(case_for(edge_mlp(*widths, dtype, size=size), degrees), chunk=5)
    for name in ("y", "ties", "m"):
        assert torch.equal(got[name], of_two[name]), name


def test_equal_edges_are_tied_wherever_they_lie() -> None:
    """All edges come from one node: every element of every message is a maximum."""
    case = case_for(edge_mlp(33, 64, 33, size=6), (1, 2, 3, 4, 5, 11, 40))
    case.buffers["src"].zero_()
    got = compiled(case)["ties"]
    assert torch.equal(got, torch.tensor([1.0, 2, 3, 4, 5, 11, 40])[:, None].expand(7, 33))


def test_uneven_and_empty_chunks() -> None:
    case = case_for(KERNELS["totals_9_f64"], DEGREES["mixed"])
    tensors, sizes = arguments(case)
    function = kernel_cache.load(print_kernel(case.kernel), case.kernel.name)
    want = interpreted(case)
    function([tensor.data_ptr() for tensor in tensors], sizes, torch.tensor([0, 0, 5, 5, 7]), 2)
    assert_same(case.results, want)


# ---------------------------------------------------------------- operators


def all_operators(dtype: DType, without: tuple[Op, ...] = ()) -> tuple[Kernel, dict[str, DType]]:
    """One output for each operator on `dtype`, over rows of a and b, and for pow with each short exponent."""
    a, b = Load("a", (Var("v"), Var("c"))), Load("b", (Var("v"), Var("c")))
    less = Call(Op.lt, (a, b))
    values: dict[str, tuple[Expr, DType]] = {}
    for op in Op:
        if supports(op, dtype) and op not in without:
            args: tuple[Expr, ...] = (less, a, b) if op is Op.where else (a, b)[: op.facts.arity]
            values[f"{op.value}_out"] = (Call(op, args), result_type(op, dtype))
    if dtype.is_float:
        for i, exponent in enumerate((0.0, 1.0, 2.0, 3.0, 0.5, -0.5, -1.0, -2.0, 1.7)):
            values[f"power_{i}"] = (Call(Op.pow, (a, Lit(exponent, dtype))), dtype)
        values["to_bool"] = (CastTo(a, DType.bool), DType.bool)
    else:
        values["to_f32"] = (CastTo(a, DType.f32), DType.f32)
        values["to_i8"] = (CastTo(a, DType.i8), DType.i8)
    width = 8
    body = Lanes(
        (("c", width),), tuple(Store(name, (Var("v"), Var("c")), value) for name, (value, _) in values.items())
    )
    buffers = [Buffer(name, Role.input, dtype, "N", (width,)) for name in ("a", "b")]
    buffers += [Buffer(name, Role.output, out, "N", (width,)) for name, (_, out) in values.items()]
    kernel = Kernel(f"operators_{dtype.value}", "v", ("N",), DType.i32, (), tuple(buffers), (), (body,))
    return kernel, {name: out for name, (_, out) in values.items()}


def extreme(dtype: DType, count: int, seed: int) -> Tensor:
    """Random values with the edges of the type among them."""
    gen = torch.Generator().manual_seed(seed)
    kind = TORCH[dtype]
    if dtype is DType.bool:
        return torch.randint(2, (count,), generator=gen).bool()
    if not dtype.is_float:
        info = torch.iinfo(kind)
        edges = torch.tensor([info.min, info.max, 0, 1], dtype=kind)
        values = torch.randint(max(-1000, info.min), min(1000, info.max), (count,), generator=gen).to(kind)
    else:
        edges = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.0, -1.0, 1e30, -1e30, 1e-30])
        spread = 10.0 ** torch.randint(-3, 3, (count,), generator=gen)
        values = (torch.randn(count, generator=gen, dtype=torch.float64) * spread).to(kind)
    values[: 4 * len(edges)] = edges.repeat(4)[torch.randperm(4 * len(edges), generator=gen)].to(kind)
    return values


def operators_case(dtype: DType, buffers: dict[str, Tensor]) -> tuple[Case, tuple[str, ...]]:
    """A kernel of every operator on the buffers a and b of equal shape, and the names of its results."""
    kernel, results = all_operators(dtype)
    shape = buffers["a"].shape
    outputs = {b.name: torch.zeros(shape, dtype=TORCH[b.dtype]) for b in kernel.buffers if b.role is Role.output}
    return Case(kernel, buffers | outputs, {}, {"N": shape[0]}), tuple(results)


@pytest.mark.parametrize("dtype", TORCH)
def test_operators_mean_what_torch_means(dtype: DType) -> None:
    rows = 40
    buffers = {name: extreme(dtype, rows * 8, seed).view(rows, 8) for seed, name in enumerate(("a", "b"))}
    case, results = operators_case(dtype, buffers)
    verify(case.kernel)
    # float32 functions of PyTorch differ from processor to processor, float64 rounded to float32 does not
    wide = operators_case(DType.f64, {n: b.double() for n, b in buffers.items()})[0] if dtype is DType.f32 else case
    got, want = compiled(case), interpreted(wide)
    # Four units in the last place of a transcendental function.
    rtol = {DType.f32: 5e-7, DType.f64: 1e-15}.get(dtype, 0.0)
    for name in results:
        torch.testing.assert_close(
            got[name],
            want[name].to(got[name].dtype),
            rtol=rtol,
            atol=torch.finfo(torch.float32).tiny if dtype is DType.f32 else 0.0,
            equal_nan=True,
            msg=lambda m, n=name: f"{n} of {dtype}: {m}",
        )


def unary(op: Op, dtype: DType) -> Kernel:
    body = Store("y", (Var("v"),), Call(op, (Load("x", (Var("v"),)),)))
    buffers = (Buffer("x", Role.input, dtype, "N", ()), Buffer("y", Role.output, dtype, "N", ()))
    return Kernel(f"{op.value}_{dtype.value}", "v", ("N",), DType.i32, (), buffers, (), (body,))


@pytest.mark.parametrize(
    ("op", "dtype", "low", "high", "ulps"),
    [
        (Op.exp, DType.f32, -104.0, 89.0, 2),
        (Op.exp, DType.f64, -746.0, 710.0, 2),
        (Op.log, DType.f32, 1e-45, 5.0, 2),
        (Op.log, DType.f32, 5.0, 3e38, 2),
        (Op.log1p, DType.f32, -0.999, 5.0, 4),
        (Op.tanh, DType.f32, -10.0, 10.0, 3),
        (Op.sigmoid, DType.f32, -88.0, 100.0, 4),
        (Op.sigmoid, DType.f64, -700.0, 700.0, 4),
    ],
)
def test_own_functions_are_accurate(op: Op, dtype: DType, low: float, high: float, ulps: int) -> None:
    kind = np.float32 if dtype is DType.f32 else np.float64
    x = np.linspace(low, high, 200_003).astype(kind)
    y = torch.zeros(len(x), dtype=TORCH[dtype])
    case = Case(unary(op, dtype), {"x": torch.from_numpy(x), "y": y}, {}, {"N": len(x)})
    got = compiled(case, chunk=100_000)["y"].numpy()
    wide = x.astype(np.longdouble)
    with np.errstate(over="ignore"):
        exact = {
            Op.exp: np.exp, Op.log: np.log, Op.log1p: np.log1p, Op.tanh: np.tanh,
            Op.sigmoid: lambda t: 1 / (1 + np.exp(-t)),
        }[op](wide)  # fmt: skip
        nearest = exact.astype(kind)
        finite = np.isfinite(nearest)
        assert np.array_equal(np.isinf(got), ~finite)
        unit = np.spacing(np.abs(nearest[finite]))
        error = np.abs(got[finite].astype(np.longdouble) - exact[finite]) / unit
    assert float(error.max()) <= ulps, f"{float(error.max())} ulp at {x[finite][error.argmax()]}"


# ---------------------------------------------------------------- text


@pytest.mark.parametrize("dtype", [DType.bf16, DType.f16])
@pytest.mark.parametrize("name", ["spmm", "sddmm", "totals"])
def test_half_precision_is_rounded_once(name: str, dtype: DType) -> None:
    """A stored number is the result of float32 arithmetic, rounded as torch rounds."""
    needs_float16(dtype)
    plain = {"spmm": spmm(33, dtype=dtype), "sddmm": sddmm(33, dtype=dtype), "totals": totals(3, dtype)}[name]
    kernel = widened(plain)
    verify(kernel)
    case = case_for(kernel, DEGREES["mixed"], special=name != "totals")
    assert any(t.dtype == HALVES[dtype] for t in case.buffers.values())
    got, want = compiled(case), interpreted(case)
    for result, expected in want.items():
        rtol = 2.0**-7 if expected.dtype == HALVES[dtype] else 2e-5  # float32 sums may differ in the last bit
        torch.testing.assert_close(got[result], expected, rtol=rtol, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", [DType.bf16, DType.f16])
@pytest.mark.parametrize("widths", [(1, 1, 1), (3, 4, 5), (33, 31, 33), (64, 64, 16)], ids=str)
def test_products_of_half_precision(widths: tuple[int, int, int], dtype: DType) -> None:
    """Operands are taken as half precision, sums are float32: as the interpreter has it, and torch's products."""
    needs_float16(dtype)
    kernel = widened(edge_mlp(*widths, dtype, size=7))
    verify(kernel)
    case = case_for(kernel, DEGREES["mixed"])
    got, want = compiled(case), interpreted(case)
    for result, expected in want.items():
        rtol = 2.0**-6 if expected.dtype == HALVES[dtype] else 2e-3  # where a sum rounds to a neighbour on the way
        torch.testing.assert_close(got[result], expected, rtol=rtol, atol=2.0**-6)


@pytest.mark.parametrize("dtype", [DType.f64, DType.f32, DType.i64, DType.bool])
@pytest.mark.parametrize("width", [7, 10, 16])
def test_one_number_for_all_lanes(width: int, dtype: DType) -> None:
    """Lanes that read nothing are vectors of what they store."""
    number = Lit(dtype is DType.bool or 3, dtype) if not dtype.is_float else Lit(3.0, dtype)
    store = Store("y", (Var("v"), Var("c")), number)
    kernel = Kernel(
        f"constant_{width}_{dtype.value}", "v", ("N", "E"), DType.i32, (),
        (Buffer("y", Role.output, dtype, "N", (width,)),), (), (Lanes((("c", width),), (store,)),),
    )  # fmt: skip
    case = case_for(kernel, (0, 0, 0))
    assert torch.equal(compiled(case)["y"], interpreted(case)["y"])


def test_names_that_cpp_has_taken() -> None:
    kernel, text = spmm(4), show(spmm(4))
    names = {"x": "float", "y": "new", "acc": "ptrs", "c": "_c", "by_dst": "gw_max"}
    for old, new in names.items():
        text = re.sub(rf"\b{old}\b", new, text)
    case = case_for(kernel, DEGREES["mixed"])
    buffers = {names.get(name, name): tensor for name, tensor in case.buffers.items()}
    got = compiled(Case(parse(text), buffers, {"gw_max": case.indptr["by_dst"]}, case.sizes))
    assert_same({"y": got["new"]}, interpreted(case))


def test_text_depends_on_the_kernel_alone() -> None:
    assert print_kernel(attention(4, 16)) == print_kernel(attention(4, 16))
    assert "elementary.h" in print_kernel(attention(4, 16)) and "elementary.h" not in print_kernel(spmm(8))


def test_golden_text_of_a_small_kernel(golden: Callable[[str, str], None]) -> None:
    golden("cpp_spmm.txt", print_kernel(spmm(4, ahead=2)))


# ---------------------------------------------------------------- sanitizers

_HARNESS = r"""
#include <cstdio>
#include "pool.h"
// stdin: number of pointers, of sizes, of chunk boundaries, threads; bytes of each pointer; then everything's content
static int64_t number() { int64_t n = 0; if (fread(&n, 8, 1, stdin) != 1) abort(); return n; }
static void* content(int64_t bytes) {
  void* block = malloc(bytes);  // exactly as large as the tensor, so that one element too far is seen
  if (bytes && fread(block, bytes, 1, stdin) != 1) abort();
  return block;
}
int main() {
  gw_use_threads(enter_threads);
  const int64_t num_ptrs = number(), num_sizes = number(), num_bounds = number(), threads = number();
  int64_t* const bytes = static_cast<int64_t*>(content(num_ptrs * 8));
  void** const ptrs = static_cast<void**>(malloc(num_ptrs * sizeof(void*)));
  for (int64_t i = 0; i < num_ptrs; ++i) ptrs[i] = content(bytes[i]);
  const int64_t* const sizes = static_cast<int64_t*>(content(num_sizes * 8));
  const int64_t* const bounds = static_cast<int64_t*>(content(num_bounds * 8));
  if (KERNEL(ptrs, sizes, bounds, num_bounds - 1, (int32_t)threads)) return 3;
  for (int64_t i = 0; i < num_ptrs; ++i) if (bytes[i]) fwrite(ptrs[i], bytes[i], 1, stdout);
  return 0;
}
"""


@pytest.mark.sanitize
@pytest.mark.parametrize(
    "name",
    [
        "spmm_sum_33_ahead",
        "sddmm_max_31",
        "attention_3_5_f64",
        "totals_9_f64",
        "reindexed",
        "node_mlp_31_33",
        "node_stages_31_33",
        "node_stages_64_17_f64",
        "online_4_16",
        "online_3_5_f64",
        "edge_mlp_33_31_33",
        "edge_mlp_5_3_2_f64",
    ],
)
def test_sanitized(name: str, tmp_path: Path) -> None:
    kernel = KERNELS[name]
    source = tmp_path / "kernel.cpp"
    source.write_text(print_kernel(kernel) + _HARNESS.replace("KERNEL", kernel.name))
    program = build_sanitized(source, f"-I{Path(__file__).parents[1] / 'native'}")
    for degrees in DEGREES.values():
        case = case_for(kernel, degrees)
        tensors, sizes = arguments(case)
        bounds = chunks_of(case.sizes["N"], 2)
        arrays = [tensor.numpy() for tensor in tensors]
        counts = np.array([len(arrays), len(sizes), len(bounds), 2], dtype=np.int64)
        lengths = np.array([array.nbytes for array in arrays], dtype=np.int64)
        tail = [np.array(sizes, dtype=np.int64), bounds.numpy()]
        stdin = b"".join(array.tobytes() for array in (counts, lengths, *arrays, *tail))
        done = subprocess.run([str(program)], input=stdin, capture_output=True, env=ENVIRONMENT, check=False)
        assert done.returncode == 0, done.stderr.decode()
        want, at = interpreted(case), 0
        for buffer_name, array in zip(["indptr"] * len(kernel.csrs) + list(case.buffers), arrays, strict=True):
            raw = np.frombuffer(done.stdout, dtype=array.dtype, count=array.size, offset=at).reshape(array.shape)
            at += array.nbytes
            if buffer_name in want:
                assert_same({"r": torch.from_numpy(raw.copy())}, {"r": want[buffer_name]})
