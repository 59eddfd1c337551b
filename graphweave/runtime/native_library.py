"""The native library of the runtime: one text of several files, since they share what they know of index tensors."""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from typing import Any

from graphweave.runtime import kernel_cache, sources
from graphweave.runtime.native_numbers import Int32, Int64
from graphweave.runtime.tensor_layout import layout
from graphweave.runtime.toolchain import toolchain

SOURCES = (
    "containers.cpp", "checksum.cpp", "formats.cpp", "records.cpp", "edge_subsets.cpp", "row_pieces.cpp",
    "divided_rows.cpp", "segments.cpp", "segment_runs.cpp", "marks.cpp",
)  # fmt: skip
"""Its files in order."""

_POINTER, _BYTES, _STATUS = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64

_FUNCTIONS: dict[str, tuple[tuple[Any, ...], Any]] = {
    "gw_sum": ((_POINTER, Int32), None),
    "gw_whole_sum": ((_POINTER, Int32), ctypes.c_uint64),
    "gw_next_is_same": ((_POINTER,), ctypes.c_int32),
    "gw_in_range": ((_POINTER, Int64, ctypes.c_int32), _STATUS),
    "gw_narrow": ((_POINTER, Int64, Int64, _POINTER, Int32), _STATUS),
    "gw_records_layout": ((_POINTER,), None),
    "gw_records_edited": ((_POINTER,), None),
    "gw_records_forked": ((), None),
    "gw_record_new": ((_POINTER, Int64, Int32, Int32, Int32), _POINTER),
    "gw_record_drop": ((_POINTER,), None),
    "gw_record_free": ((_POINTER,), None),
    "gw_record_used": ((_POINTER,), ctypes.c_int32),
    "gw_record_bytes": ((_POINTER,), ctypes.c_int64),
    "gw_record_csr": ((_POINTER, Int32, _POINTER, Int32), _STATUS),
    "gw_record_flat": ((_POINTER, Int32, _POINTER, Int32), _STATUS),
    "gw_record_perm": ((_POINTER, Int32, _POINTER, Int32), _STATUS),
    "gw_record_column": ((_POINTER, _POINTER, Int32, _POINTER, Int32), _STATUS),
    "gw_record_long_rows": ((_POINTER, _BYTES, _POINTER, _POINTER, Int32), _STATUS),
    "gw_segment_new": ((_BYTES,), _POINTER),
    "gw_segment_free": ((_POINTER,), None),
    "gw_segment_forget": ((_POINTER,), None),
    "gw_segment_bytes": ((_POINTER, _BYTES), ctypes.c_int64),
    "gw_segment_computed": ((_POINTER, _POINTER), ctypes.c_int32),
    "gw_segment_run": ((_POINTER, _BYTES, ctypes.c_int32, ctypes.c_int32, _POINTER, _POINTER), _STATUS),
    "gw_segment_divided": ((_POINTER, Int64, _BYTES), None),
    "gw_bound_new": ((_POINTER, _BYTES, Int32, Int32, _POINTER, _POINTER), _STATUS),
    "gw_bound_free": ((_POINTER,), None),
    "gw_bound_bytes": ((_POINTER,), ctypes.c_int64),
    "gw_bound_run": ((_POINTER, _BYTES, _POINTER, Int32), ctypes.c_int64),
    "gw_inputs_new": ((Int64, _BYTES, _BYTES, _BYTES), _POINTER),
    "gw_inputs_free": ((_POINTER,), None),
    "gw_inputs_found": ((_POINTER,), None),
    "gw_marks_new": ((_POINTER, _BYTES, _BYTES, ctypes.c_int32), _POINTER),
    "gw_marks_free": ((_POINTER,), None),
    "gw_marks_results": ((_POINTER, _BYTES, Int64), ctypes.c_int32),
    "gw_marks_hold": ((_POINTER, _BYTES), _STATUS),
}
"""Name of each function -> the types of its arguments and of its result. `ctypes.c_int32` stands where calls must be
quick and numbers are known to fit."""


def library() -> ctypes.CDLL:
    """The library, compiled or found on disk. Raises ToolchainError without a compiler."""
    return _library(toolchain())


def text() -> str:
    """Its text."""
    return "".join(map(sources.source, SOURCES))


@lru_cache(maxsize=8)
def _library(tools: object) -> ctypes.CDLL:
    """`tools` is only the key of the cache: other compiler settings give another library."""
    native = kernel_cache.library(text())
    for name, (arguments, result) in _FUNCTIONS.items():
        function = getattr(native, name)
        function.argtypes, function.restype = arguments, result
    native.gw_records_layout(ctypes.byref(layout()))
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=native.gw_records_forked)
    return native
