"""What depends on a graph alone, computed once for the graph at hand.

The tensors of the last graph are compared natively (`native/marks.cpp`), their checksums included. A small graph that
is seen for the first time, such as a batch, is only kept for the next call: caches that all programs share (`memo`)
would cost more than the work itself. From the second time on it is kept there, as larger ones are at once.
"""

from __future__ import annotations

import ctypes
from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from struct import Struct
from typing import Any

import torch
from torch import Tensor

from graphweave.core import locks
from graphweave.core.counters import bump
from graphweave.core.log import logger
from graphweave.core.settings import settings
from graphweave.runtime import tracked
from graphweave.runtime.memo import Results, alias, memo
from graphweave.runtime.native_library import library
from graphweave.runtime.tracked import ordinary
from graphweave.runtime.unseen_edits import Watch, sums_of

_log = logger(__name__)

_REMEMBERED = 32
"""Small graphs whose hashes are remembered, to see whether they come again."""


class _Slot:
    """The results for a graph, and the marks of what they were computed from."""

    __slots__ = ("_alive", "address", "native", "results")

    def __init__(self, native: Any, address: int, alive: Any = None) -> None:
        self.native, self.address, self._alive = native, address, alive
        self.results: Results = ()

    def __del__(self) -> None:
        self.native.gw_marks_free(self.address)


class LastGraph:
    """`last(*inputs)` gives the results of `compute(*inputs)`, a tuple of tensors and integers that nobody may rebind.

    Inputs are tensors and integers. Those at the positions `watched` are compared with checksums. Results for other
    graphs than the last one come from `kept`, which is `memo.kept` or as that. Any thread may call.
    """

    def __init__(
        self, compute: Callable[..., Results], watched: Collection[int], kept: Callable[..., Results] = memo.kept
    ) -> None:
        self._compute, self._kept = compute, kept
        self._watches = [(i, Watch()) for i in watched]
        self._watched = frozenset(watched)
        self._slot: _Slot | None = None
        self._hashes: OrderedDict[int, None] = OrderedDict()
        self._lock = locks.lock()
        self._pack: Callable[..., bytes] | None = None

    def forget(self) -> None:
        """Release the last graph."""
        self._slot = None

    def __call__(self, *inputs: Any) -> Results:
        slot, status = self._slot, -1
        if slot is not None and self._pack is not None:
            given = self._pack(*[x if type(x) is int else x._cdata for x in inputs])
            status = slot.native.gw_marks_hold(slot.address, given)
            if not status:
                bump("hoist_hits")
                return slot.results
        return self._again(inputs, status)

    def _again(self, inputs: Sequence[Any], status: int) -> Results:
        """The results for other inputs than those of the last call."""
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        if status > 0:
            bump("unseen_edits")
            _log.info(
                "an index of shape %s was edited in a way that PyTorch does not see", list(tensors[status - 1].shape)
            )
            tracked.forget(tensors[status - 1])
        self._slot = None
        if self._kept != memo.kept or not all(map(_is_plain, inputs)):
            return self._shared(inputs)
        found = self._first_time(inputs, tensors)
        if found is not None:
            return found
        results = self._shared(inputs)
        self._keep(inputs, tensors, results)
        return results

    def _shared(self, inputs: Sequence[Any]) -> Results:
        """The results that the memo has, or keeps."""
        for i, watch in self._watches:
            watch(inputs[i])
        return self._kept(self._compute, *inputs)

    def _first_time(self, inputs: Sequence[Any], tensors: Sequence[Tensor]) -> Results | None:
        """The results for a small graph that was not seen lately; None for any other."""
        made = self._marks(inputs, tensors, None)
        if made is None:
            return None
        slot, seen = made
        with self._lock:
            if seen in self._hashes:
                return None
            self._hashes[seen] = None
            if len(self._hashes) > _REMEMBERED:
                self._hashes.popitem(last=False)
        bump("hoist_builds")
        with ordinary(), torch.no_grad():
            results = tuple(map(alias, self._compute(*inputs)))
        self._finish(slot, results)
        return results

    def _keep(self, inputs: Sequence[Any], tensors: Sequence[Tensor], results: Results) -> None:
        """Remember the results for the next call, with the checksums that all programs share."""
        sums = [
            sums_of(inputs[i]) if i in self._watched else None for i, x in enumerate(inputs) if isinstance(x, Tensor)
        ]
        made = self._marks(inputs, tensors, sums)
        if made is not None:
            self._finish(made[0], results)

    def _finish(self, slot: _Slot, results: Results) -> None:
        places = [r._cdata for r in results if isinstance(r, Tensor)]
        if slot.native.gw_marks_results(slot.address, array("q", places).tobytes(), len(places)):
            slot.results = results
            self._slot = slot

    def _marks(
        self, inputs: Sequence[Any], tensors: Sequence[Tensor], sums: Sequence[Any] | None
    ) -> tuple[_Slot, int] | None:
        """Marks of the inputs, and a hash of them. Without `sums`, only of those that are read in whole."""
        native, count, seen = library(), len(inputs), ctypes.c_uint64()
        if self._pack is None:
            self._pack = Struct(f"{count}q").pack
        given = self._pack(*[x if type(x) is int else x._cdata for x in inputs])
        is_tensor = bytes(isinstance(x, Tensor) for x in inputs)
        looks = settings().unseen_edits
        watched = bytes(looks and i in self._watched for i in range(count))
        sizes = array("q", [t.element_size() for t in tensors]).tobytes()
        shared = None if sums is None else array("q", [0 if s is None else ctypes.addressof(s) for s in sums]).tobytes()
        address = native.gw_marks_new(given, count, is_tensor, watched, sizes, shared, ctypes.byref(seen))
        return None if not address else (_Slot(native, address, sums), seen.value)


def _is_plain(x: Any) -> bool:
    """Whether it is an integer, or a tensor on the CPU through which no gradient flows."""
    return type(x) is int or (isinstance(x, Tensor) and x.device.type == "cpu" and not x.requires_grad)
