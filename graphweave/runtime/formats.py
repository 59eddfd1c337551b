"""Formats of index tensors: checked indices, CSR grouping by row, neighbour columns. Built in native code, cached.

Each format is built from the indices when a kernel first needs it. It takes 4 bytes for each edge, and building it
takes no other memory.

An index tensor is 1-d, int32 or int64, of any stride. On a GPU, PyTorch's operations make the same formats
(`device_formats.py`). Every value is checked before it is used: one that is out of range raises IndexRangeError.
Formats are int32 unless `wide`. They are cached by the index tensor (see `tracked`), within GRAPHWEAVE_FORMAT_BYTES.
Formats of inference tensors are built at every call, since edits of these cannot be noticed. Results are shared, so
callers must not write to them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol, TypeVar, cast

import torch
from torch import Tensor

from graphweave.core.counters import bump
from graphweave.core.errors import DataError
from graphweave.core.log import logger
from graphweave.core.ranges import range_error
from graphweave.core.settings import settings
from graphweave.runtime import capturing, device_formats, kernel_cache, sources
from graphweave.runtime.index import INT32_MAX, Index
from graphweave.runtime.launch import MAX_CHUNKS
from graphweave.runtime.native_numbers import Int32, Int64, NativeNumbers
from graphweave.runtime.storages import ByStorage
from graphweave.runtime.threads import num_threads
from graphweave.runtime.toolchain import toolchain
from graphweave.runtime.tracked import Key, TrackedCache, ordinary, versions_of

CHUNK_SHARE = 1 << 10
"""A chunk of a CSR has at least about this many rows and edges, and there are at most `MAX_CHUNKS` chunks."""

UNKNOWN = -1
"""Stands for a largest degree that the host does not know, since it has not asked the device."""

T = TypeVar("T")

_log = logger(__name__)


class Format(Protocol):
    """A format that consists of more than one tensor."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that it owns."""


@dataclass(frozen=True, slots=True)
class CsrFormat:
    """Edges grouped by the row that an index names: those of row r are at positions `indptr[r]` to `indptr[r + 1]`."""

    indptr: Tensor
    """[num_rows + 1], int32, or int64 if wide."""

    in_order: bool
    """Whether the index is known to be sorted, so that the edge at position k is k. False on a GPU."""

    max_degree: int
    """The largest number of edges of a row; UNKNOWN on a GPU."""

    chunks: Tensor
    """int64 [num_chunks + 1]: row boundaries of chunks with about equally many rows and edges. There is at least one
    chunk, which is empty if there are no rows. An empty tensor on a GPU."""

    num_rows: int
    num_edges: int

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.indptr, self.chunks


