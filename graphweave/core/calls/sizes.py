"""Calls that read sizes, make tensors of one number, and check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from graphweave.core.calls.facts import ByRank, CallFacts, Elements, Lead

_OF_SIZES = CallFacts((Elements.sizes,), by_rank=ByRank.each, any_strides=True)
_LIKE = CallFacts(rows=Lead.each, any_strides=True)
_FILLED = CallFacts(any_strides=True)

SIZES: Mapping[str, CallFacts] = {
    "aten.sym_size.int": _OF_SIZES,
    "aten._assert_scalar.default": replace(_OF_SIZES, works=False),
    "aten.scalar_tensor.default": replace(_OF_SIZES, works=False),
    "aten.full.default": _OF_SIZES, "aten.zeros.default": _OF_SIZES, "aten.ones.default": _OF_SIZES,
    "aten.empty.memory_format": _OF_SIZES, "aten._local_scalar_dense.default": _OF_SIZES,
    "aten.sym_constrain_range_for_size.default": replace(_OF_SIZES, any_strides=False),
    "aten.fill.Scalar": _LIKE, "aten.fill.Tensor": _LIKE, "aten.zero.default": _LIKE,
    "aten.zeros_like.default": _LIKE, "aten.ones_like.default": _LIKE, "aten.full_like.default": _LIKE,
    "aten.empty_like.default": _LIKE,
    **dict.fromkeys(
        (f"aten.{name}" for name in (
            "new_zeros", "new_full", "new_ones", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted",
            "sym_stride", "sym_storage_offset", "sym_numel", "item", "_assert_async",
        )),
        _FILLED,
    ),
    "builtin.getitem": CallFacts(works=False, by_rank=ByRank.each),
    "builtin._assert_rows": CallFacts(works=False, by_rank=ByRank.each),
}  # fmt: skip
"""Python's operators on plain numbers ("builtin.") have rows where they are more than that."""
