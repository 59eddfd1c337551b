"""Calls that read or write rows along an index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from graphweave.core.calls.facts import ByRank, CallFacts, Elements, IndexUse, Lead

_ALONG, _SOURCE = ("self", "index"), ("self", "source")


def _read(index: IndexUse, **more: object) -> CallFacts:
    return CallFacts(results=(Elements.moved,), rows=Lead.indexed, index=index, any_strides=True, **more)  # type: ignore[arg-type]


def _write(index: IndexUse, alike: tuple[str, ...] = ()) -> CallFacts:
    return CallFacts(rows=Lead.indexed, index=replace(index, pushes=True), alike=alike, any_strides=True)


def _gathers(*, of_data: bool = False) -> CallFacts:
    return CallFacts(gathers=True, of_data=of_data, any_strides=True)


_LISTED = IndexUse(at=1, dim=None, listed=True, wraps=True)
_SPREAD = IndexUse(at=2, spread=True)

INDEXING: Mapping[str, CallFacts] = {
    "aten.index_select.default": _read(IndexUse(at=2), alike=("self",), by_rank=ByRank.integers),
    "aten.gather.default": _read(_SPREAD, alike=_ALONG),
    "aten.index.Tensor": _read(_LISTED, by_rank=ByRank.integers),
    "aten._unsafe_index.Tensor": _read(_LISTED, by_rank=ByRank.integers),
    "aten.embedding.default": _read(IndexUse(at=1, dim=None, spread=True)),
    "aten.scatter_add.default": _write(replace(_SPREAD, source=3), (*_ALONG, "src")),
    "aten.scatter_reduce.two": _write(replace(_SPREAD, source=3), (*_ALONG, "src")),
    "aten.scatter.src": _write(replace(_SPREAD, source=3), (*_ALONG, "src")),
    "aten.scatter.value": _write(_SPREAD, _ALONG),
    "aten.index_add.default": _write(IndexUse(at=2, source=3), _SOURCE),
    "aten.index_reduce.default": _write(IndexUse(at=2, source=3), _SOURCE),
    "aten.index_copy.default": _write(IndexUse(at=2, source=3), _SOURCE),
    "aten.index_fill.int_Scalar": _write(IndexUse(at=2, wraps=True), ("self",)),
    "aten.index_fill.int_Tensor": _write(IndexUse(at=2, wraps=True), ("self",)),
    "aten.index_put.default": _write(replace(_LISTED, source=2)),
    "aten._unsafe_index_put.default": _write(replace(_LISTED, source=2)),
    "aten.embedding_dense_backward.default": _write(IndexUse(at=1, dim=None, source=0, spread=True, base=False)),
    "graphweave.fold_rows.default": _write(IndexUse(at=1, dim=None, source=0, base=False)),
    "aten.scatter.reduce": _gathers(),
    "aten.scatter.value_reduce": _gathers(),
    "aten._sparse_mm.default": CallFacts(gathers=True),
    "aten.segment_reduce.default": CallFacts(gathers=True),
    "aten.masked_select.default": replace(
        _gathers(of_data=True), results=(Elements.moved,), by_rank=ByRank.integers
    ),
    "aten.masked_scatter.default": _gathers(),
    "aten.take": CallFacts(any_strides=True),
}  # fmt: skip
