"""Rows that are computed from features, kept as long as the features stay the same.

Features are floats that any line of the user's program may edit, also in a way that PyTorch does not see (NumPy,
`.data`, another process). So what is kept is used only after all of their memory was compared with its checksum: a
sample, as index tensors have it (`unseen_edits.py`), would serve rows of old features.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor

from graphweave.core import locks
from graphweave.core.counters import bump
from graphweave.core.settings import settings
from graphweave.runtime import tracked
from graphweave.runtime.tracked import Key, TrackedCache, Versions, ordinary, place, versions_of
from graphweave.runtime.unseen_edits import whole_checksum

_REMEMBERED = 64
"""Calls whose tensors are remembered, to see whether they come again."""


class KeptRows:
    """Rows computed from features `x` and from indices of ours that nobody else can edit.

    They are kept from the second call with the same tensors on, so what changes at each call is not kept. What is kept
    takes at most GRAPHWEAVE_FORMAT_BYTES, x included. Features whose memory is not on the CPU are never kept, since a
    checksum of them would make the call wait for the device. Any thread may call.
    """

    def __init__(self) -> None:
        self._cache: TrackedCache[tuple[int, Tensor]] = TrackedCache(lambda: settings().format_bytes)
        self._seen: OrderedDict[Key, Versions] = OrderedDict()
        self._lock = locks.lock()

    def find(self, x: Tensor, *indices: Tensor) -> Tensor | None:
        """An alias of the rows that are kept, which nobody may edit; None if none are kept, or x has changed."""
        tensors = (x, *indices)
        found = self._cache.get(_key(tensors), tensors)
        if found is None:
            return None
        checksum, rows = found
        if whole_checksum(x) == checksum:
            return rows.detach()
        bump("unseen_edits")
        tracked.forget(x)
        return None

    def make(self, compute: Callable[[Tensor], Tensor], x: Tensor, *indices: Tensor) -> Tensor:
        """`compute(x)`, which is kept if an earlier call had the same tensors."""
        tensors = (x, *indices)
        key, versions = _key(tensors), versions_of(tensors)
        again = versions is not None and self._came_before(key, versions)
        checksum = whole_checksum(x) if again else None
        with ordinary(), torch.no_grad():
            rows = compute(x.detach())
        if versions is not None and checksum is not None:
            self._cache.put(key, tensors, versions, (checksum, rows), (rows,))
        return rows.detach()

    def _came_before(self, key: Key, versions: Versions) -> bool:
        """Whether an earlier call had the same tensors, unchanged as far as PyTorch knows. This call is remembered."""
        with self._lock:
            before = self._seen.pop(key, None)
            self._seen[key] = versions
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
        return before == versions

    def clear(self) -> None:
        self._cache.clear()


def _key(tensors: tuple[Tensor, ...]) -> Key:
    return tuple(map(place, tensors))
