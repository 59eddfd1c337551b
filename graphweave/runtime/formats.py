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
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from graphweave.core.counters import bump
from graphweave.core.errors import DataError
from graphweave.core.log import logger
from graphweave.core.ranges import range_error
from graphweave.core.settings import settings
from graphweave.runtime import capturing, device_formats
from graphweave.runtime.index import INT32_MAX, Index
from graphweave.runtime.index_records import MadeFormat, Record, own_memory, record_of, sized
from graphweave.runtime.index_records import cache as records
from graphweave.runtime.native_library import library
from graphweave.runtime.threads import num_threads
from graphweave.runtime.tracked import Key, TrackedCache, ordinary, versions_of

CHUNK_SHARE = 1 << 10
"""A chunk of a CSR has at least about this many rows and edges, and there are at most `MAX_CHUNKS` chunks."""

UNKNOWN = -1
"""Stands for a largest degree that the host does not know, since it has not asked the device."""

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


_cache: TrackedCache[Format | Tensor] = TrackedCache(lambda: settings().format_bytes)
"""Formats that PyTorch's operations have made. Those that native code makes belong to the record of their index."""


def csr(index: Index, wide: bool = False) -> CsrFormat:
    """Edges grouped by the row that `index` names.

    Within a row, edges keep their order. Raises DataError if the sizes need 64 bits and `wide` is false.
    """
    check(index, wide)
    if index.values.device.type != "cpu":
        return cast(CsrFormat, cached(("csr", index.key, wide), (index.values,), lambda: _csr_on_device(index, wide)))

    def read_format(record: Record, found: MadeFormat) -> CsrFormat:
        indptr = record.tensor(found.data, index.rows + 1, _int_dtype(wide))
        chunks = record.tensor(found.chunks, found.num_chunks + 1, torch.int64)
        return CsrFormat(indptr, bool(found.sorted), found.max_degree, chunks, index.rows, index.num_edges)

    return cast(CsrFormat, _of_record("csr", index, wide, read_format))


def perm(index: Index, wide: bool = False) -> Tensor | None:
    """[num_edges], dtype of indptr: the edge at each position of `csr(index, wide)`.

    None if the index is sorted. Only kernels that read edge values in the user's order need it.
    """
    if csr(index, wide).in_order:
        return None
    if index.values.device.type != "cpu":
        key = ("perm", index.key, wide)
        return cast(Tensor, cached(key, (index.values,), lambda: device_formats.group(index, wide)[1]))
    return cast(Tensor, _of_record("perm", index, wide, _edges_of(index, wide)))


def column(index: Index, other: Index, wide: bool = False) -> Tensor:
    """`other[perm[k]]` for every position k of `csr(index, wide)`: the neighbour's row, checked.

    [num_edges], int32, or int64 if wide. `index` and `other` have equal length.
    """
    if index.values.shape != other.values.shape:
        raise DataError(unequal(index.values, other.values))
    if index.values.device.type != "cpu":
        key = ("column", index.key, other.key, wide)
        return cast(Tensor, cached(key, (index.values, other.values), lambda: _column_on_device(index, other, wide)))
    if csr(index, wide).in_order:
        return flat(other, wide)
    check(other, wide)
    return cast(Tensor, _of_record("column", index, wide, _edges_of(index, wide), other))


def flat(index: Index, wide: bool = False) -> Tensor:
    """The rows that `index` names, checked, contiguous, int32 (int64 if wide), wrapped values made non-negative.

    This is the tensor itself if none of this changes it and `narrowed` has made it. Any other tensor is copied, since
    others may write to it after the check.
    """
    check(index, wide)
    if index.values.device.type != "cpu":
        key = ("flat", index.key, wide)
        return cast(Tensor, cached(key, (index.values,), lambda: device_formats.flat(index, wide)))
    return cast(Tensor, _of_record("flat", index, wide, _edges_of(index, wide)))


def narrowed(index: Tensor) -> Tensor:
    """`index` in 32 bits, not checked against any number of rows; `index` itself if one of its values does not fit.

    The result is the same map at half the size. Tensors other than int64 [num_edges] on the CPU are returned unchanged.
    """
    if index.dtype != torch.int64 or index.dim() != 1 or index.device.type != "cpu":
        return index
    out = torch.empty(index.numel(), dtype=torch.int32, device="cpu")
    bad = library().gw_narrow(index.data_ptr(), index.stride(0), index.numel(), out.data_ptr(), num_threads())
    if bad >= 0:
        return index
    own_memory.put(out, True)
    return out


