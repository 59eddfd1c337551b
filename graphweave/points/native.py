"""The native functions of `runtime/native/*_points.cpp`, and the structures that they take."""

from __future__ import annotations

import ctypes
from functools import lru_cache

from graphweave.runtime import kernel_cache, sources
from graphweave.runtime.native_numbers import Int32, Int64, NativeNumbers
from graphweave.runtime.toolchain import toolchain

_SOURCES = ("point_trees.cpp", "near_points.cpp", "far_points.cpp", "periodic_points.cpp")
MOST_KEPT = 1 << 26
"""About how many numbers of pairs a search keeps while it counts; what is beyond is found again."""

_POINTER, _I64, _F64 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class RawPointSets(NativeNumbers):
    """The structure `PointSets`."""

    _fields_ = (("coordinates", _POINTER), ("starts", _POINTER), ("sets", _I64), ("dims", _I64))


class RawPeriodic(NativeNumbers):
    """The structure `Periodic`."""

    _fields_ = (("systems", RawPointSets), ("cells", _POINTER), ("inverses", _POINTER))


def library() -> ctypes.CDLL:
    """The native library, compiled at first use. ToolchainError without a compiler."""
    return _library(toolchain())


@lru_cache(maxsize=8)
def _library(tools: object) -> ctypes.CDLL:
    """`tools` is only the key of the cache: other compiler settings give another library."""
    found = kernel_cache.library("".join(map(sources.source, _SOURCES)))
    sets, periodic, count = ctypes.POINTER(RawPointSets), ctypes.POINTER(RawPeriodic), ctypes.POINTER(_I64)
    found.gw_near_new.argtypes = (sets, sets, _POINTER, Int64, _F64, Int32, Int64, Int32, count)
    found.gw_near_new.restype = _POINTER
    found.gw_near_take.argtypes = (_POINTER, _POINTER, Int32)
    found.gw_near_take.restype = _I64
    found.gw_near_free.argtypes = (_POINTER,)
    found.gw_near_free.restype = None
    found.gw_far_points.argtypes = (sets, _POINTER, _POINTER, _POINTER, Int32)
    found.gw_far_points.restype = _I64
    found.gw_neighbours_new.argtypes = (periodic, _F64, Int64, Int32, count)
    found.gw_neighbours_new.restype = _POINTER
    found.gw_neighbours_take.argtypes = (_POINTER, _POINTER, _POINTER, Int32)
    found.gw_neighbours_take.restype = _I64
    found.gw_neighbours_free.argtypes = (_POINTER,)
    found.gw_neighbours_free.restype = None
    found.gw_neighbours_within.argtypes = (
        periodic, _POINTER, _F64, _POINTER, _POINTER, Int64, Int64, _POINTER, _POINTER, _POINTER, Int32,
    )  # fmt: skip
    found.gw_neighbours_within.restype = None
    return found
