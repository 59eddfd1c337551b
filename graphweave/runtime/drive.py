"""Runs several kernels as one native call (`native/drive.cpp`)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from struct import Struct, pack
from typing import TypeAlias

from graphweave.core.counters import bump
from graphweave.runtime import kernel_cache, sources
from graphweave.runtime.threads import num_threads
from graphweave.runtime.toolchain import toolchain

Place: TypeAlias = tuple[int, int]
"""Either the number of a value whose address each call gives, and an offset in bytes, or -1 and an address."""


class Drive:
    """A table of steps. `drive(addresses)` runs them on the values at these addresses."""

    __slots__ = ("_addresses", "_code", "_launches", "_names", "_native")

    def __init__(self, steps: Sequence[Sequence[int]], names: Sequence[str], num_values: int) -> None:
        """`steps` are in the form that `drive.cpp` documents. Each has a name for errors, which is "" for steps that
        are no kernels."""
        code = [len(steps), *chain.from_iterable(steps)]
        self._code = pack(f"{len(code)}q", *code)
        self._names = tuple(names)
        self._launches = sum(map(bool, names))
        self._addresses = Struct(f"{num_values}P")
        self._native = _native(toolchain())

    def __call__(self, addresses: Sequence[int]) -> None:
        """The caller keeps the memory alive. The GIL is released during the call. MemoryError if a kernel could not get
        its scratch memory."""
        failed = self._native(self._code, self._addresses.pack(*addresses), num_threads())
        bump("kernel_launches", self._launches)
        if failed:
            raise MemoryError(
                f"kernel {self._names[failed - 1]} could not allocate its scratch memory."
                " Free some, or take a smaller graph."
            )


def address_of_drive() -> int:
    """The address of `gw_drive`, for callers that are native themselves."""
    return ctypes.cast(_native(toolchain()), ctypes.c_void_p).value or 0


def turn(itemsize: int, rows: int, columns: int, matrix: Place, to: Place) -> list[int]:
    """The step that writes the transpose of `matrix` [rows, columns] to `to`."""
    return [0, itemsize, rows, columns, *matrix, *to]


def zero(nbytes: int, to: Place) -> list[int]:
    """The step that sets `nbytes` bytes to zero."""
    return [-1, nbytes, *to]


@lru_cache(maxsize=8)
def _native(tools: object) -> ctypes._FuncPointer:
    """The native function. `tools` is only the key of the cache: other compiler settings give another function."""
    function = kernel_cache.library(sources.source("drive.cpp")).gw_drive
    function.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int32)
    function.restype = ctypes.c_int64
    return function
