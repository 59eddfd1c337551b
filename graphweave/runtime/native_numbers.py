"""Whole numbers on their way into native code: one that does not fit is an error, where ctypes would cut it off."""

from __future__ import annotations

import ctypes
from typing import Any, TypeAlias

_Simple: TypeAlias = ctypes.c_int64 | ctypes.c_int32

_BITS: dict[object, int] = {ctypes.c_int64: 64, ctypes.c_int32: 32}


class _WholeNumber:
    """A type of arguments that ctypes asks for each value."""

    def __init__(self, kind: type[_Simple]) -> None:
        self._kind = kind

    def from_param(self, value: int) -> _Simple:
        """OverflowError, which ctypes raises as an ArgumentError, for a number that does not fit."""
        return self._kind(fitting(value, self._kind, "the argument"))


Int64: Any = _WholeNumber(ctypes.c_int64)
"""The type of an argument of 64 bits, for `argtypes`."""

Int32: Any = _WholeNumber(ctypes.c_int32)
"""The type of an argument of 32 bits, for `argtypes`."""


class NativeNumbers(ctypes.Structure):
    """A structure of addresses and whole numbers, made of its fields in order; those that are left out are 0.
    OverflowError for a number that does not fit."""

    def __init__(self, *values: Any) -> None:
        checked = [
            fitting(value, kind, f"{type(self).__name__}.{name}") if kind in _BITS else value
            for (name, kind, *_), value in zip(self._fields_, values, strict=False)
        ]
        super().__init__(*checked, *values[len(checked) :])  # ctypes refuses more values than fields


def fitting(value: int, kind: object, what: str) -> int:
    """`value`. OverflowError if `kind`, an integer type of ctypes, does not hold it; TypeError if it is no integer."""
    if not isinstance(value, int):
        raise TypeError(f"{what} must be an integer (got {type(value).__name__}). Convert it with int().")
    most = 1 << (_BITS[kind] - 1)
    if not -most <= value < most:
        raise OverflowError(f"{what} must be an integer of {_BITS[kind]} bits (got {value}). Pass a smaller number.")
    return value
