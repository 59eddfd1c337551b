"""A cache of values computed from tensors, each valid as long as the contents of its tensors do not change.

A tensor is recognised by its storage, address and layout, so a fresh view of the same memory has the same key. The
entry keeps an alias of the tensor, so neither its storage nor its version counter can die and give their address to
another. There is no weak reference to the tensor itself, since `torch.utils.swap_tensors` refuses tensors that have
any. The entry remembers which version counter the tensor has and the counter's value, which every in-place edit through
any view increases. A tensor with another counter (`.data`, or one made over the same memory) is another tensor.
Inference tensors have no version counter and are never cached. Edits that torch cannot see (through NumPy or another
library's pointer) are found by `unseen_edits.py`, which calls `forget` here.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

from graphweave.core import locks
from graphweave.core.counters import bump
from graphweave.core.log import logger, warn_once
from graphweave.runtime.tensor_layout import counter_of

_log = logger(__name__)

T = TypeVar("T")
Key = tuple[Hashable, ...]
Versions: TypeAlias = tuple[tuple[int, int], ...]
"""For each tensor, the address of its version counter and the counter's value."""


def place(t: Tensor) -> Key:
    """A key that is equal for tensor objects of the same memory, layout and dtype, as long as one of them is
    referenced."""
    return (t.data_ptr(), t.untyped_storage()._cdata, t.shape, t.stride(), t.dtype)


def _storage(t: Tensor) -> int:
    return t.untyped_storage()._cdata


def nbytes(t: Tensor) -> int:
    return t.numel() * t.element_size()


def _count_of_one() -> int:
    """The use count of a storage with one tensor. PyTorch's Python object for the storage may count, too."""
    t = torch.empty(1, device="cpu")
    return int(torch._C._storage_Use_Count(_storage(t)))


_OTHERS = _count_of_one() - 1
_use_count = torch._C._storage_Use_Count
_caches: weakref.WeakSet[TrackedCache[Any]] = weakref.WeakSet()
_lock = locks.lock()
"""Held while entries of any cache change."""
_held: list[dict[int, int]] = []
"""One for each cache: for each storage that entries were computed from, how many of its references are their own."""

_edits = 0
"""Number of edits found so far that PyTorch has not seen, of any tensor."""

SEARCHED = 4
"""Every insertion looks at this many entries, in turn, for tensors that are dead."""


@dataclass(slots=True)
class _Entry(Generic[T]):
    value: T
    versions: Versions
    aliases: tuple[Tensor, ...]
    made: tuple[Tensor, ...]
    nbytes: int
    storages: tuple[int, ...]  # of the aliases
    inside: tuple[int, ...]  # the same, and once more for each tensor made that shares one of them

    def dead(self) -> bool:
        """Whether nothing but entries of caches refers to the memory of a tensor from which this was computed."""
        for s in self.storages:
            count = _use_count(s) - _OTHERS
            for held in _held:
                count -= held.get(s, 0)
            if count <= 0:
                return True
        return False


