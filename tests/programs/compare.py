"""Comparisons up to rounding: the one place that says how large a difference may be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from graphweave.core.types import DType
from graphweave.ir.message.aten import DTYPE_OF

_ROUNDING = {DType.f64: 2.0**-53, DType.f32: 2.0**-24, DType.f16: 2.0**-11, DType.bf16: 2.0**-8}
"""Half a unit in the last place, relative to the number."""

_STEPS = 64.0
"""Roundings a value may collect outside its longest sum; exp, tanh and the like count for a few each."""


def tolerance(dtype: DType, reduction_length: int = 1) -> float:
    """Relative error that `dtype` may show: rounding walks randomly, so a sum of n terms in another order grows as
    sqrt(n); `_STEPS` roundings besides. 0 for integers and bool, which are exact."""
    return _ROUNDING[dtype] * (_STEPS + 8.0 * math.sqrt(reduction_length)) if dtype.is_float else 0.0


def assert_close(
    actual: Tensor,
    expected: Tensor,
    dtype: DType | None = None,
    reduction_length: int = 1,
    *,
    floor: float = 0.0,
) -> None:
    """`actual` has the shape, dtype, NaN and infinities of `expected`, and its numbers within `tolerance`.

    Errors are relative to the largest finite magnitude in `expected`, or to `floor` where that is more: sums that
    cancel lose digits of their terms, so `floor` is the size of the terms. `dtype` is the precision computed in,
    that of `expected` where None; `reduction_length` the most terms that any sum in between has.
    """
    assert actual.shape == expected.shape, f"shape {list(actual.shape)}, expected {list(expected.shape)}"
    assert actual.dtype == expected.dtype, f"{actual.dtype}, expected {expected.dtype}"
    precision = dtype or DTYPE_OF[expected.dtype]
    if not expected.dtype.is_floating_point:
        _same(actual, expected, "exact values differ")
        return
    got, want = actual.detach().double(), expected.detach().double()
    _same(got.isnan(), want.isnan(), "NaN differ")
    finite = want.isfinite()
    _same(got.isfinite(), finite, "infinities differ")
    _same(
        torch.where(finite, 0.0, got).nan_to_num(0.0),
        torch.where(finite, 0.0, want).nan_to_num(0.0),
        "infinities differ",
    )
    error = torch.where(finite, (got - want).abs(), 0.0)
    if not error.numel():
        return
    scale = max(float(torch.where(finite, want.abs(), 0.0).max()), floor, torch.finfo(expected.dtype).tiny)
    worst = float(error.max()) / scale
    allowed = tolerance(precision, reduction_length)
    if worst > allowed:
        place = tuple(int(i) for i in torch.unravel_index(error.argmax(), error.shape))
        raise AssertionError(
            f"relative error {worst:.3g}, allowed {allowed:.3g} ({precision.value}, sums of {reduction_length}):"
            f" at {place} got {float(got[place])!r}, expected {float(want[place])!r}"
        )


def assert_all_close(
    actual: Sequence[Any], expected: Sequence[Any], reduction_length: int = 1, *, floor: float = 0.0
) -> None:
    """Two lists of outputs, each close, None matching None; the message names the output."""
    assert len(actual) == len(expected), f"{len(actual)} outputs, expected {len(expected)}"
    for i, (got, want) in enumerate(zip(actual, expected, strict=True)):
        if want is None:
            assert got is None, f"output {i}: expected none, got {got!r}"
            continue
        try:
            assert_close(got, want, reduction_length=reduction_length, floor=floor)
        except AssertionError as wrong:
            raise AssertionError(f"output {i}: {wrong}") from None


def _same(got: Tensor, want: Tensor, what: str) -> None:
    different = got != want
    count = int(different.sum())
    if count:
        place = tuple(int(i) for i in different.nonzero()[0])
        raise AssertionError(f"{what} at {count} places, first {place}: got {got[place]}, expected {want[place]}")
