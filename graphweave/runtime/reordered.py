"""Rows of a tensor in another order, kept for as long as the tensor stays the same: features of a whole graph."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor

from graphweave.core import locks
from graphweave.core.counters import bump
from graphweave.core.settings import settings
from graphweave.runtime.tracked import Key, TrackedCache, Versions, ordinary, place, versions_of

_REMEMBERED = 64
"""Calls whose tensors are remembered, to see whether they come again."""


class RowsInOrder:
    """`reordered(x, index)` is x[index], [rows, ...], for a permutation `index` [rows] of integers.

    It is made once if x and the index stay as they are (see `tracked`): the second call with both unchanged keeps what
    it makes, and later calls return an alias of it, which nobody may edit. So what changes at each call is not kept.
    What is kept takes at most GRAPHWEAVE_FORMAT_BYTES, x included. Any thread may call.
    """

    def __init__(self) -> None:
        self._cache: TrackedCache[Tensor] = TrackedCache(lambda: settings().format_bytes)
        self._seen: OrderedDict[Key, Versions] = OrderedDict()
        self._lock = locks.lock()

    def __call__(self, x: Tensor, index: Tensor) -> Tensor:
        key: Key = (place(x), place(index))
        found = self._cache.get(key, (x, index))
        if found is not None:
            return found.detach()
        versions = versions_of((x, index))
        with ordinary(), torch.no_grad():
            rows = x.detach().index_select(0, index)
        bump("reorderings")
        if versions is not None and self._again(key, versions):
            self._cache.put(key, (x, index), versions, rows, (rows,))
        return rows.detach()

    def _again(self, key: Key, versions: Versions) -> bool:
        """Whether an earlier call had the same tensors, unchanged. This call is remembered."""
        with self._lock:
            before = self._seen.pop(key, None)
            self._seen[key] = versions
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
        return before == versions

    def clear(self) -> None:
        self._cache.clear()


reordered = RowsInOrder()
"""The one that compiled programs share."""
