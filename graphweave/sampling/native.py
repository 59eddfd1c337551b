"""The native functions of `runtime/native/sampling.cpp`, and the structures that they take."""

from __future__ import annotations

import ctypes
from functools import lru_cache

from torch import Tensor

from graphweave.runtime import kernel_cache, sources
from graphweave.runtime.native_numbers import Int32, Int64, NativeNumbers
from graphweave.runtime.toolchain import toolchain

_POINTER, _I64 = ctypes.c_void_p, ctypes.c_int64


class RawAdjacency(NativeNumbers):
    """The structure `Adjacency`."""

    _fields_ = (
        *((name, _POINTER) for name in ("indptr", "sources", "edges", "weights", "edge_times", "node_times")),
        ("wide", _I64),
        ("excluded", _POINTER),
        ("num_excluded", _I64),
    )


class RawRows(NativeNumbers):
    """The structure `Rows`."""

    _fields_ = (("nodes", _POINTER), ("times", _POINTER), ("count", _I64))


class RawChoice(NativeNumbers):
    """The structure `Choice`."""

    _fields_ = tuple((name, _I64) for name in ("fanout", "key", "replace", "latest", "by_node"))


class RawTable(NativeNumbers):
    """The structure `Table`."""

    _fields_ = (("keys", _POINTER), ("values", _POINTER), ("capacity", _I64), ("num_nodes", _I64))


def library() -> ctypes.CDLL:
    """The native library, compiled at first use. ToolchainError without a compiler."""
    return _library(toolchain())


@lru_cache(maxsize=8)
def _library(tools: object) -> ctypes.CDLL:
    """`tools` is only the key of the cache: other compiler settings give another library."""
    found = kernel_cache.library(sources.source("sampling.cpp"))
    common = (ctypes.POINTER(RawAdjacency), ctypes.POINTER(RawRows), ctypes.POINTER(RawChoice), _POINTER)
    table = ctypes.POINTER(RawTable)
    found.gw_sample_count.argtypes = (*common, Int32)
    found.gw_sample_count.restype = _I64
    found.gw_sample_fill.argtypes = (*common, Int64, _POINTER, _POINTER, _POINTER, Int32)
    found.gw_sample_fill.restype = None
    found.gw_sample_key.argtypes = (Int64, _POINTER, Int64)
    found.gw_sample_key.restype = _I64
    found.gw_table_fill.argtypes = (table, _POINTER, _POINTER, Int64, Int64)
    found.gw_table_fill.restype = None
    found.gw_table_number.argtypes = (table, *(_POINTER,) * 3, Int64, Int64, *(_POINTER,) * 3, Int32)
    found.gw_table_number.restype = _I64
    return found


def address(tensor: Tensor | None) -> int | None:
    """The address of the first element; None for no tensor. The tensor must be contiguous and on the CPU."""
    return None if tensor is None else tensor.data_ptr()
