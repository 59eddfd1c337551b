"""The edges that one map sends to a row below a number, with the rows to which other maps send them."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from graphweave.runtime import formats
from graphweave.runtime.index import Index
from graphweave.runtime.storages import ByStorage

_largest: ByStorage[tuple[int, dict[tuple[int, int], int]]] = ByStorage()
"""For the storage of a column, its version, and one more than the largest number of a range, by address and length."""


def count_below(by: Index, below: int, wide: bool) -> int:
    """The number of edges that `by` sends to a row below `below`."""
    return int(formats.csr(by, wide).indptr[below])


def largest_reached(by: Index, below: int, to: Index, wide: bool) -> int:
    """One more than the largest row to which `to` sends one of the edges that `by` sends to a row below `below`; 0 if
    there is no such edge."""
    column = formats.column(by, to, wide)
    count = count_below(by, below, wide)
    if not count:
        return 0
    if column.is_inference():  # has no version
        return 1 + int(column[:count].max())
    found = _largest.get(column)
    if found is None or found[0] != column._version:
        _largest.put(column, found := (column._version, {}))
    key = column.data_ptr(), count
    if key not in found[1]:
        found[1][key] = 1 + int(column[:count].max())
    return found[1][key]


def first_reaching(by: Index, from_row: int, to: Index, wide: bool) -> int:
    """The first row of `by` one of whose edges `to` sends to a row from `from_row` on; the number of rows if none."""

    def found() -> Tensor:
        rows = formats.flat(by, wide)[formats.flat(to, wide) >= from_row]
        return rows.min() if rows.numel() else torch.tensor(by.rows, device="cpu")

    key = ("first_reaching", by.key, to.key, from_row, wide)
    return int(cast(Tensor, formats.cached(key, (by.values, to.values), found)))


def edges_below(by: Index, below: int, wide: bool) -> Tensor | None:
    """[count]: these edges, in the user's order; None if they are the first `count` edges, since `by` is sorted."""
    if formats.csr(by, wide).in_order:
        return None
    key = ("edges_below", by.key, below, wide)
    return cast(Tensor, formats.cached(key, (by.values,), lambda: (formats.flat(by, wide) < below).nonzero().flatten()))


def index_below(by: Index, below: int, of: Index, wide: bool) -> Index:
    """`of` on these edges alone."""
    edges = edges_below(by, below, wide)
    if edges is None:
        return Index(of.values[: count_below(by, below, wide)], of.rows, of.wrap)
    key = ("index_below", by.key, of.key, below, wide)
    found = formats.cached(key, (by.values, of.values), lambda: formats.flat(of, wide).index_select(0, edges))
    return Index(cast(Tensor, found), of.rows)


def edges_at(by: Index, below: int, walked: Index, wide: bool) -> Tensor:
    """[count], dtype of indptr: the edge at each position of the CSR of `index_below(by, below, walked)`."""
    perm, edges = formats.perm(walked, wide), edges_below(by, below, wide)
    if perm is None:
        perm = formats.in_order(walked.num_edges, wide)[: walked.num_edges]
    if edges is None:
        return perm
    return edges.index_select(0, perm.long()).to(torch.int64 if wide else torch.int32)