class TrackedCache(Generic[T]):
    """Cache entries with a bound in bytes; the least recently used are dropped first. Any thread may call all methods.

    An entry with a tensor that only caches still hold (of a past mini-batch) can never be found again. Every insertion
    searches a few entries for such ones, so that they free their memory for the next batch. A tensor that an entry
    *made* may still be found through this entry, and lives as long.
    """

    def __init__(
        self, bound: Callable[[], int], used: Callable[[T], bool] | None = None,
        dropped: Callable[[T], None] | None = None,
    ) -> None:  # fmt: skip
        """`bound` returns the limit in bytes on values and the tensors from which they were computed. It is called at
        every insertion.

        `used` tells whether others than `get` have used a value since it was last asked; such a value gets a second
        chance. `dropped` is called with each value that is dropped, or not kept at all.
        """
        self._bound, self._used, self._dropped = bound, used, dropped
        self._entries: OrderedDict[Key, _Entry[T]] = OrderedDict()
        self._bytes = 0
        self._to_search: list[Key] = []
        self._held: dict[int, int] = {}
        with _lock:
            _caches.add(self)
            _held.append(self._held)
        weakref.finalize(self, _no_longer_held, self._held).atexit = False

    def get(self, key: Key, tensors: tuple[Tensor, ...]) -> T | None:
        """The value stored under `key`, unless a tensor has been edited since. `key` holds the `place` of each
        tensor."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        for t, (counter, version) in zip(tensors, entry.versions):  # noqa: B905 - costs 0.1 us
            if t._version != version or counter_of(t) != counter:
                return None
        if _lock.acquire(blocking=False):  # if another thread walks the entries, their order stays as it is
            try:
                if key in self._entries:  # another thread may have dropped it
                    self._entries.move_to_end(key)
            finally:
                _lock.release()
        return entry.value

    def put(
        self, key: Key, tensors: tuple[Tensor, ...], versions: Versions, value: T, made: tuple[Tensor, ...]
    ) -> None:
        """Store a value that owns the tensors `made`. `versions` were read before the value was computed from
        `tensors`.

        A value that alone exceeds the bound is not kept. Such values, and those of tensors in use that are dropped for
        others, are counted as `live_drops`, which is logged once.
        """
        size = sum(nbytes(t) for t in (*tensors, *made))
        storages = tuple(map(_storage, tensors))
        inside = (*storages, *(s for s in map(_storage, made) if s in storages))
        # detach() shares storage and version counter, and keeps both when the caller rebinds the tensor with set_().
        entry = _Entry(value, versions, tuple(t.detach() for t in tensors), made, size, storages, inside)
        bound = self._bound()
        dropped: list[_Entry[T] | None] = []  # freed after the lock is released
        with _lock:
            dropped.append(self._pop(key))
            if size <= bound:
                self._entries[key] = entry
                self._bytes += size
                for s in inside:
                    self._held[s] = self._held.get(s, 0) + 1
            elif self._dropped is not None:
                self._dropped(value)
            dropped += self._some_dead(SEARCHED)
            live = self._make_room(bound, dropped) + (size > bound)
        _tell_of_drops(live, bound)
        del dropped

    def resize(self, key: Key, made: int) -> None:
        """Say how many bytes the value under `key` has now, besides the tensors from which it was computed."""
        dropped: list[_Entry[T] | None] = []
        live, bound = 0, self._bound()
        with _lock:
            entry = self._entries.get(key)
            if entry is not None:
                size = sum(map(nbytes, entry.aliases)) + made
                self._bytes += size - entry.nbytes
                entry.nbytes = size
                if size > bound:
                    dropped.append(self._pop(key))
                    live += 1
                live += self._make_room(bound, dropped)
        _tell_of_drops(live, bound)
        del dropped

    def _make_room(self, bound: int, dropped: list[_Entry[T] | None]) -> int:
        """Move entries into `dropped` until at most `bound` bytes are left: dead ones, then those that were not used
        lately. Returns the number of these."""
        if self._bytes > bound:
            dropped += self._some_dead(len(self._entries))
        chances, live = len(self._entries), 0
        while self._bytes > bound:
            key = next(iter(self._entries))
            chances -= 1
            if self._used is not None and chances >= 0 and self._used(self._entries[key].value):
                self._entries.move_to_end(key)
            else:
                dropped.append(self._pop(key))
                live += 1
        return live

    def _some_dead(self, count: int) -> list[_Entry[T] | None]:
        """The dead among the next `count` entries, taken out."""
        found: list[_Entry[T] | None] = []
        for _ in range(count):
            if not self._to_search:
                self._to_search = list(reversed(self._entries))  # the least recently used is taken first
            entry = self._entries.get(key := self._to_search.pop()) if self._to_search else None
            if entry is not None and entry.dead():
                found.append(self._pop(key))
        return found

    def _pop(self, key: Key) -> _Entry[T] | None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry.nbytes
            for s in entry.inside:
                self._held[s] -= 1
                if not self._held[s]:
                    del self._held[s]
            if self._dropped is not None:
                self._dropped(entry.value)
        return entry

    def forget(self, storage: int) -> None:
        """Drop every entry that was computed from memory of this storage, or that owns it."""
        with _lock:
            found = [
                key
                for key, entry in self._entries.items()
                if any(_storage(t) == storage for t in (*entry.aliases, *entry.made))
            ]
            dropped = [self._pop(key) for key in found]
        del dropped

    def drop(self, key: Key) -> None:
        """Drop the entry under `key`, if there is one."""
        with _lock:
            dropped = self._pop(key)
        del dropped

    def clear(self) -> None:
        with _lock:
            dropped = [self._pop(key) for key in list(self._entries)]
        del dropped

    def stats(self) -> dict[str, int]:
        """The number of `entries`, and the `bytes` that they hold."""
        with _lock:
            return {"entries": len(self._entries), "bytes": self._bytes}


def _tell_of_drops(live: int, bound: int) -> None:
    """Count entries of tensors in use that were dropped, and say so once. A bound of 0 keeps nothing by intention."""
    if live and bound:
        bump("live_drops", live)
        warn_once(
            f"What is kept for graphs in use exceeds GRAPHWEAVE_FORMAT_BYTES ({bound:,} bytes), so some of it is made "
            "again at later calls. Set it higher if there is memory for that.",
            _log,
        )


def _no_longer_held(table: dict[int, int]) -> None:
    """Note that a cache is gone. It may go while the lock is held, so none is taken."""
    _held[:] = [other for other in _held if other is not table]


def versions_of(tensors: tuple[Tensor, ...]) -> Versions | None:
    """The versions for `TrackedCache.put`; None if one of the tensors has no version (an inference tensor)."""
    if any(t.is_inference() for t in tensors):
        return None
    return tuple((counter_of(t), t._version) for t in tensors)


class Mark:
    """The state of a tensor when something was computed from it. A cache of one entry compares tensors to it by
    `holds`."""

    __slots__ = ("_alias", "_counter", "_edits", "_layout", "_storage", "_tensor", "_version")

    def __init__(self, t: Tensor) -> None:
        """`t` must not be an inference tensor, since edits of these cannot be noticed."""
        self._alias = t.detach()  # keeps storage and counter, even if the caller rebinds the tensor
        self._tensor = t
        self._layout = t.data_ptr(), t.shape, t.stride(), t.dtype
        self._version, self._counter, self._storage = t._version, counter_of(t), _storage(t)
        self._edits = _edits

    def holds(self, t: Tensor) -> bool:
        """Whether `t` is this tensor or an alias of it, and has not been edited."""
        if t is not self._tensor and (
            t.is_inference() or counter_of(t) != self._counter or _storage(t) != self._storage
        ):
            return False
        layout = t.data_ptr(), t.shape, t.stride(), t.dtype
        return t._version == self._version and layout == self._layout and _edits == self._edits


def unseen_edits() -> int:
    """The number of edits found so far that PyTorch has not seen."""
    return _edits


def forget(t: Tensor) -> None:
    """Drop from every cache what was computed from memory of `t`, after an edit that PyTorch has not seen."""
    global _edits
    _edits += 1
    for cache in list(_caches):
        cache.forget(_storage(t))


def ordinary() -> torch.inference_mode:
    """A context that makes ordinary tensors even under inference mode, since cached tensors may later be used with
    gradients enabled."""
    return torch.inference_mode(False)
