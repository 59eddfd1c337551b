"""Buffers for intermediates and saved values, reused so that their pages are faulted in once, on huge pages.

A fresh tensor of many megabytes costs a page fault every 4 KiB, and half of eager mode's time on large graphs goes
there. Here a buffer comes from a free list of its size class; the tensor made on it owns the buffer, and when the
tensor's storage dies (with the last view, or the last autograd node that saved it) the buffer goes back to the free
list. Tensors may outlive the arena. Contents are undefined, as those of `torch.empty`.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from graphweave.core import locks
from graphweave.core.settings import settings
from graphweave.runtime.resizable import make_resizable

SMALLEST = 1 << 20
"""Tensors of at least this many bytes get a buffer. Smaller ones come from `torch.empty`, which reuses memory well."""

HUGE_PAGE = 2 << 20
"""Bytes of a huge page."""

_strided: Callable[..., Tensor] | None = getattr(torch._C._dynamo.guards, "_empty_strided_cpu", None)
"""Takes a third of the time of `torch.empty`, which parses its arguments for every device."""

_HUGE_ADVICE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)


@dataclass(slots=True, eq=False)
class _Buffer:
    """An anonymous mapping of memory. Its usable part starts at `offset`, at the beginning of a huge page."""

    memory: mmap.mmap
    size: int
    offset: int


def size_class(nbytes: int) -> int:
    """The smallest class that holds `nbytes`: eighths between powers of two, so at most 12.5% is wasted."""
    step = 1 << max(nbytes.bit_length() - 4, 12)
    return -(-nbytes // step) * step


def _map(size: int) -> _Buffer:
    if not hasattr(mmap, "MAP_PRIVATE"):
        return _Buffer(mmap.mmap(-1, size + HUGE_PAGE), size, 0)
    # Shared mappings, which are the module's default, live in shmem, which has no transparent huge pages by default.
    memory = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    offset = -address % HUGE_PAGE
    whole = size // HUGE_PAGE * HUGE_PAGE  # the tail stays on small pages, since most of a huge page would be unused
    if _HUGE_ADVICE is not None and whole:
        memory.madvise(_HUGE_ADVICE, offset, whole)
    return _Buffer(memory, size, offset)


class Arena:
    """Size-class free lists of mapped buffers. All methods may be called from any thread."""

    def __init__(self, bound: Callable[[], int]) -> None:
        """`bound` returns the limit in bytes on free buffers to keep; it is called whenever buffers are freed."""
        self._bound = bound
        self._lock = locks.lock()
        self._free: dict[int, list[_Buffer]] = {}
        # Storages can die anywhere, even inside this class when the garbage collector runs. So their death only appends
        # a buffer here, which needs no lock; the next holder of the lock puts the buffer on its free list.
        self._returned: deque[_Buffer] = deque()
        self._leases: dict[int, tuple[weakref.ref[ctypes.Array[ctypes.c_char]], _Buffer]] = {}
        self._retained = 0
        self._hits = 0
        self._misses = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype, room: int = 0) -> Tensor:
        """A contiguous CPU tensor with undefined contents. From 1 MiB on, its data starts on a page. Its storage has
        memory for `room` further rows behind its own. MemoryError if the system has no memory for it."""
        count = (shape[0] + room) * math.prod(shape[1:]) if room else math.prod(shape)
        nbytes = count * dtype.itemsize
        make = make_resizable() if nbytes >= SMALLEST else None
        if make is None:
            return (
                torch.empty(count, dtype=dtype, device="cpu").resize_(shape)
                if room
                else torch.empty(shape, dtype=dtype, device="cpu")
            )
        buffer = self._take(size_class(nbytes))
        holder = (ctypes.c_char * nbytes).from_buffer(buffer.memory, buffer.offset)
        self._lease(holder, buffer)
        # The storage keeps `holder` alive until it dies or a user resizes it. resize_ sets the shape without making the
        # tensor a view of another.
        made = torch.frombuffer(holder, dtype=dtype, count=count).resize_(shape)
        make(made)
        return made

    def empty_like(self, t: Tensor) -> Tensor:
        """`empty` of the same shape and dtype; the result is contiguous whatever the strides of `t`."""
        return self.empty(t.shape, t.dtype)

    def _lease(self, holder: ctypes.Array[ctypes.c_char], buffer: _Buffer) -> None:
        key = id(buffer)
        leases, returned, settle = self._leases, self._returned, self._settle_if_free
        finalizing = sys.is_finalizing

        def give_back(_: object) -> None:
            if finalizing():  # a tensor that outlives this module's globals
                return
            leases.pop(key, None)
            returned.append(buffer)
            settle()

        leases[key] = (weakref.ref(holder, give_back), buffer)

    def _take(self, size: int) -> _Buffer:
        with self._lock:
            dropped = self._settle()
            buffers = self._free.get(size)
            buffer = buffers.pop() if buffers else None
            if buffer is not None:
                self._hits += 1
                self._retained -= size
            else:
                self._misses += 1
        del dropped
        return buffer if buffer is not None else self._mapped(size)

    def _mapped(self, size: int) -> _Buffer:
        """A new buffer, for which free ones of other sizes are given back if the system has no memory left."""
        try:
            return _map(size)
        except OSError:
            self.trim()
        try:
            return _map(size)
        except OSError as error:
            raise MemoryError(
                f"no memory for {size:,} bytes of a value of the compiled function ({error}). Give graphweave.compile "
                "options={'memory': '8G'}, which computes more and keeps less, or take a smaller graph."
            ) from error

    def _settle_if_free(self) -> None:
        if self._lock.acquire(blocking=False):
            try:
                dropped = self._settle()
            finally:
                self._lock.release()
            del dropped

    def _settle(self) -> list[_Buffer]:
        """Put returned buffers on their free lists. Returns the buffers beyond the bound, which the caller releases."""
        while self._returned:
            buffer = self._returned.popleft()
            self._free.setdefault(buffer.size, []).append(buffer)
            self._retained += buffer.size
        return self._shrink(self._bound())

    def _shrink(self, bound: int) -> list[_Buffer]:
        """Take out the largest buffers, among equal ones the longest unused, until at most `bound` bytes are left."""
        dropped: list[_Buffer] = []
        while self._retained > bound:
            size = max(self._free)
            buffers = self._free[size]
            if buffers:
                dropped.append(buffers.pop(0))  # lists grow at the end, so the first entry is the longest unused
                self._retained -= size
            if not buffers:
                del self._free[size]
        return dropped

    def trim(self) -> int:
        """Give all free buffers back to the system, and return their number of bytes."""
        with self._lock:
            dropped = [*self._settle(), *self._shrink(0)]
        return sum(buffer.size for buffer in dropped)

    def stats(self) -> dict[str, int]:
        """`in_use` and `retained` (free) bytes, rounded up to size classes; `hits` and `misses` of the free lists."""
        with self._lock:
            dropped = self._settle()
            in_use = sum(buffer.size for _, buffer in list(self._leases.values()))
            answer = {"in_use": in_use, "retained": self._retained, "hits": self._hits, "misses": self._misses}
        del dropped
        return answer


arena = Arena(lambda: settings().arena_bytes)
"""The arena that compiled programs share."""


def empty(shape: Sequence[int], dtype: torch.dtype, room: int = 0) -> Tensor:
    """`arena.empty`: a contiguous CPU tensor with undefined contents, on a reused buffer from 1 MiB on."""
    return arena.empty(shape, dtype, room)


class Maker:
    """Makes such tensors of one row shape, again and again, for row counts that may differ from call to call."""

    def __init__(self, row_shape: Sequence[int], dtype: torch.dtype, *, rows: bool = True) -> None:
        """Without `rows`, the tensors have the shape `row_shape` itself."""
        self._row_shape, self._dtype, self._rows = tuple(row_shape), dtype, rows
        self._row_bytes = math.prod(row_shape) * dtype.itemsize
        strides = [1]
        for size in reversed(row_shape):
            strides.append(strides[-1] * max(size, 1))
        self._strides = tuple(reversed(strides[: None if rows else -1]))

    def nbytes(self, rows: int) -> int:
        """The bytes of a tensor of so many rows."""
        return rows * self._row_bytes if self._rows else self._row_bytes

    def of(self, rows: int, room: int = 0) -> Callable[[], Tensor]:
        """A function that makes a tensor of so many rows: PyTorch's own where the arena would ask it anyway."""
        shape = (rows, *self._row_shape) if self._rows else self._row_shape
        if room or self.nbytes(rows) >= SMALLEST:
            return partial(arena.empty, shape, self._dtype, room)
        if _strided is None:
            return partial(torch.empty, shape, dtype=self._dtype, device="cpu")
        return partial(_strided, shape, self._strides, self._dtype)


def stats() -> dict[str, int]:
    return arena.stats()


def trim() -> int:
    return arena.trim()
