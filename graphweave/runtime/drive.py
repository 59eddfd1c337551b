"""Runs several kernels as one native call (`native/drive.cpp`)."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import TypeAlias

from graphweave.runtime import kernel_cache, sources
from graphweave.runtime.toolchain import toolchain

Place: TypeAlias = tuple[int, int]
"""Either the number of a value whose address each call gives, and an offset in bytes, or -1 and an address."""


def address_of_drive() -> int:
    """The address of `gw_drive`, for callers that are native themselves."""
    return ctypes.cast(_native(toolchain()), ctypes.c_void_p).value or 0


@lru_cache(maxsize=8)
def _native(tools: object) -> ctypes._FuncPointer:
    """The native function. `tools` is only the key of the cache: other compiler settings give another function."""
    function = kernel_cache.library(sources.source("drive.cpp")).gw_drive
    function.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int32)
    function.restype = ctypes.c_int64
    return function
