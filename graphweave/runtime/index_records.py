"""Records of index tensors in native code (`native/records.cpp`), with the formats that were made of them.

A record is known by the tensor's storage, version counter, version and layout, so native code finds it without Python.
Python keeps an alias of the tensor for each record, within GRAPHWEAVE_FORMAT_BYTES, and drops records of tensors that
are dead (see `tracked`).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from graphweave.core.settings import settings
from graphweave.runtime import kernel_cache, sources
from graphweave.runtime.index import Index
from graphweave.runtime.native_numbers import Int32, Int64
from graphweave.runtime.storages import ByStorage
from graphweave.runtime.tensor_layout import layout
from graphweave.runtime.toolchain import toolchain
from graphweave.runtime.tracked import TrackedCache, versions_of

SOURCES = ("formats.cpp", "records.cpp", "segments.cpp")
"""The files of the native library, in order."""


class Made(ctypes.Structure):
    """The structure `Made` of `native/records.cpp`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("data", "chunks")),
        *((name, ctypes.c_int64) for name in ("sorted", "max_degree", "num_chunks", "builds", "hits", "at_other")),
    )


class Handle:
    """Owns a record of native code. Tensors on memory of the record keep it."""

    __slots__ = ("address", "native")

    def __init__(self, index: Index, kept: bool) -> None:
        self.native, own = library(), own_memory.get(index.values) is True
        self.address = self.native.gw_record_new(index.values._cdata, index.rows, index.wrap, own, kept)

    def __del__(self) -> None:
        self.native.gw_record_free(self.address)


class Record:
    """The record of an index. `made` are the objects that were made of its formats."""

    def __init__(self, index: Index, kept: bool) -> None:
        """With `kept`, native code finds the record until it is dropped."""
        self.handle = Handle(index, kept)
        self.made: dict[Any, Any] = {}

    def drop(self) -> None:
        """Native code finds it no more."""
        self.handle.native.gw_record_drop(self.handle.address)

    def used(self) -> bool:
        return bool(self.handle.native.gw_record_used(self.handle.address))

    @property
    def nbytes(self) -> int:
        return int(self.handle.native.gw_record_bytes(self.handle.address))

    def tensor(self, address: int | None, count: int, dtype: torch.dtype) -> Tensor:
        """A tensor on memory of the record."""
        with torch.inference_mode(False):
            if not count or not address:
                return torch.empty(count, dtype=dtype, device="cpu")
            memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
            memory.handle = self.handle  # the tensor's storage keeps the object, and so the record's memory
            return torch.frombuffer(memory, dtype=dtype, count=count)


own_memory: ByStorage[bool] = ByStorage()
"""Storages of indices that our own programs have made. Only they know them, so nobody else writes to them."""

cache: TrackedCache[Record] = TrackedCache(lambda: settings().format_bytes, Record.used, Record.drop)


def record_of(index: Index) -> Record:
    """The record of a valid index; a new one at each call if edits of the tensor cannot be noticed."""
    tensors = (index.values,)
    found = cache.get(index.key, tensors)
    if found is None:
        versions = versions_of(tensors)
        found = Record(index, kept=versions is not None)
        if versions is not None:
            cache.put(index.key, tensors, versions, found, ())
    return found


@contextmanager
def sized(index: Index) -> Iterator[Record]:
    """The record of an index, whose size is noted at the end of the block."""
    record = record_of(index)
    before = record.nbytes
    yield record
    if record.nbytes != before:
        cache.resize(index.key, record.nbytes)


def library() -> ctypes.CDLL:
    """The native library."""
    return _library(toolchain())


@lru_cache(maxsize=8)
def _library(tools: object) -> ctypes.CDLL:
    """`tools` is only the key of the cache: other compiler settings give another library."""
    native = kernel_cache.library("".join(map(sources.source, SOURCES)))
    pointer, status = ctypes.c_void_p, ctypes.c_int64
    native.gw_narrow.argtypes = (pointer, Int64, Int64, pointer, Int32)
    native.gw_narrow.restype = status
    native.gw_record_new.argtypes = (pointer, Int64, Int32, Int32, Int32)
    native.gw_record_new.restype = pointer
    for name in ("drop", "free"):
        function = getattr(native, f"gw_record_{name}")
        function.argtypes, function.restype = (pointer,), None
    native.gw_record_used.argtypes = native.gw_record_bytes.argtypes = (pointer,)
    native.gw_record_bytes.restype = status
    for name in ("csr", "flat", "perm"):
        function = getattr(native, f"gw_record_{name}")
        function.argtypes, function.restype = (pointer, Int32, ctypes.POINTER(Made), Int32), status
    native.gw_record_column.argtypes = (pointer, pointer, Int32, ctypes.POINTER(Made), Int32)
    native.gw_record_column.restype = status
    native.gw_segment_new.argtypes, native.gw_segment_new.restype = (ctypes.c_char_p,), pointer
    native.gw_segment_bytes.argtypes, native.gw_segment_bytes.restype = (pointer, ctypes.c_char_p), status
    for name in ("free", "forget"):
        function = getattr(native, f"gw_segment_{name}")
        function.argtypes, function.restype = (pointer,), None
    native.gw_segment_computed.argtypes, native.gw_segment_computed.restype = (pointer, pointer), ctypes.c_int32
    native.gw_segment_run.argtypes = (pointer, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32, pointer)
    native.gw_segment_run.restype = status
    native.gw_records_layout(ctypes.byref(layout()))
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=native.gw_records_forked)
    return native
