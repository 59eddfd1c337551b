"""Edits of index tensors that PyTorch does not see: through `.data`, NumPy, dlpack, a storage, another process.

They change no version counter, so caches would take the tensor as unchanged. Therefore the memory of each index that a
program gets has a checksum, which is compared when the program gets the index again. If the index has at most 32 KiB,
each call reads all of it. If it is larger, a call reads one part in 4, 16 or 64 (`_PARTS`), which consists of runs of
256 bytes spread all over it, and the next call reads another part. So

- an edit of an index of at most 32 KiB, or of 16 KiB and more side by side, is noticed by the next call;
- an edit of one number of a larger index is noticed by a call with a probability of 1 / parts, and by one of the next
  `parts` calls for certain; an edit of k numbers spread over it by the next call with 1 - (1 - 1 / parts)^k.

Two contents have the same checksum by chance once in 2^64. As long as an edit is not noticed, results are those of the
unedited graph, since kernels read only checked copies. GRAPHWEAVE_UNSEEN_EDITS=0 and the option `unseen_edits=False`
turn this off. Only memory of the CPU is read, since a GPU would make the call wait.

All this holds for index tensors alone, which means every argument of integers or booleans from which a prelude
computes. Features are read in whole at each call that uses what was computed from them (`whole_checksum`).
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from graphweave.core.counters import bump
from graphweave.core.errors import ToolchainError
from graphweave.core.log import logger, warn_once
from graphweave.core.settings import settings
from graphweave.runtime import tracked
from graphweave.runtime.native_library import library
from graphweave.runtime.storages import ByStorage
from graphweave.runtime.tensor_layout import counter_of
from graphweave.runtime.threads import num_threads
from graphweave.runtime.tracked import Key, Versions, place, versions_of

_log = logger(__name__)

_PARTS = ((32 << 10, 1), (256 << 10, 4), (8 << 20, 16))
"""(bytes, parts): an index of at most this many bytes has this many parts. A check then takes some microseconds, or
some thousandths of the time of a kernel."""

_MAX_PARTS = 64
"""Number of parts of larger indices. Must equal the number in `native/checksum.cpp`."""

_STARTS = random.Random()
"""Draws the part that is read first. Python's own generator is left alone: programs draw negative edges from it."""

_TENSORS = 256
"""Limit on the records for tensors of one storage (such as slices of a large index). The oldest record is dropped
first."""

_CHECKED_RECORDS = 8
"""When a tensor without a valid record arrives, this many of its storage's latest records are compared."""


class _Sums(ctypes.Structure):
    """The structure of `native/checksum.cpp`: a rectangle of memory, its strides in bytes, and the sum of each part."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("data", "item", "rows", "row_stride", "cols", "col_stride")),
        ("parts", ctypes.c_int64),
        ("turn", ctypes.c_int64),
        ("sums", ctypes.c_uint64 * _MAX_PARTS),
    )

    @property
    def end(self) -> int:
        """The end address of the rectangle, exclusive."""
        last = (self.rows - 1) * self.row_stride + (self.cols - 1) * self.col_stride
        return int(self.data + last + self.item)


@dataclass(slots=True, eq=False)
class _Record:
    """The checksums of a tensor's memory when its version was `versions`."""

    sums: _Sums
    versions: Versions
    next_is_same: Callable[[], int]  # keeps `sums` alive, and so may outlive the record


_memories: ByStorage[dict[Key, _Record]] = ByStorage()
"""The records of each storage, oldest first."""


def _checked(t: Tensor) -> _Record | None:
    """The current record of `t`; None for a tensor that is not checked.

    If its memory was edited since the last check without PyTorch seeing it, values computed from it are dropped from
    all caches.
    """
    sums = _sums_of(t)
    native, versions = (None, None) if sums is None else (_native(), versions_of((t,)))
    if native is None or sums is None or versions is None:
        return None
    key, records = place(t), _memories.get(t)
    if records is not None:
        record = records.get(key)
        if record is not None and record.versions == versions:
            if record.next_is_same():
                return record
            same = False
        else:  # this view is seen for the first time, or PyTorch has seen an edit of it
            latest = list(records.values())[-_CHECKED_RECORDS:]
            same = all(_still(r, t.untyped_storage(), versions) for r in latest)
        if not same:
            bump("unseen_edits")
            _log.info("an index of shape %s was edited in a way that PyTorch does not see", list(t.shape))
            tracked.forget(t)
            records = None
    if records is None:
        records = {}
        _memories.put(t, records)
    native.gw_sum(ctypes.byref(sums), num_threads())
    records[key] = made = _Record(sums, versions, partial(native.gw_next_is_same, ctypes.byref(sums)))
    if len(records) > _TENSORS:
        records.pop(next(iter(records)), None)
    return made


