"""A table that maps storages of tensors to values and keeps no storage alive."""

from __future__ import annotations

from typing import Generic, TypeVar

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from graphweave.core import locks

T = TypeVar("T")

_MIN_SWEPT_STORAGES = 256
"""A table with more storages than this is searched for dead ones, and searched again whenever its size has doubled."""


class ByStorage(Generic[T]):
    """A value for the storage in which a tensor lies. All methods may be called from any thread.

    While there is a weak reference to a dead storage, no other storage gets its address.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[StorageWeakRef, T]] = {}
        self._sweep_at = _MIN_SWEPT_STORAGES
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
                self._sweep_at = max(_MIN_SWEPT_STORAGES, 2 * len(self._known))

    def __len__(self) -> int:
        """The number of storages in the table, some of which may be dead."""
        return len(self._known)

    def clear(self) -> None:
        self._known = {}
