"""Values that depend on a graph alone, computed once for the graph at hand.

The tensors of the last graph are compared natively (`native/marks.cpp`), their checksums included. A small graph that
is seen for the first time, such as a batch, is only kept for the next call: caches that all programs share (`memo`)
would cost more than the work itself. From the second time on it is kept there, as larger ones are at once.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Collection, Sequence
from struct import Struct
from typing import Any

import torch
from torch import Tensor

from graphweave.core.counters import bump
from graphweave.core.log import logger
from graphweave.core.settings import settings
from graphweave.runtime import tracked
from graphweave.runtime.memo import Results, memo
from graphweave.runtime.native_library import library
from graphweave.runtime.tracked import ordinary
from graphweave.runtime.unseen_edits import Watch, is_watched, sums_of

_log = logger(__name__)


class _Inputs:
    """Native code's record of the inputs of all calls: which are tensors, and which small ones came lately."""

    def __init__(self, inputs: Sequence[Any], watched: Collection[int]) -> None:
        count = len(inputs)
        self.native = library()
        self.pack = Struct(f"{count}q").pack
        is_tensor = bytes(isinstance(x, Tensor) for x in inputs)
        sizes = array("q", [x.element_size() for x in inputs if isinstance(x, Tensor)])
        looks = bytes(i in watched for i in range(count))
        self.of_floats = [i for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.is_floating_point()]
        self.address = self.native.gw_inputs_new(count, is_tensor, looks, sizes.tobytes())

    def __del__(self) -> None:
        self.native.gw_inputs_free(self.address)


class _Slot:
    """The results for a graph, and the marks of what they were computed from."""

    __slots__ = ("_alive", "address", "native", "results")

    def __init__(self, native: ctypes.CDLL, address: int, alive: object = None) -> None:
        self.native, self.address, self._alive = native, address, alive
        self.results: Results = ()

    def __del__(self) -> None:
        self.native.gw_marks_free(self.address)


class _Counted:
    """A function that counts its calls."""

    __slots__ = ("_run", "calls")

    def __init__(self, run: Callable[..., Results]) -> None:
        self._run, self.calls = run, 0

    def __call__(self, *inputs: object) -> Results:
        self.calls += 1
        return self._run(*inputs)


class LastGraph:
    """`last(*inputs)` gives the results of `compute(*inputs)`, a tuple of tensors and integers that nobody may rebind.

    Inputs are tensors and integers. Those at the positions `watched` are compared with checksums. Results for other
    graphs than the last one come from `kept`, which is `memo.kept` or as that. Any thread may call.
    """

    def __init__(
        self, compute: Callable[..., Results], watched: Collection[int], kept: Callable[..., Results] = memo.kept, *,
        alone: bool = True,
    ) -> None:  # fmt: skip
        """Unless `alone`, every call asks `kept`."""
        self._compute, self._kept, self._alone = _Counted(compute), kept, alone
        self._watches = [(i, Watch()) for i in watched]
        self._inputs: _Inputs | None = None
        self._slot: _Slot | None = None

    def forget(self) -> None:
        """Release the last graph."""
        self._slot = None

    def __call__(self, *inputs: Any) -> Results:
        known = self._inputs or self._known(inputs)
        if known is None:
            return self._shared(inputs)
        given = known.pack(*[x if type(x) is int else x._cdata for x in inputs])
        slot, status = self._slot, -1
        if slot is not None:
            status = slot.native.gw_marks_hold(slot.address, given)
            if not status:
                bump("hoist_hits")
                return slot.results
        return self._again(known, inputs, given, status)

    def _known(self, inputs: Sequence[object]) -> _Inputs | None:
        """The record that all calls share. None if every call asks `kept`, as it does for other inputs than integers
        and tensors on the CPU."""
        if self._alone and all(type(x) is int or (isinstance(x, Tensor) and x.device.type == "cpu") for x in inputs):
            self._inputs = _Inputs(inputs, [i for i, _ in self._watches])
        return self._inputs

    def _again(self, known: _Inputs, inputs: Sequence[Any], given: bytes, status: int) -> Results:
        """The results for other inputs than those of the last call."""
        self._slot = None
        if status > 0:
            edited = [x for x in inputs if isinstance(x, Tensor)][status - 1]
            bump("unseen_edits")
            _log.info("an index of shape %s was edited in a way that PyTorch does not see", list(edited.shape))
            tracked.forget(edited)
        for i in known.of_floats:
            if inputs[i].requires_grad:
                return self._shared(inputs)
        looks = settings().unseen_edits
        for i, watch in self._watches:
            if looks and is_watched(inputs[i]):
                watch(inputs[i])
        address = known.native.gw_marks_new(known.address, given, None, looks)
        if address:
            return self._first_time(_Slot(known.native, address), inputs)
        before = self._compute.calls
        results = self._shared(inputs)
        if self._compute.calls == before:
            known.native.gw_inputs_found(known.address)
        self._keep(known, inputs, given, results)
        return results

    def _shared(self, inputs: Sequence[Any]) -> Results:
        """The results that the memo has, or keeps."""
        for i, watch in self._watches:
            watch(inputs[i])
        return self._kept(self._compute, *inputs)

    def _first_time(self, slot: _Slot, inputs: Sequence[object]) -> Results:
        """The results for a small graph that was not seen lately."""
        bump("hoist_builds")
        if torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            with ordinary(), torch.no_grad():
                made = self._compute(*inputs)
        else:
            made = self._compute(*inputs)
        # PyTorch replaces views that are saved for a backward by other tensors, so none of these is one.
        results = tuple([r.detach() if isinstance(r, Tensor) and r._is_view() else r for r in made])
        self._finish(slot, results)
        return results

    def _keep(self, known: _Inputs, inputs: Sequence[object], given: bytes, results: Results) -> None:
        """Remember the results for the next call, with the checksums that all programs share."""
        sums = [sums_of(x) for x in inputs if isinstance(x, Tensor)]
        shared = array("q", [0 if s is None else ctypes.addressof(s) for s in sums]).tobytes()
        address = known.native.gw_marks_new(known.address, given, shared, True)
        if address:
            self._finish(_Slot(known.native, address, sums), results)

    def _finish(self, slot: _Slot, results: Results) -> None:
        places = [r._cdata for r in results if isinstance(r, Tensor)]
        if slot.native.gw_marks_results(slot.address, array("q", places).tobytes(), len(places)):
            slot.results = results
            self._slot = slot
