"""Nodes of the message IR that stand for indices and orders of a graph, which are made once for each graph.

They are imported from `nodes.py`, like all others.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphweave.core.locality import RowOrder
from graphweave.core.types import Space
from graphweave.ir.message.types import MESSAGE, Ref

node = MESSAGE.union("Node")


@node("distinct {keys} {space}")
@dataclass(frozen=True, slots=True)
class Distinct:
    """The different rows of `keys`, sorted by keys[0], rows with equal ones by keys[1], and so on: one row of `space`
    for each.

    `keys[k]: E x [] int`; without rows there are none. `DistinctRow` and `DistinctKey` read the result, so that one
    sort serves all of them. No other node has its result on this `space`.
    """

    keys: tuple[Ref, ...]
    space: Space


@node()
@dataclass(frozen=True, slots=True)
class DistinctRow:
    """out[r] = the row of `distinct` that has the keys of row r: `E x [] i64`."""

    distinct: Ref


@node()
@dataclass(frozen=True, slots=True)
class DistinctKey:
    """out[p] = keys[at] of row p of `distinct`: `P x [] i64`."""

    distinct: Ref
    at: int


@node()
@dataclass(frozen=True, slots=True)
class JoinIndices:
    """out[r] = row indices[k][r] of the segment of[at[k]], as a row of the disjoint union of `of`; for k = 0, then 1,
    ...

    `indices[k]: S_k x [] int`; the result is `space x [] i64`, where `space` is the disjoint union of the S_k. Each
    index is checked against its own segment when the result is made, since a value out of range would be a row of
    another segment. With `wraps[k]`, -1 is the segment's last row. A segment that is the unit space has one row.
    """

    indices: tuple[Ref, ...]
    of: tuple[Space, ...]
    at: tuple[int, ...]
    wraps: tuple[bool, ...]
    space: Space


@node()
@dataclass(frozen=True, slots=True)
class RowsOfSegments:
    """The rows of segment of[at[0]], as i64 rows of the disjoint union of `of`, then those of of[at[1]], and so on.

    The result is a value on `space`, the disjoint union of the of[at[k]].
    """

    of: tuple[Space, ...]
    at: tuple[int, ...]
    space: Space


@node()
@dataclass(frozen=True, slots=True)
class NumbersOfSegments:
    """out[r] = numbers[k] for every row r of of[k]: i64, on `space`, the disjoint union of `of`."""

    of: tuple[Space, ...]
    numbers: tuple[int, ...]
    space: Space


@node()
@dataclass(frozen=True, slots=True)
class EqualRuns:
    """out[r] = r // k, where the rows of `space` are runs of k = rows(space) / rows(of) rows, one run for each row of
    `of`: i64, on `space`.

    It is the index of the neighbours in a table [nodes, k], of a repetition, and of the segments that a reshape makes.
    It is sorted, and each row of `of` has equally many rows. A kernel that walks the edges of such a map knows by
    arithmetic where they are (`lower/draft.py`), and nothing else about it is stored.
    """

    of: Space
    space: Space


@node()
@dataclass(frozen=True, slots=True)
class Rounds:
    """out[r] = r % rows(of), where the rows of `space` are those of `of` several times over: i64, on `space`.

    It is the index of a value [nodes] that is broadcast to [batch, nodes].
    """

    of: Space
    space: Space


@node()
@dataclass(frozen=True, slots=True)
class EachItem:
    """out[i * E + e] = i * N + m(e), for `map` m: a space of E rows -> a space of N rows: i64, on `space`, which has E
    rows for each item i.

    It is the index of the edges [batch, edges] of one graph that all items of a batch have, as an index into `of`,
    [batch, nodes]. A kernel that walks these edges walks the map once for each item, and needs no format of them
    (`lower/items.py`). Each number of the map is checked against N, since one out of range would be a row of another
    item.
    """

    map: Ref
    of: Space
    space: Space


@node()
@dataclass(frozen=True, slots=True)
class Places:
    """out[v] = the place of row v of `of` in an order that keeps neighbours near each other: `of x [] i64`, a
    permutation (`core/locality.py`).

    `src, dst: E x [] int` are the ends of the edges, both of them rows of `of`.
    """

    src: Ref
    dst: Ref
    of: Space
    order: RowOrder


@node()
@dataclass(frozen=True, slots=True)
class Inverse:
    """out[x[r]] = r, for a permutation `x: S x [] i64`; the result is `space x [] i64`, where `space` has the rows of S
    in the order of `x`."""

    x: Ref
    space: Space


@node()
@dataclass(frozen=True, slots=True)
class Reordered:
    """out[r] = x[index[r]], for `x: S x T` and a permutation `index: space x [] i64` of the rows of S.

    It says what a pull says, of numbers that are likely to be the same at the next call: they are kept in this order
    until x or the index changes (`runtime/reordered.py`).
    """

    x: Ref
    index: Ref


@node("order {keys} descending=[{descending}]")
@dataclass(frozen=True, slots=True)
class Order:
    """out[p] = the row that stands at place p when rows are sorted by keys[0], rows with equal ones by keys[1], and so
    on: `S x [] i64`, a permutation of the rows of S.

    `keys[k]: S x []`, of any dtype. With `descending[k]` the largest come first; NaN counts as larger than any number.
    Rows with equal keys keep their order.
    """

    keys: tuple[Ref, ...]
    descending: tuple[bool, ...]


@node()
@dataclass(frozen=True, slots=True)
class Chosen:
    """out[k] = the k-th row r with mask[r], for `mask: S x [] bool`: `space x [] i64`. The mask decides how many rows
    `space` has."""

    mask: Ref
    space: Space
