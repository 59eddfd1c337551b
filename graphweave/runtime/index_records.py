"""Records of index tensors in native code (`native/records.cpp`), with the formats that were made of them.

A record is known by the tensor's storage, version counter, version and layout, so native code finds it without Python.
Python keeps an alias of the tensor for each record, within GRAPHWEAVE_FORMAT_BYTES, and drops records of tensors that
are dead (see `tracked`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from graphweave.core.settings import settings
from graphweave.runtime.index import Index
from graphweave.runtime.native_library import library
from graphweave.runtime.storages import ByStorage
from graphweave.runtime.tracked import TrackedCache, versions_of


class MadeFormat(ctypes.Structure):
    """The structure `Made` of `native/records.cpp`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("data", "chunks")),
        *((name, ctypes.c_int64) for name in ("sorted", "max_degree", "num_chunks", "builds", "hits", "at_other")),
    )


class RecordHandle:
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
        self.handle = RecordHandle(index, kept)
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
            memory.handle = self.handle  # type: ignore[attr-defined] # the tensor's storage keeps the object, and so the record's memory
            return torch.frombuffer(memory, dtype=dtype, count=count)


own_memory: ByStorage[bool] = ByStorage()
"""Storages of indices that our own programs have made. Only they know them, so nobody else writes to them."""


class RecordCache(TrackedCache[Record]):
    """Records of index tensors. What native code keeps without a record is forgotten with them."""

    def forget(self, storage: int) -> None:
        super().forget(storage)
        library().gw_records_edited(storage)


cache = RecordCache(lambda: settings().format_bytes, Record.used, Record.drop)


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
