"""Questions about the edges of one relation, answered for many nodes or pairs at once.

Edges grouped by node come from the compiler's cache of formats, and sorted pairs from its memo, so each is built once
for a graph. Under tracing everything is plain tensor operations, which the compiler fuses and caches like any others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.core.ranges import range_error
from graphweave.graph.relation import Relation
from graphweave.runtime import formats
from graphweave.runtime.index import Index
from graphweave.runtime.memo import memo
from graphweave.runtime.unseen_edits import watch
from graphweave.udf import run

ALL = "__ALL__"
"""Stands for all nodes, all edges, or all fields."""


def is_all(value: object) -> bool:
    """Whether `value` is `ALL`."""
    return isinstance(value, str) and value == ALL


def as_ids(value: object, num: int, like: Tensor, what: str) -> tuple[Tensor, bool]:
    """`value` as a 1-d index of the dtype and device of `like`, and whether it was a single number.

    `value` is an integer, or a list, an array or a tensor of integers. Raises DataError if it is none of these,
    IndexRangeError if a number is below 0 or not below `num`.
    """
    ids, single = _as_index(value, like, what)
    if ids.numel() and not torch.compiler.is_compiling():
        low, high = (int(x) for x in torch.aminmax(ids))
        if low < 0 or high >= num:
            raise range_error(ids, num, what=what, of=f"{what}s", do=f"The graph has {num} {what}s.")
    return ids, single


def as_selection(value: object, num: int, like: Tensor, what: str) -> Tensor:
    """Like `as_ids`, without the second result. A bool mask [num] selects the rows where it is true, `ALL` all rows."""
    if is_all(value):
        return torch.arange(num, dtype=like.dtype, device=like.device)
    if isinstance(value, list) and value and all(isinstance(x, bool) for x in value):
        value = torch.tensor(value)
    if not isinstance(value, (Tensor, np.ndarray)) or value.dtype not in (torch.bool, np.bool_):
        return as_ids(value, num, like, what)[0]
    mask = torch.as_tensor(value, device=like.device)
    if mask.shape != (num,):
        raise DataError(f"a mask of {what}s must have shape [{num}] (got {list(mask.shape)}). Pass such a mask.")
    return mask.nonzero().squeeze(1).to(like.dtype)


def _as_index(value: object, like: Tensor, what: str) -> tuple[Tensor, bool]:
    if isinstance(value, bool):
        raise DataError(f"{what}: expected integers (got {value!r}). Pass such ids.")
    if isinstance(value, int):
        return torch.full((1,), value, dtype=like.dtype, device=like.device), True
    try:
        ids = torch.as_tensor(value, device=like.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{what}: expected an integer, a list, an array or a tensor ({error}). Pass such ids."
        ) from error
    if ids.numel() == 0 and not isinstance(value, Tensor):
        ids = ids.to(like.dtype)
    if ids.dtype not in (torch.int8, torch.int16, torch.uint8, torch.int32, torch.int64) or ids.dim() > 1:
        raise DataError(
            f"{what}: expected integers of shape [k] (got {ids.dtype} of shape {list(ids.shape)}). Pass such ids."
        )
    return ids.reshape(-1).to(like.dtype), ids.dim() == 0


def degrees(index: Tensor, num_rows: int) -> Tensor:
    """How often each row occurs in `index`: [num_rows], of the dtype of `index`."""
    if torch.compiler.is_compiling() or index.device.type != "cpu":
        return index.new_zeros(num_rows).index_add(0, index, torch.ones_like(index))
    if (other := run.host.get()) is not None and other.holds(index):
        return other.degrees(index, num_rows)
    watch(index)
    rows = Index(index, num_rows)
    indptr = formats.csr(rows, rows.wide).indptr
    return (indptr[1:] - indptr[:-1]).to(index.dtype)


def grouped(index: Tensor, num_rows: int) -> tuple[Tensor, Tensor | None]:
    """(`indptr` [num_rows + 1], `perm` [num_edges]): edges of row r are `perm[indptr[r]:indptr[r + 1]]`, increasing.

    `perm` is None if edge k is at position k. Both are shared with the cache and must not be written to.
    """
    if torch.compiler.is_compiling():
        return _group(index, num_rows)  # type: ignore[return-value]
    if index.device.type != "cpu":
        return memo(_group, index, num_rows)  # type: ignore[return-value]
    watch(index)
    rows = Index(index, num_rows)
    return formats.csr(rows, rows.wide).indptr, formats.perm(rows, rows.wide)


def _group(index: Tensor, num_rows: int) -> tuple[Tensor | int, ...]:
    count = index.new_zeros(num_rows, dtype=torch.int64).index_add(0, index, torch.ones_like(index, dtype=torch.int64))
    return torch.cat([count.new_zeros(1), count.cumsum(0)]), torch.argsort(index, stable=True)


def edges_of_rows(index: Tensor, num_rows: int, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers of the edges whose `index` is one of `rows`, and how many edges each row has.

    Edges follow the order of `rows`, which may repeat, and increase within a row. They have the dtype of `index`;
    counts are int64.
    """
    indptr, perm = grouped(index, num_rows)
    rows = rows.long()
    start = indptr[rows].long()
    count = indptr[rows + 1].long() - start
    shift = torch.repeat_interleave(start - (count.cumsum(0) - count), count)
    position = torch.arange(shift.shape[0], device=index.device) + shift
    return (position if perm is None else perm[position]).to(index.dtype), count


