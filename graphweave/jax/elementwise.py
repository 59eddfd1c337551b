"""Primitives of JAX that compute each element by itself, as pointwise operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from graphweave.core.types import DType, Op, belongs
from graphweave.ir.message.nodes import Cast
from graphweave.jax.values import CannotSay, Value, Values

Rule: TypeAlias = Callable[..., Value]
"""`rule(values, *operands, **params)`, the params being those of the primitive."""

DTYPE_OF: dict[str, DType] = {
    "float64": DType.f64, "float32": DType.f32, "float16": DType.f16, "bfloat16": DType.bf16, "int64": DType.i64,
    "int32": DType.i32, "int16": DType.i16, "int8": DType.i8, "uint8": DType.u8, "bool": DType.bool,
}  # fmt: skip
"""Element types by the names of NumPy and JAX."""

_SAME = frozenset({"copy", "copy_p", "stop_gradient", "optimization_barrier", "device_put", "real"})
"""Primitives whose result is their operand."""


def dtype_of(dtype: Any) -> DType:
    """The element type of the IR. Raises CannotSay if programs have no such type."""
    name = np.dtype(dtype).name
    if name not in DTYPE_OF:
        raise CannotSay(f"has the dtype {name}, which kernels do not compute with")
    return DTYPE_OF[name]


def _direct(op: Op) -> Rule:
    def rule(values: Values, *args: Value, **params: Any) -> Value:
        dtype = values.type(args[-1].ref).dtype
        if op.facts.truths and dtype is not DType.bool:
            raise CannotSay("works on the bits of integers")
        if not belongs(dtype, op.facts.takes):
            raise CannotSay(f"is not computed on {dtype.value}")
        if params.get("accuracy") is not None:
            raise CannotSay("asks for an accuracy of its own")
        return values.pointwise(op, *args)

    return rule


def _xor(values: Values, x: Value, y: Value, **params: Any) -> Value:
    if values.type(x.ref).dtype is not DType.bool:
        raise CannotSay("works on the bits of integers")
    return values.pointwise(Op.ne, x, y)


def _same(values: Values, x: Value, **params: Any) -> Value:
    return x


def cast(values: Values, x: Value, dtype: DType) -> Value:
    if values.type(x.ref).dtype is dtype:
        return x
    return Value(values.add(Cast(x.ref, dtype)), x.shape, x.rows, x.spread)


def _convert(values: Values, x: Value, *, new_dtype: Any, **params: Any) -> Value:
    return cast(values, x, dtype_of(new_dtype))


def _square(values: Values, x: Value, **params: Any) -> Value:
    return values.pointwise(Op.mul, x, x)


def _integer_pow(values: Values, x: Value, *, y: int, **params: Any) -> Value:
    """A power by repeated squaring, and its reciprocal for a negative exponent, as XLA computes it."""
    dtype = values.type(x.ref).dtype
    if y < 0 and not dtype.is_float:
        raise CannotSay("takes a negative power of integers")
    out, square, left = None, x, abs(y)
    while left:
        if left % 2:
            out = square if out is None else values.pointwise(Op.mul, out, square)
        left //= 2
        if left:
            square = values.pointwise(Op.mul, square, square)
    if out is None:
        one = values.reshaped(values.const(1, dtype), [1] * len(x.shape))
        return Value(one, x.shape, None, frozenset(range(len(x.shape))))
    return values.pointwise(Op.div, values.number(1, dtype), out) if y < 0 else out


def _select(values: Values, which: Value, *cases: Value, **params: Any) -> Value:
    if len(cases) == 1:
        return cases[0]
    if len(cases) != 2 or values.type(which.ref).dtype is not DType.bool:
        raise CannotSay("selects among more than two cases")
    return values.pointwise(Op.where, which, cases[1], cases[0])


def _clamp(values: Values, low: Value, x: Value, high: Value, **params: Any) -> Value:
    return values.pointwise(Op.minimum, values.pointwise(Op.maximum, x, low), high)


def _is_finite(values: Values, x: Value, **params: Any) -> Value:
    dtype = values.type(x.ref).dtype
    return values.pointwise(Op.lt, values.pointwise(Op.abs, x), values.number(math.inf, dtype))


def _tan(values: Values, x: Value, **params: Any) -> Value:
    return values.pointwise(Op.div, values.pointwise(Op.sin, x), values.pointwise(Op.cos, x))


ELEMENTWISE: Mapping[str, Rule] = {
    **{name: _direct(op) for op in Op for name in op.facts.jax[1:]},
    **dict.fromkeys(_SAME, _same),
    "convert_element_type": _convert, "square": _square, "integer_pow": _integer_pow, "select_n": _select,
    "clamp": _clamp, "is_finite": _is_finite, "tan": _tan, "xor": _xor,
}  # fmt: skip
