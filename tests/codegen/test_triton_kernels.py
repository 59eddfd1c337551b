"""Generated Triton against the interpreter of the loop IR, on awkward graphs, in groups of rows of any size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from graphweave.analysis.facts import Facts
from graphweave.codegen.triton import print_kernel, programs_of_a_row
from graphweave.core.errors import IRError
from graphweave.core.options import options_for
from graphweave.core.types import DType, Fold, Op
from graphweave.execute import triton_launch, triton_step
from graphweave.execute.triton_launch import EDGES_OF_LONG_ROWS, Launches, TritonJob, launches_of
from graphweave.execute.triton_step import Loaded
from graphweave.ir.loop.nodes import Kernel, Role
from graphweave.ir.loop.parse import parse
from graphweave.runtime import device_formats
from graphweave.runtime.index import Index
from graphweave.runtime.row_pieces import row_pieces
from graphweave.runtime.triton_kernel import Launch, load
from tests.codegen.test_cpp_kernels import TORCH, all_operators, assert_same, extreme
from tests.codegen.test_divide import by_pieces
from tests.codegen.triton_support import by_triton, needs_interpreter, needs_triton
from tests.loop_support import (
    DEGREES,
    Case,
    attention,
    case_for,
    edge_mlp,
    interpreted,
    node_mlp,
    online_attention,
    reindexed,
    row_sums,
    sddmm,
    spmm,
    totals,
    two_ends,
)
from tests.program_support import assert_computes, compiled
from tests.programs.random_programs import random_program

KERNELS = {
    "spmm_sum_1": spmm(1),
    "spmm_sum_31_f64_i64": spmm(31, dtype=DType.f64, index=DType.i64),
    "spmm_max_33": spmm(33, Fold.max),
    "spmm_min_31_f64": spmm(31, Fold.min, DType.f64),
    "spmm_mul_3": spmm(3, Fold.mul),
    "spmm_sum_i32": spmm(33, dtype=DType.i32),
    "spmm_max_i64": spmm(5, Fold.max, DType.i64),
    "sddmm_1": sddmm(1, index=DType.i32),
    "sddmm_33": sddmm(33),
    "sddmm_min_33_f64": sddmm(33, Fold.min, DType.f64),
    "sddmm_max_i32": sddmm(33, Fold.max, DType.i32),
    "totals_1": totals(1),
    "totals_9_f64": totals(9, DType.f64),
    "two_ends": two_ends(),
    "reindexed": reindexed(big=100),
    "reindexed_i64": reindexed(DType.i64, big=100),
    "node_mlp_31_33": node_mlp(31, 33),
    "node_mlp_16_5_f64": node_mlp(16, 5, DType.f64),
    "row_sums_7_17": row_sums(7, 17),
    "node_mlp_40_70_f64": node_mlp(40, 70, DType.f64),
}


@needs_interpreter
@pytest.mark.parametrize("name", KERNELS)
def test_compiled_equals_interpreted(name: str) -> None:
    for degrees in DEGREES.values():
        case = case_for(KERNELS[name], degrees)
        assert_same(by_triton(case, Launches(Launch(4 if case.kernel.tile is None else 16, 16))), interpreted(case))


WIDE = {
    "cut": "lanes c < 9000 { acc[c] = x[v, c] } edges k in by_dst[v] { lanes c < 9000 { acc[c] sum= x[src[k], c] } } ",
    "whole": "fold s: f32 = sum c < 9000 { yield x[v, c] } ",
}


@needs_interpreter
@pytest.mark.parametrize("how", WIDE)
def test_rows_too_wide_for_a_program_are_shared_out(how: str) -> None:
    """Rows are shared out only where every element is treated alike; a sum over all needs them in one program."""
    kernel = parse(f"""
