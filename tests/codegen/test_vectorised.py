"""Lanes are vectors in the printed text and in the machine code of a sample of kernels."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from graphweave.codegen.cpp import print_kernel
from graphweave.core.types import DType, Fold
from graphweave.ir.loop.parse import parse
from tests.codegen.vectorised import LaneLoop, lane_loops, offences
from tests.loop_support import attention, case_for, compiled, interpreted, online_attention, sddmm, spmm, totals
from tests.sanitizer_support import run_sanitized
from tests.support import by_default

MASKS = """
kernel masks(v < N, E; i32) {
  csr by_dst
  column src: i32[E; ]
  in x: f32[N; WIDTH]
  in keep: bool[N; WIDTH]
  in label: i64[N; ]
  out y: f32[N; WIDTH]
  out seen: bool[N; WIDTH]
  total t: f32[; WIDTH] sum
  do
    alloc acc: f32[WIDTH] = 0
    edges k in by_dst[v] {
      let u: i32 = src[k]
      lanes c < WIDTH { acc[c] sum= where(keep[u, c], x[u, c], 0.0:f32) }
    }
    lanes c < WIDTH {
      let positive: bool = logical_and(gt(acc[c], 0.0:f32), logical_not(keep[v, c]))
      y[v, c] = where(positive, acc[c], mul(x[v, c], cast(eq(c, label[v]), f32)))
      seen[v, c] = logical_or(positive, isnan(x[v, c]))
      t[c] sum= cast(positive, f32)
    }
}
"""
"""A kernel in which bools meet floats, whose loops compilers did not vectorise by themselves."""

STEPS = """
kernel steps(v < N; i32) {
  in x: f32[N; 24, 3]
  in w: f64[N; 40]
  out y: f32[N; 3, 24]
  out z: f32[N; 40]
  out s: f64[N; ]
  do
    lanes i < 3, j < 24 { y[v, i, j] = exp(x[v, j, i]) }
    lanes c < 40 { z[v, c] = add(cast(w[v, c], f32), x[v, {1*c + 0 // 3 % 24}, {1*c + 0 % 3}]) }
    fold f: f64 = sum c < 40 { let d: f64 = w[v, c] yield mul(d, cast({2*c + 1}, f64)) }
    s[v] = f
}
"""
"""A kernel with elements that do not lie side by side, and with two types in one loop."""

ACROSS = """
kernel across(v < N; i32) {
  in x: DTYPE[N; CHANNELS, 9]
  in w: DTYPE[N; CHANNELS]
  in g: DTYPE[N; CHANNELS, WIDTH]
  out y: DTYPE[N; 3, WIDTH]
  out s: DTYPE[N; 9]
  out one: DTYPE[N; ]
  do
    lanes i < 3, k < WIDTH {
      fold t: DTYPE = FOLD c < CHANNELS { let a: DTYPE = mul(x[v, c, i], w[v, c]) yield mul(a, g[v, c, k]) }
      y[v, i, k] = t
    }
    lanes i < 9 { fold t2: DTYPE = FOLD c < CHANNELS { yield mul(x[v, c, i], w[v, c]) } s[v, i] = t2 }
    fold t3: DTYPE = FOLD c < CHANNELS { yield mul(x[v, c, {4}], w[v, c]) }
    one[v] = t3
}
"""
"""A kernel with folds over channels for each component, whose terms lie a component's row apart."""

SAMPLE = {
    "spmm_max_64": spmm(64, Fold.max),
    "sddmm_33_f64": sddmm(33, Fold.sum, DType.f64),
    "attention_4_16": attention(4, 16),
    "online_2_32": online_attention(2, 32),
    "totals_31": totals(31),
    "masks_64": parse(MASKS.replace("WIDTH", "64")),
    "masks_31": parse(MASKS.replace("WIDTH", "31")),
    "steps": parse(STEPS),
}
DEGREES = (3, 0, 1, 5, 0, 2, 9)


@pytest.mark.parametrize("name", SAMPLE)
def test_no_loop_over_lanes_computes_number_by_number(name: str, tmp_path: Path) -> None:
    text = print_kernel(SAMPLE[name])
    assert any(loop.lanes >= 16 for loop in lane_loops(text))
    assert offences(text, name, tmp_path) == []


def test_a_loop_of_numbers_is_found(tmp_path: Path) -> None:
    """Each number needs the one before, so no compiler makes vectors of the loop."""
    text = """#include <graphweave/base.h>
extern "C" void chain(float* x) {
  for (int64_t c = 0; c < 64; ++c) {
    x[c + 1] = x[c] * x[c + 1] + 1.0f;
  }
}
extern "C" void independent(float* __restrict__ x, const float* __restrict__ y) {
  for (int64_t c = 0; c < 64; ++c) {
    x[c] = y[c] * y[c] + 1.0f;
  }
}
"""
    assert lane_loops(text) == [LaneLoop(3, 5, 64), LaneLoop(8, 10, 64)]
    (found,) = offences(text, "chain", tmp_path)
    assert found.lanes == 64 and any(re.match("v?mulss|v?fm", name) for name in found.instructions)


@pytest.mark.parametrize("width", [1, 4, 7, 31, 33, 64])
@pytest.mark.parametrize("special", [False, True], ids=["numbers", "nan_and_inf"])
def test_bools_and_floats_in_one_loop(width: int, special: bool) -> None:
    case = case_for(parse(MASKS.replace("WIDTH", str(width))), DEGREES, special=special)
    case.buffers["label"].copy_(torch.arange(7) % 3)
    got, want = compiled(case), interpreted(case)
    for name, expected in want.items():
        torch.testing.assert_close(got[name], expected, equal_nan=True, rtol=1e-5, atol=1e-5)


def test_steps_and_mixed_types() -> None:
    case = case_for(parse(STEPS), DEGREES)
    got, want = compiled(case), interpreted(case)
    for name, expected in want.items():
        torch.testing.assert_close(got[name], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("width", "dtype", "fold", "channels"),
    [(5, "f32", "sum", 16), (3, "f64", "max", 11), (17, "f32", "sum", 41), (4, "i64", "sum", 12), (8, "f64", "mul", 8)],
)
def test_folds_whose_terms_lie_apart_are_vectors_across_the_folds(
    width: int, dtype: str, fold: str, channels: int
) -> None:
    sizes = {"WIDTH": str(width), "DTYPE": dtype, "FOLD": fold, "CHANNELS": str(channels)}
    kernel = parse(re.sub("|".join(sizes), lambda word: sizes[word[0]], ACROSS))
    assert print_kernel(kernel).count("gw_fold_each") == 2
    case = case_for(kernel, DEGREES)
    got, want = compiled(case), interpreted(case)
    for name, expected in want.items():
        torch.testing.assert_close(got[name], expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(got["s"][:, 4], got["one"])  # with the bits of a fold that is computed alone


def test_a_sum_has_the_same_bits_whatever_else_its_lanes_compute() -> None:
    """A wider type in the loop shortens its vectors, but does not change the number of partial sums."""
    texts = [
        f"""kernel sums(v < N; i32) {{
  in x: f32[N; 77]
  out y: f32[N; ]
  do
    fold f: f32 = sum c < 77 {{ yield {value} }}
    y[v] = f
}}"""
        for value in ("x[v, c]", "where(lt(cast(c, f64), 1e9:f64), x[v, c], 0.0:f32)")
    ]
    plain, wide = (compiled(case_for(parse(text), DEGREES))["y"] for text in texts)
    assert torch.equal(plain, wide)


def test_loops_that_are_no_vectors() -> None:
    """These are loops of few lanes, and loops in which all lanes write to one place in order."""
    text = print_kernel(spmm(3))
    assert "gw_load" not in text and "for (int64_t c = 0; c < 3; ++c)" in text


@pytest.mark.parametrize("width", [1, 2, 12, 31, 33])
def test_sums_of_a_block_of_rows_fill_whole_lines(width: int) -> None:
    """Whole vectors are stored to a total, so nothing else may lie behind its elements."""
    text = print_kernel(parse(MASKS.replace("WIDTH", str(width))))
    (elements,) = re.findall(r"alignas\(64\) float t_block\[(\d+)\]", text)
    assert int(elements) == -(-width // 16) * 16
    assert f"gw_add_to<{width}>(t_sum, t_block);" in text


@pytest.mark.sanitize
@pytest.mark.parametrize("widths", by_default([(1, 31), (2, 5, 12, 33)], (1, 31)))
def test_tails_stay_in_their_arrays(widths: tuple[int, ...]) -> None:
    run_sanitized(
        f"""
import torch
from tests.loop_support import case_for, compiled, interpreted
from tests.codegen.test_vectorised import DEGREES, MASKS, STEPS
from graphweave.ir.loop.parse import parse
for text in (*(MASKS.replace("WIDTH", str(w)) for w in {widths}), STEPS):
    case = case_for(parse(text), DEGREES)
    got, want = compiled(case), interpreted(case)
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=1e-5, atol=1e-5)
"""
    )
