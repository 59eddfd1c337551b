"""Values kept for storages, that keep none of these alive."""

from __future__ import annotations

from typing import Generic, TypeVar

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from graphweave.core import locks

T = TypeVar("T")

_SWEEP = 256
"""Storages from which on those that died are looked for; then again whenever there are twice as many."""


class ByStorage(Generic[T]):
    """A value for the storage that a tensor lies in. All methods may be called from any thread.

    The weak reference keeps the address of a storage that died from being given to another one.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[StorageWeakRef, T]] = {}
        self._sweep_at = _SWEEP
        self._lock = locks.lock()

    def get(self, t: Tensor) -> T | None:
        found = self._known.get(t.untyped_storage()._cdata)
        return None if found is None else found[1]

    def put(self, t: Tensor, value: T) -> None:
        storage = t.untyped_storage()
        with self._lock:
            self._known[storage._cdata] = StorageWeakRef(storage), value
            if len(self._known) > self._sweep_at:
                self._known = {k: kept for k, kept in self._known.items() if not kept[0].expired()}
                self._sweep_at = max(_SWEEP, 2 * len(self._known))

    def __len__(self) -> int:
        """Storages that are known, some of which may have died."""
        return len(self._known)

    def clear(self) -> None:
        self._known = {}