kernel wide(v < N, E; i32) {{
  csr by_dst
  column src: i32[E; ]
  in x: f32[N; 9000]
  out y: f32[N; 9000]
  do
    {"alloc acc: f32[9000] = 0.0" if how == "cut" else ""}
    {WIDE[how]}
    lanes c < 9000 {{ y[v, c] = {"mul(acc[c], 0.5:f32)" if how == "cut" else "mul(x[v, c], s)"} }}
}}
""")
    assert programs_of_a_row(kernel) == (18 if how == "cut" else 1)
    case = case_for(kernel, (2, 0))
    done = by_triton(case, launches_of(kernel))["y"]
    x, (src, indptr) = case.buffers["x"], (case.buffers["src"], case.indptr["by_dst"])
    if how == "cut":
        want = 0.5 * (x + torch.stack([x[src[a:b].long()].sum(0) for a, b in pairwise(indptr.tolist())]))
    else:
        want = x * x.sum(1, keepdim=True)
    torch.testing.assert_close(done, want, rtol=1e-4, atol=1e-4)


@needs_interpreter
@pytest.mark.parametrize(("rows", "edges"), [(1, 16), (2, 2), (16, 1), (32, 64)])
def test_groups_of_any_size(rows: int, edges: int) -> None:
    for name in ("spmm_max_33", "sddmm_33", "totals_9_f64"):
        case = case_for(KERNELS[name], DEGREES["mixed"])
        assert_same(by_triton(case, Launches(Launch(rows, edges)), ordered=rows > 1), interpreted(case))


@needs_interpreter
@pytest.mark.parametrize("share", [1, 2, 7])
def test_long_rows_are_divided(share: int) -> None:
    """The result does not depend on which rows count as long."""
    for name in ("spmm_max_33", "sddmm_33", "totals_9_f64", "reindexed"):
        degrees = DEGREES["hub"] + DEGREES["mixed"]
        case = case_for(KERNELS[name], degrees)
        how = Launches(Launch(4, 4), Launch(2, 4), many=1, share=share, size=6)
        assert_same(by_triton(case, how), interpreted(case))


@needs_interpreter
@pytest.mark.parametrize("kernel", [attention(2, 5), edge_mlp(3, 4, 5), sddmm(33)], ids=lambda kernel: kernel.name)
def test_pieces_with_stashes_and_products(kernel: Kernel) -> None:
    """Schedules for Triton have no stashes, and launches do not divide rows whose edges meet matrices; both work."""
    case = case_for(kernel, DEGREES["hub"])

    def run(kernel: Kernel, tensors: dict[str, Tensor], indptr: dict[str, Tensor], sizes: dict[str, int]) -> None:
        rows, function = sizes[kernel.sizes[0]], load(print_kernel(kernel), kernel.name)
        job = TritonJob(kernel, function, {**tensors, **indptr}, None, 0, rows, Launch(4, 16))
        triton_launch.run([job], [(b, tensors[b.name]) for b in kernel.buffers if b.role is Role.total])

    assert_same(by_pieces(case, DEGREES["hub"], 7, run), interpreted(case))


@needs_interpreter
@pytest.mark.parametrize("name", ["spmm_max_33", "sddmm_33", "totals_9_f64"])
def test_nan_and_inf_travel_as_in_torch(name: str) -> None:
    case = case_for(KERNELS[name], DEGREES["mixed"], special=True)
    want = interpreted(case)
    assert any(result.isnan().any() for result in want.values() if result.dtype.is_floating_point)
    assert_same(by_triton(case, Launches(Launch(4, 16))), want)


@needs_interpreter
@pytest.mark.parametrize("dtype", TORCH)
def test_operators_mean_what_torch_means(dtype: DType) -> None:
    kernel, results = all_operators(dtype, without=(Op.atan2,))
    rows = 40
    buffers = {name: extreme(dtype, rows * 8, seed).view(rows, 8) for seed, name in enumerate(("a", "b"))}
    outputs = {name: torch.zeros(rows, 8, dtype=TORCH[kernel_dtype]) for name, kernel_dtype in results.items()}
    case = Case(kernel, buffers | outputs, {}, {"N": rows})
    got, want = by_triton(case, Launches(Launch(16, 1))), interpreted(case)
    for name in results:
        # a power computed by logarithms loses a bit for each doubling of the result
        rtol = {DType.f32: 1e-6, DType.f64: 2e-15}.get(dtype, 0.0) * (100 if name.startswith("po") else 1)
        torch.testing.assert_close(
            got[name], want[name], rtol=rtol, atol=0.0, equal_nan=True, msg=lambda m, n=name: f"{n} of {dtype}: {m}"
        )


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (attention(4, 16), "stash_width=0"),
        (edge_mlp(4, 4, 4), "stash_width=0"),
        (online_attention(4, 16), "online='never'"),
        (all_operators(DType.f32)[0], "atan2"),
        (reindexed(), "too large for the registers"),
    ],
)
def test_what_triton_cannot_say_is_refused(kernel: object, why: str) -> None:
    with pytest.raises(IRError, match=why):
        print_kernel(kernel)


def test_text_depends_on_the_kernel_alone() -> None:
    assert print_kernel(spmm(4)) == print_kernel(spmm(4))
    assert "gw_max" not in print_kernel(spmm(8))


ENDS = parse("""
kernel ends(v < N, E; i32) {
  csr by_dst
  column src: i32[E; ]
  column perm: i32[E; ]
  index other: i32[N; ]
  in x: f32[N; 33]
  in g: f32[N; 33]
  in h: f32[N; 33]
  out y: f32[E; ]
  do
    edges k in by_dst[v] {
      let e: i32 = perm[k]
      let t: i32 = other[v]
      fold dot: f32 = sum c < 33 { yield mul(x[src[k], c], mul(g[other[v], c], h[t, c])) }
      y[e] = mul(dot, g[v, {3}])
    }
}
""")
"""A value of the row, one at another row that the row names, and one at a row that the loop over edges names."""


def test_what_a_row_reads_is_loaded_once_ahead_of_its_edges() -> None:
    """FeatGraph's cached features of a node. A loop that stores would load them again in each of its steps."""
    ahead, walk = print_kernel(ENDS).split("for step in ")
    assert ahead.count("tl.load(g + ") == 2 and "tl.load(g + " not in walk
    assert "tl.load(other + " in ahead and "tl.load(other + " not in walk
    assert "tl.load(x + " in walk and "tl.load(h + " in walk  # at the edge, and at a row whose name the loop binds
    ahead, walk = print_kernel(sddmm(1000)).split("for step in ")
    assert "tl.load(g + " in walk  # too many for registers


