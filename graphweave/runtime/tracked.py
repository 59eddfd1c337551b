"""A cache of values computed from tensors, each valid as long as the contents of its tensors do not change.

A tensor is recognised by its storage, address and layout, so a fresh view of the same memory has the same key. The
entry keeps an alias of the tensor, so neither its storage nor its version counter can die and give their address to
another. It remembers which version counter the tensor has and the counter's value, which every in-place edit through
any view increases. A tensor with another counter (`.data`, or one made over the same memory) is another tensor.
Inference tensors have no version counter and are never cached. Edits that torch cannot see (through NumPy or another
library's pointer) are found by `unseen_edits.py`, which calls `forget` here.
"""

from __future__ import annotations

import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

from graphweave.core import locks
from graphweave.runtime.version_counter import counter_of

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


def _references(t: Tensor) -> int:
    """How many tensors and other owners share the storage of `t`, up to a constant."""
    return torch._C._storage_Use_Count(t.untyped_storage()._cdata)


_COUNT_OF_ONE = _references(torch.empty(1))
_caches: weakref.WeakSet[TrackedCache[Any]] = weakref.WeakSet()
_edits = 0
"""Number of edits found so far that PyTorch has not seen, of any tensor."""

SWEEP_BYTES = 64 << 20
"""A cache with more bytes than this is searched for entries of dead tensors, and again whenever it has doubled."""


@dataclass(slots=True)
class _Entry(Generic[T]):
    value: T
    versions: Versions
    seen: tuple[weakref.ref[Tensor], ...]  # the tensors themselves, whose counters need not be compared
    aliases: tuple[Tensor, ...]
    made: tuple[Tensor, ...]
    nbytes: int


class TrackedCache(Generic[T]):
    """Cache entries with a bound in bytes; the least recently used are dropped first. Any thread may call all methods.

    An entry with a tensor that only the cache still holds (of a past mini-batch) can never be found again. The cache is
    searched for such entries from time to time, so that they do not fill it up to its bound.
    """

    def __init__(self, bound: Callable[[], int]) -> None:
        """`bound` returns the limit in bytes on values and the tensors from which they were computed. It is called at
        every insertion."""
        self._bound = bound
        self._entries: OrderedDict[Key, _Entry[T]] = OrderedDict()
        self._bytes = 0
        self._sweep_at = SWEEP_BYTES
        self._lock = locks.lock()
        _caches.add(self)

    def get(self, key: Key, tensors: tuple[Tensor, ...]) -> T | None:
        """The value stored under `key`, unless a tensor has been edited since. `key` holds the `place` of each
        tensor."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        for t, seen, (counter, version) in zip(tensors, entry.seen, entry.versions):  # noqa: B905 - costs 0.1 us
            if t._version != version or (t is not seen() and counter_of(t) != counter):
                return None
        if self._lock.acquire(blocking=False):  # if another thread walks the entries, their order stays as it is
            try:
                if key in self._entries:  # another thread may have dropped it
                    self._entries.move_to_end(key)
            finally:
                self._lock.release()
        return entry.value

    def put(
        self, key: Key, tensors: tuple[Tensor, ...], versions: Versions, value: T, made: tuple[Tensor, ...]
    ) -> None:
        """Store a value that owns the tensors `made`. `versions` were read before the value was computed from
        `tensors`.

        A value that alone exceeds the bound is not kept.
        """
        size = sum(nbytes(t) for t in (*tensors, *made))
        bound = self._bound()
        # detach() shares storage and version counter, and keeps both when the caller rebinds the tensor with set_().
        entry = _Entry(
            value, versions, tuple(map(weakref.ref, tensors)), tuple(t.detach() for t in tensors), made, size
        )
        dropped: list[_Entry[T] | None] = []  # freed after the lock is released
        with self._lock:
            dropped.append(self._pop(key))
            if size <= bound:
                self._entries[key] = entry
                self._bytes += size
            if self._bytes > min(self._sweep_at, bound):
                dropped += [self._pop(dead) for dead in self._dead()]
                self._sweep_at = max(SWEEP_BYTES, 2 * self._bytes)
            while self._bytes > bound:
                dropped.append(self._pop(next(iter(self._entries))))
        del dropped

    def _dead(self) -> list[Key]:
        """Keys of entries that have an input whose storage nothing outside this cache refers to."""
        ours: Counter[int] = Counter()
        for entry in self._entries.values():
            ours.update(_storage(t) for t in (*entry.aliases, *entry.made))
        others = {
            _storage(t): _references(t) - _COUNT_OF_ONE + 1 for entry in self._entries.values() for t in entry.aliases
        }
        dead = {storage for storage, references in others.items() if references <= ours[storage]}
        return [key for key, entry in self._entries.items() if any(_storage(t) in dead for t in entry.aliases)]

    def _pop(self, key: Key) -> _Entry[T] | None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry.nbytes
        return entry

    def forget(self, storage: int) -> None:
        """Drop every entry that was computed from memory of this storage, or that owns it."""
        with self._lock:
            found = [
                key
                for key, entry in self._entries.items()
                if any(_storage(t) == storage for t in (*entry.aliases, *entry.made))
            ]
            dropped = [self._pop(key) for key in found]
        del dropped

    def clear(self) -> None:
        with self._lock:
            dropped, self._entries, self._bytes = self._entries, OrderedDict(), 0
            self._sweep_at = SWEEP_BYTES
        dropped.clear()

    def stats(self) -> dict[str, int]:
        """The number of `entries`, and the `bytes` that they hold."""
        with self._lock:
            return {"entries": len(self._entries), "bytes": self._bytes}


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
