"""Numbers in the IRs: each is a number of Python's that its element type holds, and integers stay integers."""

from __future__ import annotations

import math
import struct
from ctypes import c_float
from typing import TypeAlias

from graphweave.core.errors import IRError
from graphweave.core.exact import exact
from graphweave.core.types import AnyFold, DType, Fold, OwnFold

Number: TypeAlias = float | int | bool
"""A number in an IR: a float for types of floating point, an int for integers, a bool for bool (`typed`). Integers
never pass through a float, which holds no more than 53 bits of them."""


def least(dtype: DType) -> Number:
    """The least value of `dtype`."""
    if dtype.is_float:
        return -math.inf
    return False if dtype is DType.bool else 0 if dtype is DType.u8 else -(2 ** (8 * dtype.itemsize - 1))


def greatest(dtype: DType) -> Number:
    """The greatest value of `dtype`."""
    if dtype.is_float:
        return math.inf
    return True if dtype is DType.bool else 2 ** (8 * dtype.itemsize - (dtype is not DType.u8)) - 1


def neutral(fold: AnyFold, dtype: DType) -> Number:
    """The result of the fold for no values at all. The sum of nothing is written 0 for every type."""
    if isinstance(fold, OwnFold):
        return fold.identity
    if fold in (Fold.max, Fold.min):
        return least(dtype) if fold is Fold.max else greatest(dtype)
    return typed(1, dtype) if fold is Fold.mul else 0


def holds(dtype: DType, value: Number) -> bool:
    """Whether `value` is a number of `dtype`, up to the rounding of floats."""
    if dtype.is_float or dtype is DType.bool:
        return dtype.is_float or value in (0, 1)
    return least(dtype) <= value <= greatest(dtype) and value == int(value)


def typed(value: Number, dtype: DType) -> Number:
    """`value` as Python's number for `dtype`: a float, an int or a bool. IRError if it is no number of `dtype`."""
    if not holds(dtype, value):
        raise IRError(f"{value!r} is no number of {dtype.value}")
    return bool(value) if dtype is DType.bool else float(value) if dtype.is_float else int(value)


def alike(a: Number, b: Number, dtype: DType) -> bool:
    """Whether `a` and `b` are the same number of `dtype`. 0.0 and -0.0 differ, NaN is the same as itself."""
    return bool(exact(typed(a, dtype)) == exact(typed(b, dtype)))


def is_neutral(value: Number, fold: AnyFold, dtype: DType) -> bool:
    """Whether `value` is what the fold gives for no values at all."""
    return alike(value, neutral(fold, dtype), dtype)


def any_other(value: Number) -> Number | None:
    """The number that stands for all floats like `value`, which have its sign and are, as it is, below 1/2, between 1/2
    and 1, or above 1. None for numbers that formulas look for: multiples of 1/2, integers, and what is not finite.

    Layers whose numbers are alike are computed in the same way: each layer of GCNII has a share of its own.
    """
    if not isinstance(value, float) or not math.isfinite(value) or (2 * value).is_integer():
        return None
    size = abs(value)
    return math.copysign(0.25 if size < 0.5 else 0.75 if size < 1 else 1.25, value)


# ---------------------------------------------------------------- conversions


def rounded(value: float, dtype: DType) -> float:
    """`value` as PyTorch rounds it to `dtype`, a type of floating point: 1e-16 is 0 in float16.

    It calls no PyTorch, which makes fake tensors of numbers while it compiles, in 1 ms each.
    """
    if dtype is DType.f64:
        return value
    single = c_float(value).value
    if dtype is DType.f32 or not math.isfinite(single):
        return single
    if dtype is DType.f16:
        try:
            return float(struct.unpack("e", struct.pack("e", single))[0])
        except OverflowError:
            return math.copysign(math.inf, single)
    (bits,) = struct.unpack("I", struct.pack("f", single))
    bits += 0x7FFF + (bits >> 16 & 1)  # to the nearest, and of two equally near to the even one
    return float(struct.unpack("f", struct.pack("I", bits & 0xFFFF0000))[0])


def converted(value: Number, before: DType, after: DType) -> Number | None:
    """`value`, a number of type `before`, as PyTorch converts it to `after`. None where that is not defined (an integer
    of a float that is too large) or not known here (an integer beyond 2^53 as a float32)."""
    number = rounded(float(value), before) if before.is_float else value
    if after is DType.bool:
        return number != 0
    if after.is_float:
        known = after is DType.f64 or float(number) == number or math.isnan(number)
        return rounded(float(number), after) if known else None
    if not before.is_float:
        low, high = int(least(after)), int(greatest(after))
        return (int(number) - low) % (high - low + 1) + low
    return int(number) if math.isfinite(number) and holds(after, math.trunc(number)) else None
