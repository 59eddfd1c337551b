"""Whole numbers on their way into native code: one that does not fit is an error, where ctypes would cut it off."""

from __future__ import annotations

import ctypes
from typing import Any

_BITS = {ctypes.c_int64: 64, ctypes.c_int32: 32}


class Int64:
    """The type of an argument of 64 bits, for `argtypes`."""

    _type: Any = ctypes.c_int64

    @classmethod
    def from_param(cls, value: int) -> Any:
        """OverflowError, which ctypes raises as an ArgumentError, for a number that does not fit."""
        return cls._type(fitting(value, cls._type, "the argument"))


class Int32(Int64):
    """The type of an argument of 32 bits, for `argtypes`."""

    _type = ctypes.c_int32


class Numbers(ctypes.Structure):
    """A structure of addresses and whole numbers, made of its fields in order; those that are left out are 0.
    OverflowError for a number that does not fit."""

    def __init__(self, *values: Any) -> None:
        checked = [
            fitting(value, kind, f"{type(self).__name__}.{name}") if kind in _BITS else value
            for (name, kind, *_), value in zip(self._fields_, values, strict=False)
        ]
        super().__init__(*checked, *values[len(checked) :])  # ctypes refuses more values than fields


def fitting(value: int, kind: Any, what: str) -> int:
    """`value`. OverflowError if `kind`, an integer type of ctypes, does not hold it; TypeError if it is no integer."""
    if not isinstance(value, int):
        raise TypeError(f"{what} must be an integer (got {type(value).__name__}). Convert it with int().")
    most = 1 << (_BITS[kind] - 1)
    if not -most <= value < most:
        raise OverflowError(f"{what} must be an integer of {_BITS[kind]} bits (got {value}). Pass a smaller number.")
    return value