class _RawGrouping(ctypes.Structure):
    """The structure `Grouping` of `native/formats.cpp`."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("sorted", "max_degree", "num_chunks"))


_own_memory: ByStorage[bool] = ByStorage()
"""Storages of the indices that `narrowed` has made. Only our own programs know them, so nobody else writes to them."""

_cache: TrackedCache[Format | Tensor] = TrackedCache(lambda: settings().format_bytes)


def csr(index: Index, wide: bool = False) -> CsrFormat:
    """Edges grouped by the row that `index` names.

    Within a row, edges keep their order. Raises DataError if the sizes need 64 bits and `wide` is false.
    """
    return cast(CsrFormat, cached(("csr", index.key, wide), (index.values,), lambda: _build_csr(index, wide)))


def perm(index: Index, wide: bool = False) -> Tensor | None:
    """[num_edges], dtype of indptr: the edge at each position of `csr(index, wide)`.

    None if the index is sorted. Only kernels that read edge values in the user's order need it.
    """
    if csr(index, wide).in_order:
        return None
    key = ("perm", index.key, wide)
    return cast(Tensor, cached(key, (index.values,), lambda: _placed(index, wide, csr(index, wide).indptr)))


def column(index: Index, other: Index, wide: bool = False) -> Tensor:
    """`other[perm[k]]` for every position k of `csr(index, wide)`: the neighbour's row, checked.

    [num_edges], int32, or int64 if wide. `index` and `other` have equal length.
    """
    key = ("column", index.key, other.key, wide)
    return cast(Tensor, cached(key, (index.values, other.values), lambda: _build_column(index, other, wide)))


def flat(index: Index, wide: bool = False) -> Tensor:
    """The rows that `index` names, checked, contiguous, int32 (int64 if wide), wrapped values made non-negative.

    This is the tensor itself if none of this changes it and `narrowed` has made it. Any other tensor is copied, since
    others may write to it after the check.
    """
    return cast(Tensor, cached(("flat", index.key, wide), (index.values,), lambda: _build_flat(index, wide)))


def narrowed(index: Tensor) -> Tensor:
    """`index` in 32 bits, not checked against any number of rows; `index` itself if one of its values does not fit.

    The result is the same map at half the size. Tensors other than int64 [num_edges] on the CPU are returned unchanged.
    """
    if index.dtype != torch.int64 or index.dim() != 1 or index.device.type != "cpu":
        return index
    out = torch.empty(index.numel(), dtype=torch.int32, device="cpu")
    threads = num_threads()
    bad = _native(toolchain()).gw_narrow(index.data_ptr(), index.stride(0), index.numel(), out.data_ptr(), threads)
    if bad >= 0:
        return index
    _own_memory.put(out, True)
    return out


def by_degree(index: Index, wide: bool = False) -> Tensor:
    """[rows], dtype of indptr: the rows in order of falling number of edges."""
    indptr = csr(index, wide).indptr
    key = ("by_degree", index.key, wide)
    return cast(Tensor, cached(key, (index.values,), lambda: device_formats.by_degree(indptr)))


_in_order: dict[bool, Tensor] = {}


def in_order(n: int, wide: bool) -> Tensor:
    """The numbers 0, 1, 2, ..., at least n of them: the permutation of a CSR whose index is sorted."""
    found = _in_order.get(wide)
    if found is None or found.numel() < n:
        with torch.inference_mode(False):
            found = torch.arange(max(n, 1), dtype=torch.int64 if wide else torch.int32, device="cpu")
        _in_order[wide] = found
    return found


def grouped(index: Index, wide: bool = False) -> tuple[Tensor, Tensor]:
    """`indptr` and `perm` of an index that is used only once: they are not cached."""
    indptr = _build_csr(index, wide).indptr
    return indptr, _placed(index, wide, indptr)


def clear() -> None:
    """Drop all cached formats."""
    _cache.clear()


def stats() -> dict[str, int]:
    """The numbers of `entries` and `bytes` in the cache."""
    return _cache.stats()


def cached(key: Key, tensors: tuple[Tensor, ...], build: Callable[[], Format | Tensor]) -> Format | Tensor:
    """The value that `build` computes from `tensors`, kept until one of them is edited. `key` holds the name of the
    format and the `place` of each tensor."""
    found = _cache.get(key, tensors)
    if found is not None:
        bump("format_hits")
        capturing.read(_tensors(found))
        return found
    capturing.refuse("a format of an index")
    versions = versions_of(tensors)
    if torch.is_inference_mode_enabled():
        with ordinary():
            value = build()
    else:
        value = build()
    bump("format_builds")
    _log.info("%s of %d edges built", key[0], tensors[0].numel())
    if versions is not None:
        _cache.put(key, tensors, versions, value, _tensors(value))
    return value


def _tensors(value: Format | Tensor) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, Tensor) else value.tensors


@lru_cache(maxsize=8)
def _native(tools: object) -> ctypes.CDLL:
    """The native library. `tools` is only the key of the cache: other compiler settings give another library."""
    library = kernel_cache.library(sources.source("formats.cpp"))
    pointer, result = ctypes.c_void_p, ctypes.c_int64
    library.gw_flat.argtypes = (_Raw, pointer, Int32, Int32)
    library.gw_flat.restype = result
    library.gw_narrow.argtypes = (pointer, Int64, Int64, pointer, Int32)
    library.gw_narrow.restype = result
    library.gw_group.argtypes = (_Raw, pointer, pointer, Int64, pointer, Int32, Int32)
    library.gw_group.restype = result
    library.gw_place.argtypes = (_Raw, pointer, pointer, pointer, Int32, Int32)
    library.gw_place.restype = result
    return library


def _check(index: Index, wide: bool) -> None:
    values = index.values
    if values.dtype not in (torch.int32, torch.int64):
        raise DataError(f"expected an int32 or int64 index (got {values.dtype}). Convert it with .long().")
    if values.dim() != 1 or values.device.type not in ("cpu", "cuda"):
        raise DataError(
            f"expected a 1-d index on a CPU or GPU (got shape {list(values.shape)} on {values.device})."
            " Flatten it first."
        )
    if not wide and index.wide:
        raise DataError(
            f"expected at most {INT32_MAX} rows and edges in a 32-bit format (got {index.rows} and {index.num_edges}). "
            "Use wide=True."
        )


def _int_dtype(wide: bool) -> torch.dtype:
    return torch.int64 if wide else torch.int32


class _Raw(NativeNumbers):
    """The structure `Index` of `native/formats.cpp`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("stride", "count", "rows")),
        *((name, ctypes.c_bool) for name in ("is64", "wrap")),
    )