def range_check() -> Callable[[Tensor, int], bool]:
    """A function that tells whether a tensor is known to be an index on the CPU, of one dim, whose values all lie in
    0..rows-1, for some `rows`."""
    native: Any = None

    def is_in_range(index: Tensor, rows: int) -> bool:
        nonlocal native
        if index.device.type != "cpu":
            return False
        if native is None:
            native = library().gw_in_range
        return bool(native(index._cdata, rows, num_threads()) == -1)

    return is_in_range


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
    check(index, wide)
    if index.values.device.type != "cpu":
        return device_formats.group(index, wide)
    record, n, dtype = Record(index, kept=False), index.num_edges, _int_dtype(wide)
    indptr, order = (_native(name, record, index, wide) for name in ("csr", "perm"))
    return record.tensor(indptr.data, index.rows + 1, dtype), record.tensor(order.data, n, dtype)


def clear() -> None:
    """Drop all cached formats."""
    _cache.clear()
    records.clear()


def stats() -> dict[str, int]:
    """The numbers of `entries` and `bytes` in the cache. All formats of one index are one entry."""
    both = _cache.stats(), records.stats()
    return {name: sum(one[name] for one in both) for name in both[0]}


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


def check(index: Index, wide: bool) -> None:
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


def _of_record(
    name: str,
    index: Index,
    wide: bool,
    make: Callable[[Record, MadeFormat], Format | Tensor],
    other: Index | None = None,
) -> Format | Tensor:
    """The object that `make` makes of a format of the index's record. It is kept with the record."""
    with sized(index) as record:
        against = None if other is None else record_of(other)
        key = name, wide, None if against is None else against.handle.address
        found = record.made.get(key)
        if found is not None:
            bump("format_hits")
        else:
            capturing.refuse("a format of an index")
            native = _native(name, record, index, wide, against, other)
            if native.builds:
                _log.info("%s of %d edges built", name, index.num_edges)
            found = make(record, native), against  # the other record is kept, so that its address stays its own
            if native.data != index.values.data_ptr():  # an alias of the index would keep it alive
                record.made[key] = found
    value: Format | Tensor = found[0]
    capturing.read(_tensors(value))
    return value


def _native(
    name: str, record: Record, index: Index, wide: bool, against: Record | None = None, other: Index | None = None
) -> MadeFormat:
    """A format of a record, made by native code unless it is there."""
    made, function = MadeFormat(), getattr(record.handle.native, f"gw_record_{name}")
    others = () if against is None else (against.handle.address,)
    status = function(record.handle.address, *others, wide, ctypes.byref(made), num_threads())
    bump("format_builds", made.builds)
    bump("format_hits", made.hits)
    refuse(status, other if made.at_other and other is not None else index)
    return made


def _edges_of(index: Index, wide: bool) -> Callable[[Record, MadeFormat], Tensor]:
    """Makes a tensor of a format that has a number for each edge."""

    def read_edges(record: Record, found: MadeFormat) -> Tensor:
        if found.data == index.values.data_ptr() and index.num_edges:
            return index.values.detach()
        return record.tensor(found.data, index.num_edges, _int_dtype(wide))

    return read_edges


def unequal(index: Tensor, other: Tensor) -> str:
    """The message about two indices of the same edges that have different lengths."""
    return (
        f"expected two index tensors of equal length (got {list(index.shape)} and {list(other.shape)}):"
        " they name the ends of the same edges. Pass such a pair."
    )


def refuse(status: int, index: Index) -> None:
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


def _csr_on_device(index: Index, wide: bool) -> CsrFormat:
    indptr, _ = device_formats.group(index, wide)
    none = torch.empty(0, dtype=torch.int64, device="cpu")
    return CsrFormat(indptr, False, UNKNOWN, none, index.rows, index.num_edges)


def _column_on_device(index: Index, other: Index, wide: bool) -> Tensor:
    order = perm(index, wide)
    assert order is not None
    return flat(other, wide).index_select(0, order)
