"""Calls that number, sort and choose rows."""

from __future__ import annotations

from collections.abc import Mapping

from graphweave.core.calls.facts import ByRank, CallFacts, Elements, Lead

_SORTED = CallFacts((Elements.moved, Elements.positions), kept=(0, 1), by_rank=ByRank.integers, any_strides=True)
_ORDER = CallFacts((Elements.positions,), by_rank=ByRank.integers, any_strides=True)
_NUMBERED = CallFacts((Elements.numbered,), by_rank=ByRank.integers, any_strides=True)
_COUNTED = CallFacts((Elements.counted,), by_rank=ByRank.integers, any_strides=True)
_DISTINCT = CallFacts(
    (Elements.moved, Elements.computed, Elements.computed), kept=(1,), together=(0, 2), of_data=True, any_strides=True
)
_BEST = CallFacts((Elements.computed, Elements.places), rows=Lead.parts, any_strides=True)

CHOICES: Mapping[str, CallFacts] = {
    "aten.arange.default": _NUMBERED, "aten.arange.start": _COUNTED, "aten.arange.start_step": _COUNTED,
    "aten.randperm.default": CallFacts((Elements.shuffled,)),
    "aten.nonzero.default": CallFacts(
        (Elements.positions,), by_rank=ByRank.integers, of_data=True, any_strides=True
    ),
    "aten.argsort.default": _ORDER, "aten.argsort.stable": _ORDER,
    "aten.sort.default": _SORTED, "aten.sort.stable": _SORTED,
    "aten.topk.default": CallFacts((Elements.moved, Elements.positions), any_strides=True),
    "aten.max.dim": _BEST, "aten.min.dim": _BEST,
    "aten.argmax.default": CallFacts((Elements.places,), Lead.reduced, any_strides=True),
    "aten.argmin.default": CallFacts((Elements.places,), Lead.reduced, any_strides=True),
    "aten._unique2.default": _DISTINCT, "aten.unique_consecutive.default": _DISTINCT,
    "aten.unique_dim.default": _DISTINCT,  # along dim 0: a decomposition writes all others as this
    "aten.bincount.default": CallFacts(of_data=True, any_strides=True),
    **dict.fromkeys(
        (f"aten.{name}" for name in (
            "max", "min", "median", "kthvalue", "aminmax", "cummax", "cummin", "searchsorted", "bucketize",
            "isin", "repeat_interleave",
            "_convert_indices_from_coo_to_csr",
        )),
        CallFacts(any_strides=True),
    ),
}  # fmt: skip
