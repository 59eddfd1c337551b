"""Calls that copy, view, rearrange, join and cut tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from graphweave.core.calls.facts import ByRank, CallFacts, Elements, Lead

_SAME = CallFacts((Elements.same,), Lead.each, any_strides=True)
_OWN = replace(_SAME, by_rank=ByRank.each)
"""A copy or an alias, which each rank may make of its own rows."""
_COPY = CallFacts((Elements.converted,), Lead.each, by_rank=ByRank.each, any_strides=True)
_MOVED = CallFacts((Elements.moved,), by_rank=ByRank.integers, any_strides=True)


def _reshaped(rows: Lead, *, any_strides: bool = True, by_rank: bool = True) -> CallFacts:
    return CallFacts((Elements.reshaped,), rows, by_rank=ByRank.integers if by_rank else None, any_strides=any_strides)


def _moved(rows: Lead | None, **more: object) -> CallFacts:
    return replace(_MOVED, rows=rows, **more)  # type: ignore[arg-type]


_PERMUTED = _moved(Lead.permuted)
_PAIRS = CallFacts(rows=Lead.row_major)
"""Complex numbers as pairs of real ones, and back."""
_PARTS = CallFacts(rows=Lead.parts, default=0, any_strides=True)

LAYOUT: Mapping[str, CallFacts] = {
    # the same elements in the same places
    "aten.clone.default": _OWN, "aten.alias.default": _OWN, "aten.detach.default": _OWN,
    "aten.contiguous.default": _OWN,
    "aten.lift.default": _SAME, "aten.lift_fresh.default": _SAME, "aten.lift_fresh_copy.default": _SAME,
    "aten.detach_copy.default": _SAME, "aten.alias_copy.default": _SAME, "aten._conj.default": _SAME,
    "aten.resolve_conj.default": _SAME, "aten.resolve_neg.default": _SAME,
    "aten._to_copy.default": _COPY,
    "prims.convert_element_type.default": replace(_COPY, by_rank=None),
    "aten.copy.default": CallFacts(rows=Lead.each, any_strides=True),
    # views in row-major order
    "aten.view.default": _reshaped(Lead.row_major), "aten.reshape.default": _reshaped(Lead.row_major),
    "aten._unsafe_view.default": _reshaped(Lead.row_major), "aten.view_copy.default": _reshaped(Lead.row_major),
    "aten._reshape_alias.default": _reshaped(Lead.row_major), "aten._reshape_copy.default": _reshaped(Lead.row_major),
    "aten.squeeze.default": _reshaped(Lead.row_major),
    "aten.view_as_real.default": _PAIRS, "aten.view_as_complex.default": _PAIRS,
    "aten.squeeze.dim": _reshaped(Lead.along), "aten.squeeze.dims": _reshaped(Lead.along),
    "aten.unsqueeze.default": _reshaped(Lead.widened),
    "aten.expand.default": _reshaped(Lead.repeated),
    # other places
    "aten.expand_copy.default": _moved(Lead.repeated), "aten.repeat.default": _moved(Lead.row_major),
    "aten.permute.default": _PERMUTED, "aten.permute_copy.default": _PERMUTED, "aten.t.default": _PERMUTED,
    "aten.transpose.int": _PERMUTED,
    "aten.flip.default": _moved(Lead.along, dim="dims"),
    "aten.cat.default": _moved(Lead.joined, default=0), "aten.stack.default": _moved(Lead.stacked, default=0),
    "aten.select.int": _moved(Lead.taken),
    "aten.slice.Tensor": _moved(Lead.along, default=0, alike=("self",)),
    "aten.constant_pad_nd.default": CallFacts(rows=Lead.row_major, any_strides=True),
    "aten.roll.default": CallFacts(any_strides=True),
    # cut into several
    "aten.unbind.int": replace(_PARTS, results=(Elements.moved,), by_rank=ByRank.integers),
    "aten.split.Tensor": replace(_PARTS, results=(Elements.moved,), by_rank=ByRank.integers),
    "aten.split_with_sizes.default": _PARTS, "aten.unsafe_split.Tensor": _PARTS,
    "aten.unsafe_split_with_sizes.default": _PARTS, "aten.chunk.default": _PARTS, "aten.unsafe_chunk.default": _PARTS,
    # gradients of views, and writes to them
    "aten.slice_scatter.default": CallFacts(rows=Lead.along, default=0, alike=("self", "src"), any_strides=True),
    "aten.select_scatter.default": CallFacts(rows=Lead.along, default=0, operands=(1,), any_strides=True),
    "aten.slice_backward.default": CallFacts(rows=Lead.along, any_strides=True),
    "aten.select_backward.default": CallFacts(rows=Lead.widened, any_strides=True),
    **dict.fromkeys(
        (f"aten.{name}" for name in (
            "diagonal", "diagonal_scatter", "diagonal_backward", "unfold", "unfold_backward", "tril", "triu",
        )),
        CallFacts(any_strides=True),
    ),
    # a tensor of others, which are its memory: as such never kept
    "aten._sparse_coo_tensor_with_dims_and_tensors.default": CallFacts(works=False),
}  # fmt: skip