@needs_interpreter
def test_values_loaded_ahead_of_edges_are_those_of_the_row() -> None:
    for degrees in DEGREES.values():
        case = case_for(ENDS, degrees)
        assert_same(by_triton(case, Launches(Launch(4, 16))), interpreted(case))


@needs_triton
def test_few_long_rows_are_all_divided() -> None:
    """As many programs as there are rows would leave a GPU idle."""
    how = Launches(Launch(4, 4), Launch(1, 32), many=1000, share=16)
    assert how.num_divided(100, 100 * EDGES_OF_LONG_ROWS) == 100
    assert how.num_divided(100, 100 * EDGES_OF_LONG_ROWS - 1) == 0
    assert how.num_divided(1600, 1 << 20) == 100
    assert Launches(Launch(4, 4)).num_divided(100, 1 << 20) == 0


@needs_triton
@pytest.mark.parametrize(("width", "warps", "programs"), [(5, 1, 4096), (5, 4, 1024), (1 << 14, 1, 512)])
def test_launches_with_totals_fill_a_gpu(width: int, warps: int, programs: int) -> None:
    """Each program leaves a part, so there are fewer of them where parts are large."""
    kernel = totals(width, DType.f32)
    job = TritonJob(kernel, load(print_kernel(kernel), kernel.name), {}, None, 0, 1 << 20, Launch(4, 4, warps))
    assert programs / 2 < job.programs <= programs
    assert job.programs * job.groups * 4 >= 1 << 20


@needs_interpreter
def test_launches_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that asked for them in each call spent most of its time on that."""
    case = case_for(KERNELS["spmm_max_33"], DEGREES["hub"])
    rows, indptr = case.sizes[case.kernel.sizes[0]], next(iter(case.indptr.values()))
    loaded, how = Loaded.of(case.kernel), Launches(Launch(4, 4), Launch(2, 4), many=1, share=1, size=6)
    monkeypatch.setattr(triton_step, "launches_of", None)
    index = Index(torch.arange(rows).repeat_interleave(indptr.diff()), rows)
    jobs = loaded.jobs(
        {**case.indptr, **case.buffers}, device_formats.by_degree(indptr), rows, index.num_edges, how,
        lambda cut: row_pieces(index, False, cut, how.size),
    )  # fmt: skip
    assert len(jobs) > 2


def test_golden_text_of_a_small_kernel(golden: Callable[[str, str], None]) -> None:
    golden("triton_spmm.txt", print_kernel(spmm(33)))


# ---------------------------------------------------------------- products of rows, if the schedule asks for them

PRODUCTS = tuple(n for n in range(60) if Facts(random_program(n, DType.f64)).row_products)
"""Random programs with products of rows."""


@needs_interpreter
@pytest.mark.parametrize("number", PRODUCTS[:8])
def test_products_of_rows_in_random_programs(number: int) -> None:
    program, options = random_program(number, DType.f64), replace(options_for("triton"), row_products=True)
    assert_computes(compiled(program, options), program)
