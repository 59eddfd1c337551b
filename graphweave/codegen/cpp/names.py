"""C++ spellings of names, element types and literals."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterable

from graphweave.codegen.names import Names
from graphweave.core.types import DType

_CTYPES = {
    DType.f64: "double", DType.f32: "float", DType.i64: "int64_t", DType.i32: "int32_t", DType.i16: "int16_t",
    DType.i8: "int8_t", DType.u8: "uint8_t", DType.bool: "bool", DType.f16: "gw_f16", DType.bf16: "gw_bf16",
}  # fmt: skip
_BITS = {DType.i64: 63, DType.i32: 31, DType.i16: 15, DType.i8: 7}

_WORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t class compl
    concept const const_cast consteval constexpr constinit continue co_await co_return co_yield decltype default
    delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline int long
    mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch template this
    thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor
    xor_eq asm typeof linux unix errno NAN INFINITY NULL HUGE_VAL I std main ptrs sizes chunks num_chunks num_threads
    num_rows first last chunk thread parts scratch
"""  # words of the language, of the headers that a kernel includes, and of the printer's own entry point
_RESERVED = frozenset(_WORDS.split())
_RESERVED_SHAPE = re.compile(r"_.*|gw_.*|GW_.*|u?int\w*_t|U?INT\w+|M_\w+")


def cpp_names(ir_names: Iterable[str]) -> Names:
    """C++ identifiers for IR names."""
    return Names(ir_names, taken=_clashes, starts=lambda name: _RESERVED_SHAPE.fullmatch(name) is not None)


def _clashes(name: str) -> bool:
    return name in _RESERVED or _RESERVED_SHAPE.fullmatch(name) is not None


def ctype(dtype: DType) -> str:
    """The C++ type of `dtype`. The types of half precision (`bfloat16.h`, `float16.h`) only store numbers."""
    return _CTYPES[dtype]


def literal(value: float | int | bool, dtype: DType) -> str:
    """`value` converted to `dtype`, as C++ text that reads back to the same bits."""
    if dtype is DType.bool:
        return "true" if value else "false"
    if dtype.is_float:
        return _float_literal(float(value), dtype)
    number = int(value)
    if dtype in _BITS and number == -(2 ** _BITS[dtype]):
        return f"({number + 1} - 1)" if dtype is not DType.i64 else "INT64_MIN"
    text = f"INT64_C({number})" if dtype is DType.i64 else str(number)
    return f"({text})" if number < 0 else text


def _float_literal(value: float, dtype: DType) -> str:
    single = dtype is DType.f32
    if single:
        value = ctypes.c_float(value).value
    if math.isnan(value):
        return "gw_nan" if single else "(double)gw_nan"
    if math.isinf(value):
        text = "gw_infinity" if single else "(double)gw_infinity"
        return text if value > 0 else f"(-{text})"
    text = _shortest_single(value) if single else repr(value)
    if "e" not in text and "." not in text:
        text += ".0"
    text += "f" if single else ""
    return f"({text})" if text.startswith("-") else text


def _shortest_single(value: float) -> str:
    for digits in range(1, 9):
        text = f"{value:.{digits}g}"
        if ctypes.c_float(float(text)).value == value:
            return text
    return f"{value:.9g}"
