"""Triton spellings of names, element types and literals."""

from __future__ import annotations

import builtins
import keyword
import math
from collections.abc import Iterable

from graphweave.codegen.names import Names
from graphweave.core.numbers import rounded
from graphweave.core.types import DType, computed

_TYPES = {
    DType.f64: "tl.float64", DType.f32: "tl.float32", DType.f16: "tl.float16", DType.bf16: "tl.bfloat16",
    DType.i64: "tl.int64", DType.i32: "tl.int32", DType.i16: "tl.int16", DType.i8: "tl.int8", DType.u8: "tl.uint8",
    DType.bool: "tl.int1",
}  # fmt: skip
_OF_THE_PRINTER = "tl triton R K ORDERED PRECISION order groups group program part step first last row_ok edge_ok"
_RESERVED = frozenset([*keyword.kwlist, *keyword.softkwlist, *dir(builtins), *_OF_THE_PRINTER.split()])


def triton_names(ir_names: Iterable[str]) -> Names:
    """Python identifiers for IR names, different from the words of Python, Triton and the printer."""
    return Names(ir_names, taken=_clashes, starts=lambda name: name.startswith(("_", "gw_")))


def _clashes(name: str) -> bool:
    return name in _RESERVED or name.startswith(("_", "gw_"))


def ttype(dtype: DType) -> str:
    """The Triton type of an element in memory."""
    return _TYPES[dtype]


_LEAST_NORMAL = 2.0**-126
"""The least positive float32 of full precision. To Triton a bare number that is smaller has 64 bits."""


def literal(value: float | int | bool, dtype: DType) -> str:
    """`value` converted to `dtype`. To Triton a bare number has 32 bits, so wider ones and truths name their type."""
    if dtype is DType.bool:
        return f"tl.full([], {int(bool(value))}, tl.int1)"
    if not dtype.is_float:
        whole = int(value)
        return str(whole) if -(2**31) <= whole < 2**31 else f"tl.full([], {whole}, {ttype(dtype)})"
    number = float(value)
    if math.isinf(rounded(number, computed(dtype))):
        number = math.copysign(math.inf, number)
    if math.isnan(number) or math.isinf(number):
        return f'float("{number}")'
    exact = dtype is not DType.f64 or rounded(number, DType.f32) == number
    bare = exact and (number == 0 or abs(number) >= _LEAST_NORMAL)
    return repr(number) if bare else f"tl.full([], {number!r}, {ttype(dtype)})"
