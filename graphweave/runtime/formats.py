"""Formats of index tensors: checked indices, CSR grouping by row, neighbour columns. Built in native code, cached.

An index tensor is 1-d, int32 or int64, of any stride, on the CPU. Every value is checked before it is used: one that is
out of range raises IndexRangeError. Formats are int32 unless `wide`; they are cached against the index tensor (see
`tracked`), within GRAPHWEAVE_FORMAT_BYTES. Formats of inference tensors are built at every call, since edits of such a
tensor cannot be noticed. Results are shared: do not write into them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar, cast

import torch
from torch import Tensor

from graphweave.core.counters import bump
from graphweave.core.errors import DataError, IndexRangeError
from graphweave.core.settings import settings
from graphweave.runtime import kernel_cache
from graphweave.runtime.launch import MAX_CHUNKS
from graphweave.runtime.toolchain import toolchain
from graphweave.runtime.tracked import Key, TrackedCache, ordinary, place, versions_of

CHUNK_SHARE = 1 << 10
"""Rows plus edges in a chunk of a CSR, at least; there are at most `MAX_CHUNKS` of them."""

INT32_MAX = (1 << 31) - 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CsrFormat:
    """Edges grouped by the row that an index names: those of row r are at positions `indptr[r]` to `indptr[r + 1]`."""

    indptr: Tensor
    """[num_rows + 1], int32, or int64 if wide."""

    perm: Tensor | None
    """[num_edges], same dtype: position -> edge id, increasing within a row. None: the index is sorted, k -> k."""

    max_degree: int
    chunks: Tensor
    """int64 [num_chunks + 1]: row boundaries of about equal rows + edges. One chunk at least, empty if no rows."""

    num_rows: int
    num_edges: int

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(t for t in (self.indptr, self.perm, self.chunks) if t is not None)


_cache: TrackedCache[CsrFormat | Tensor] = TrackedCache(lambda: settings().format_bytes)


def csr(index: Tensor, num_rows: int, wrap: bool = False, wide: bool = False) -> CsrFormat:
    """Groups edges by `index` [num_edges], whose values name rows 0..num_rows (with `wrap` -num_rows..num_rows).

    A stable sort: within a row, positions increase by edge id. DataError if the sizes need `wide` and it is off.
    """
    key = ("csr", place(index), num_rows, wrap, wide)
    return cast(CsrFormat, _cached(key, (index,), lambda: _build_csr(index, num_rows, wrap, wide)))


def column(
    index: Tensor, num_rows: int, wrap: bool, other: Tensor, num_other: int, wrap_other: bool, wide: bool = False
) -> Tensor:
    """`other[perm[k]]` for every position k of `csr(index, num_rows, wrap, wide)`: the neighbour's row, checked.

    [num_edges], int32, or int64 if wide. `index` and `other` have equal length.
    """
    key = ("column", place(index), num_rows, wrap, place(other), num_other, wrap_other, wide)
    build: Callable[[], Tensor] = lambda: _build_column(  # noqa: E731
        index, num_rows, wrap, other, num_other, wrap_other, wide
    )
    return cast(Tensor, _cached(key, (index, other), build))


def flat(index: Tensor, num: int, wrap: bool = False, wide: bool = False) -> Tensor:
    """`index` checked against `num` rows, contiguous, int32 (int64 if wide), wrapped values made non-negative.

    The tensor itself where that changes nothing.
    """
    key = ("flat", place(index), num, wrap, wide)
    return cast(Tensor, _cached(key, (index,), lambda: _build_flat(index, num, wrap, wide)))


def clear() -> None:
    """Forgets every cached format."""
    _cache.clear()


def stats() -> dict[str, int]:
    """`entries` and `bytes` of the cache."""
    return _cache.stats()


def _cached(key: Key, tensors: tuple[Tensor, ...], build: Callable[[], CsrFormat | Tensor]) -> CsrFormat | Tensor:
    found = _cache.get(key, tensors)
    if found is not None:
        bump("format_hits")
        return found
    versions = versions_of(tensors)
    with ordinary(), torch.no_grad():
        value = build()
    bump("format_builds")
    if versions is not None:
        _cache.put(key, tensors, versions, value, (value,) if isinstance(value, Tensor) else value.tensors)
    return value


@lru_cache(maxsize=1)
def _source() -> str:
    return (Path(__file__).parent / "native" / "formats.cpp").read_text(encoding="utf-8")


@lru_cache(maxsize=8)
def _native(tools: object) -> ctypes.CDLL:
    """The native library; `tools` is only the key, so that a change of compiler settings is honoured."""
    library = kernel_cache.library(_source())
    pointer, i64, i32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    library.gw_flat.argtypes = (pointer, i32, i64, i64, i64, i32, pointer, i32, i32)
    library.gw_flat.restype = i64
    library.gw_group.argtypes = (pointer, i64, i64, pointer, pointer, pointer, pointer, i64, i32, i32)
    library.gw_group.restype = i32
    library.gw_permute.argtypes = (pointer, pointer, pointer, i64, i32, i32)
    library.gw_permute.restype = None
    return library


def _check(index: Tensor, num: int, wide: bool) -> None:
    if index.dtype not in (torch.int32, torch.int64):
        raise DataError(f"expected an int32 or int64 index (got {index.dtype}). Convert it with .long().")
    if index.dim() != 1 or index.device.type != "cpu":
        raise DataError(f"expected a 1-d index on the cpu (got shape {list(index.shape)} on {index.device}).")
    if not wide and max(num, index.numel()) > INT32_MAX:
        raise DataError(
            f"expected at most {INT32_MAX} rows and edges in a 32-bit format (got {num} and {index.numel()}). "
            "Use wide=True."
        )


def _int_dtype(wide: bool) -> torch.dtype:
    return torch.int64 if wide else torch.int32


def _run_flat(index: Tensor, num: int, wrap: bool, out: Tensor | None, wide: bool) -> int:
    """Position of the first value out of range, or -1; out None only checks."""
    return _native(toolchain()).gw_flat(
        index.data_ptr(), index.dtype == torch.int64, index.stride(0), index.numel(), num, wrap,
        None if out is None else out.data_ptr(), wide, torch.get_num_threads(),
    )  # fmt: skip


def _build_flat(index: Tensor, num: int, wrap: bool, wide: bool) -> Tensor:
    _check(index, num, wide)
    unchanged = index.dtype == _int_dtype(wide) and index.is_contiguous() and not index.is_inference()
    if unchanged and _run_flat(index, num, False, None, wide) < 0:
        return index.detach()
    out = torch.empty(index.numel(), dtype=_int_dtype(wide))
    bad = _run_flat(index, num, wrap, out, wide)
    if bad >= 0:
        low = f"-{num}" if wrap else "0"
        raise IndexRangeError(
            f"index {int(index[bad])} at position {bad} is out of range for {num} rows; expected {low} <= index < {num}"
        )
    return out


def _build_csr(index: Tensor, num_rows: int, wrap: bool, wide: bool) -> CsrFormat:
    rows = _build_flat(index, num_rows, wrap, wide)  # not kept: 4 bytes an edge that no kernel reads
    num_edges = rows.numel()
    indptr = torch.empty(num_rows + 1, dtype=rows.dtype)
    perm = torch.empty_like(rows)
    num_chunks = max(1, min(-(-(num_rows + num_edges) // CHUNK_SHARE), MAX_CHUNKS, num_rows))
    chunks = torch.empty(num_chunks + 1, dtype=torch.int64)
    degree = torch.empty(1, dtype=torch.int64)
    status = _native(toolchain()).gw_group(
        rows.data_ptr(), num_edges, num_rows, indptr.data_ptr(), perm.data_ptr(), degree.data_ptr(),
        chunks.data_ptr(), num_chunks, wide, torch.get_num_threads(),
    )  # fmt: skip
    if status < 0:
        raise MemoryError(f"no memory to group {num_edges} edges by {num_rows} rows")
    if num_rows > 0:
        chunks = torch.unique_consecutive(chunks)  # a hub spans several shares and leaves empty chunks behind
    return CsrFormat(indptr, None if status == 1 else perm, int(degree), chunks, num_rows, num_edges)


def _build_column(
    index: Tensor, num_rows: int, wrap: bool, other: Tensor, num_other: int, wrap_other: bool, wide: bool
) -> Tensor:
    if index.shape != other.shape:
        raise DataError(
            f"expected two index tensors of equal length (got {list(index.shape)} and {list(other.shape)}): "
            "they name the ends of the same edges."
        )
    perm = csr(index, num_rows, wrap, wide).perm
    if perm is None:
        return flat(other, num_other, wrap_other, wide)
    rows = _build_flat(other, num_other, wrap_other, wide)
    out = torch.empty_like(rows)
    _native(toolchain()).gw_permute(
        rows.data_ptr(), perm.data_ptr(), out.data_ptr(), rows.numel(), wide, torch.get_num_threads()
    )
    return out