def has_edges(relation: Relation, u: Tensor, v: Tensor, num_dst: int) -> Tensor:
    """Whether there is an edge u[i] -> v[i]: bool [k]."""
    first, after, _ = _found(relation, u, v, num_dst)
    return first < after


def first_edges(relation: Relation, u: Tensor, v: Tensor, num_dst: int) -> Tensor:
    """The smallest number of an edge u[i] -> v[i]: [k]. DataError if a pair has no edge."""
    first, after, order = _found(relation, u, v, num_dst)
    _check_all_found(first < after, u, v)
    return order[first].to(u.dtype)


def all_edges_between(relation: Relation, u: Tensor, v: Tensor, num_dst: int) -> tuple[Tensor, Tensor, Tensor]:
    """(u, v, number) of every edge u[i] -> v[i], pair after pair. DataError if a pair has no edge."""
    first, after, order = _found(relation, u, v, num_dst)
    _check_all_found(first < after, u, v)
    count = after - first
    shift = torch.repeat_interleave(first - (count.cumsum(0) - count), count)
    edges = order[torch.arange(shift.shape[0], device=u.device) + shift].to(u.dtype)
    return torch.repeat_interleave(u, count), torch.repeat_interleave(v, count), edges


def source_order(relation: Relation, num_dst: int) -> Tensor:
    """Edge numbers [num_edges], sorted by source, then destination, then number, in the dtype of the index."""
    return _sorted(relation, num_dst)[1].to(relation.src.dtype)


def _check_all_found(found: Tensor, u: Tensor, v: Tensor) -> None:
    if torch.compiler.is_compiling() or bool(found.all()):
        return
    at = int((~found).nonzero()[0])
    raise DataError(
        f"there is no edge {int(u[at])} -> {int(v[at])} (pair {at} of {u.shape[0]}). Ask has_edges_between first."
    )


def _found(relation: Relation, u: Tensor, v: Tensor, num_dst: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where edges u[i] -> v[i] begin and end among the sorted pairs, and the edge number of each sorted pair."""
    keys, order = _sorted(relation, num_dst)
    asked = _keys(u, v, num_dst)
    return torch.searchsorted(keys, asked), torch.searchsorted(keys, asked, right=True), order


def _sorted(relation: Relation, num_dst: int) -> tuple[Tensor, Tensor]:
    sort: Callable[..., Any] = _sort if torch.compiler.is_compiling() else _remembered
    return sort(relation.src, relation.dst, num_dst)


def _remembered(src: Tensor, dst: Tensor, num_dst: int) -> tuple[Tensor | int, ...]:
    watch(src)
    watch(dst)
    return memo(_sort, src, dst, num_dst)


def _sort(src: Tensor, dst: Tensor, num_dst: int) -> tuple[Tensor | int, ...]:
    keys, order = torch.sort(_keys(src, dst, num_dst), stable=True)
    return keys, order


def _keys(u: Tensor, v: Tensor, num_dst: int) -> Tensor:
    """One int64 for each pair, ordered by u, then v. It does not overflow, since num_src * num_dst is far below 2**63
    for any graph that fits into memory."""
    return u.long() * num_dst + v.long()


def pairs(u: Tensor, v: Tensor, singles: tuple[bool, bool]) -> tuple[Tensor, Tensor]:
    """u and v with equal lengths. If one of them is a single node, it is repeated for every node of the other."""
    if u.shape == v.shape:
        return u, v
    if singles[0] or u.shape[0] == 1:
        return u.expand_as(v), v
    if singles[1] or v.shape[0] == 1:
        return u, v.expand_as(u)
    raise DataError(
        f"expected equally many sources and destinations (got {u.shape[0]} and {v.shape[0]}). Pass as many of each."
    )
