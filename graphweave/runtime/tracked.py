"""A cache of values computed from tensors, valid exactly as long as those tensors hold what they held.

A tensor is recognised by its storage, place and layout, so a fresh view of the same memory is the same key. The entry
keeps an alias of the tensor, so the storage cannot die and its address cannot be given to another; and it remembers
the tensor's version counter, which every in-place edit raises, through whichever view it is made. Inference tensors
have no version counter and are never cached. What torch itself cannot see stays unseen here: writes through `.data`,
NumPy or a foreign pointer.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from graphweave.core import locks

T = TypeVar("T")
Key = tuple[Hashable, ...]


def place(t: Tensor) -> Key:
    """What makes two tensor objects the same data while a reference is held; everything but the contents."""
    return (t.data_ptr(), t.untyped_storage()._cdata, t.shape, t.stride(), t.dtype)


def nbytes(t: Tensor) -> int:
    return t.numel() * t.element_size()


def _references(t: Tensor) -> int:
    """How many tensors, and other owners, share the storage of `t`, up to a constant."""
    return torch._C._storage_Use_Count(t.untyped_storage()._cdata)


_COUNT_OF_ONE = _references(torch.empty(1))
SWEEP_BYTES = 64 << 20
"""Bytes from which a cache looks for entries of dead tensors; then again whenever it has doubled."""


@dataclass(slots=True)
class _Entry(Generic[T]):
    value: T
    versions: tuple[int, ...]
    aliases: tuple[Tensor, ...]
    made: tuple[Tensor, ...]
    nbytes: int


class TrackedCache(Generic[T]):
    """Least-recently-used entries within a bound in bytes. All methods may be called from any thread.

    An entry whose tensor only the cache still holds can never be asked for again (a mini-batch that is over). Such
    entries are looked for now and then, so that they do not fill the cache up to its bound.
    """

    def __init__(self, bound: Callable[[], int]) -> None:
        """`bound` is asked at every insertion, in bytes of values and of the tensors they were computed from."""
        self._bound = bound
        self._entries: OrderedDict[Key, _Entry[T]] = OrderedDict()
        self._bytes = 0
        self._sweep_at = SWEEP_BYTES
        self._lock = locks.lock()

    def get(self, key: Key, tensors: tuple[Tensor, ...]) -> T | None:
        """The value stored under `key`, if no tensor was edited since. `key` holds the `place` of each tensor."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        for t, version in zip(tensors, entry.versions):  # noqa: B905 - equal lengths; strict= costs 0.1 us a lookup
            if t._version != version:
                return None
        if self._lock.acquire(blocking=False):  # another thread may be walking the entries; then order can wait
            try:
                if key in self._entries:  # not dropped meanwhile
                    self._entries.move_to_end(key)
            finally:
                self._lock.release()
        return entry.value

    def put(
        self, key: Key, tensors: tuple[Tensor, ...], versions: tuple[int, ...], value: T, made: tuple[Tensor, ...]
    ) -> None:
        """Stores a value that owns the tensors `made`. `versions` were read before it was computed from `tensors`.

        A value that alone exceeds the bound is not kept.
        """
        size = sum(nbytes(t) for t in (*tensors, *made))
        bound = self._bound()
        # detach() shares storage and version counter, yet stays put when the caller rebinds his tensor with set_().
        entry = _Entry(value, versions, tuple(t.detach() for t in tensors), made, size)
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
        """Keys of entries with an input whose storage nobody else refers to."""
        ours: Counter[int] = Counter()
        for entry in self._entries.values():
            ours.update(t.untyped_storage()._cdata for t in (*entry.aliases, *entry.made))
        others = {
            t.untyped_storage()._cdata: _references(t) - _COUNT_OF_ONE + 1
            for entry in self._entries.values()
            for t in entry.aliases
        }
        dead = {storage for storage, references in others.items() if references <= ours[storage]}
        return [
            key
            for key, entry in self._entries.items()
            if any(t.untyped_storage()._cdata in dead for t in entry.aliases)
        ]

    def _pop(self, key: Key) -> _Entry[T] | None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry.nbytes
        return entry

    def clear(self) -> None:
        with self._lock:
            dropped, self._entries, self._bytes = self._entries, OrderedDict(), 0
            self._sweep_at = SWEEP_BYTES
        dropped.clear()

    def stats(self) -> dict[str, int]:
        """`entries` and `bytes` held now."""
        with self._lock:
            return {"entries": len(self._entries), "bytes": self._bytes}


def versions_of(tensors: tuple[Tensor, ...]) -> tuple[int, ...] | None:
    """Version counters, or None if one of the tensors has none (an inference tensor)."""
    if any(t.is_inference() for t in tensors):
        return None
    return tuple(t._version for t in tensors)


def ordinary() -> torch.inference_mode:
    """Cached tensors are ordinary even when built under inference mode: they may later be used where grad is on."""
    return torch.inference_mode(False)