class Watch:
    """Checks one argument of a program at each call, and remembers the tensor of the last call.

    That is known by its storage, its version counter and its layout, so the next call may pass another view of the
    same part, such as a row of an edge_index. A weak reference to the tensor itself would keep
    `torch.utils.swap_tensors` from it.
    """

    __slots__ = ("_last", "_next_is_same", "_storage")

    def __init__(self) -> None:
        self._last: object = None
        self._storage: StorageWeakRef | None = None  # while it lives, no other storage gets the address
        self._next_is_same: Callable[[], int] = lambda: 0

    def __call__(self, t: Tensor) -> None:
        """Drop from all caches what was computed from the memory of `t`, if that was edited without PyTorch seeing
        it."""
        if self._last is not None and not t.is_inference() and self._last == _layout(t) and self._next_is_same():
            return
        record = _checked(t) if settings().unseen_edits else None
        if record is None:
            self._last = self._storage = None
        else:
            self._last, self._next_is_same = _layout(t), record.next_is_same
            self._storage = StorageWeakRef(t.untyped_storage())


def _layout(t: Tensor) -> tuple[object, ...]:
    """A key that is equal for two tensors of one storage, version and layout. `t` must be no inference tensor."""
    storage = t.untyped_storage()._cdata
    return storage, counter_of(t), t._version, t.data_ptr(), t.shape, t.stride(), t.dtype


def watch(t: Tensor) -> None:
    """Check `t` as a `Watch` does that sees it for the first time."""
    if settings().unseen_edits:
        _checked(t)


def is_watched(t: Tensor) -> bool:
    """Whether checksums of memory of `t` are kept, as they are wherever something that was made of it can be found."""
    return _memories.get(t) is not None


def sums_of(t: Tensor) -> ctypes.Structure | None:
    """The checksums of `t` with which a `Watch` has compared it; None if it has none."""
    records = _memories.get(t)
    record = None if records is None else records.get(place(t))
    return None if record is None else record.sums


def whole_checksum(t: Tensor) -> int | None:
    """The checksum of all memory of `t`; None for a tensor whose memory cannot be read so (see `_sums_of`)."""
    native, sums = _native(), _sums_of(t)
    return None if native is None or sums is None else int(native.gw_whole_sum(ctypes.byref(sums), num_threads()))


def _still(record: _Record, storage: torch.UntypedStorage, versions: Versions) -> bool:
    """Whether the memory of `record` in `storage` is unchanged, or PyTorch has seen the edit that changed it."""
    (counter, version), (its_counter, its_version) = versions[0], record.versions[0]
    if counter == its_counter and version != its_version:
        return True
    begin, sums = storage.data_ptr(), record.sums
    return begin <= sums.data and sums.end <= begin + storage.nbytes() and bool(record.next_is_same())


def _sums_of(t: Tensor) -> _Sums | None:
    """The rectangle of memory that `t` covers. None if `t` is not on the CPU, has no elements or wide ones, or covers
    no rectangle."""
    if t.numel() == 0 or t.device.type != "cpu" or t.layout is not torch.strided or t.element_size() > 8:
        return None
    dims: list[tuple[int, int]] = []  # size and stride of dims with more than one element, outer before inner
    for size, stride in sorted(zip(t.shape, t.stride(), strict=True), key=lambda d: -d[1]):
        if size == 1 or stride == 0:
            continue
        if dims and dims[-1][1] == size * stride:
            dims[-1] = (dims[-1][0] * size, stride)
        else:
            dims.append((size, stride))
    if len(dims) > 2:
        return None
    (rows, row_stride), (cols, col_stride) = [(1, 0), (1, 1), *dims][-2:] if len(dims) != 1 else ((1, 0), dims[0])
    item = t.element_size()
    nbytes = rows * cols * item
    parts = next((parts for most, parts in _PARTS if nbytes <= most), _MAX_PARTS)
    start = _STARTS.getrandbits(16)
    made = _Sums(t.data_ptr(), item, rows, row_stride * item, cols, col_stride * item, parts, start)
    storage = t.untyped_storage()
    return made if made.end <= storage.data_ptr() + storage.nbytes() else None


def _native() -> ctypes.CDLL | None:
    try:
        return library()
    except ToolchainError as error:
        warn_once(f"edits that PyTorch does not see are not noticed: {error}", _log)
        return None