def _raw(index: Index) -> _Raw:
    t = index.values
    return _Raw(t.data_ptr(), t.stride(0), t.numel(), index.rows, t.dtype == torch.int64, index.wrap)


def _run_flat(index: Index, out: Tensor | None, wide: bool) -> int:
    """Position of the first value out of range, or -1. Without `out` the values are only checked."""
    to = None if out is None else out.data_ptr()
    return _native(toolchain()).gw_flat(_raw(index), to, wide, num_threads())


def _refuse(status: int, index: Index) -> None:
    """Raise the error that `status` stands for: -1 is no error, any other number the position of the first value out of
    range."""
    match status:
        case -1:
            return
        case -2:
            raise MemoryError(
                f"no memory to group {index.num_edges} edges by {index.rows} rows. Free some, or take a smaller graph."
            )
        case -3:
            raise DataError("expected an index that nobody writes to while it is read (its values changed). Clone it.")
    raise range_error(index.values, index.rows, first=-index.rows if index.wrap else 0, at=status)


def _build_flat(index: Index, wide: bool) -> Tensor:
    _check(index, wide)
    values = index.values
    if values.device.type != "cpu":
        return device_formats.flat(index, wide)
    unchanged = values.dtype == _int_dtype(wide) and values.is_contiguous() and _own_memory.get(values) is True
    if unchanged and _run_flat(replace(index, wrap=False), None, wide) < 0:
        return values.detach()
    out = torch.empty(index.num_edges, dtype=_int_dtype(wide), device="cpu")
    _refuse(_run_flat(index, out, wide), index)
    return out


def _build_csr(index: Index, wide: bool) -> CsrFormat:
    _check(index, wide)
    rows, num_edges = index.rows, index.num_edges
    if index.values.device.type != "cpu":
        indptr, _ = device_formats.group(index, wide)
        return CsrFormat(indptr, False, UNKNOWN, torch.empty(0, dtype=torch.int64, device="cpu"), rows, num_edges)
    indptr = torch.empty(rows + 1, dtype=_int_dtype(wide), device="cpu")
    most = max(1, min(-(-(rows + num_edges) // CHUNK_SHARE), MAX_CHUNKS, rows))
    chunks = torch.empty(most + 1, dtype=torch.int64, device="cpu")
    found = _RawGrouping()
    status = _native(toolchain()).gw_group(
        _raw(index), indptr.data_ptr(), chunks.data_ptr(), most, ctypes.byref(found), wide, num_threads()
    )
    _refuse(status, index)
    if found.num_chunks < most:
        chunks = chunks[: found.num_chunks + 1].clone()
    return CsrFormat(indptr, bool(found.sorted), found.max_degree, chunks, rows, num_edges)


def _placed(index: Index, wide: bool, indptr: Tensor) -> Tensor:
    if index.values.device.type != "cpu":
        return device_formats.group(index, wide)[1]
    return _run_place(index, None, wide, indptr)


def _build_column(index: Index, other: Index, wide: bool) -> Tensor:
    if index.values.shape != other.values.shape:
        raise DataError(
            "expected two index tensors of equal length"
            f" (got {list(index.values.shape)} and {list(other.values.shape)}):"
            " they name the ends of the same edges."
            " Pass such a pair."
        )
    grouped = csr(index, wide)
    if grouped.in_order:
        return flat(other, wide)
    _check(other, wide)
    if index.values.device.type != "cpu":
        order = perm(index, wide)
        assert order is not None
        return flat(other, wide).index_select(0, order)
    return _run_place(index, other, wide, grouped.indptr)


def _run_place(index: Index, other: Index | None, wide: bool, indptr: Tensor) -> Tensor:
    """For each position, the row that `other` names, or the edge if there is no `other`."""
    out = torch.empty(index.num_edges, dtype=_int_dtype(wide), device="cpu")
    to = None if other is None else ctypes.byref(_raw(other))
    status = _native(toolchain()).gw_place(_raw(index), to, indptr.data_ptr(), out.data_ptr(), wide, num_threads())
    _refuse(status, other or index)
    return out
