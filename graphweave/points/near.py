"""Which points are near which: `knn`, `radius`, `nearest`, and graphs of them."""

from __future__ import annotations

import ctypes
import math
import sys
from typing import Literal, NoReturn, TypeAlias

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.points import searches
from graphweave.points.sets import PointSets, check_alike, point_sets, safe_factor
from graphweave.runtime import threads

Flow: TypeAlias = Literal["source_to_target", "target_to_source"]


def knn(x: Tensor, y: Tensor, k: int, batch_x: Tensor | None = None, batch_y: Tensor | None = None) -> Tensor:
    """The k points of x that are nearest to each point of y, int64 [2, pairs]: row 0 numbers y, row 1 numbers x.

    `x` [N, dims], `y` [M, dims]. `batch_x` [N] and `batch_y` [M] are the sorted numbers of the sets that the points
    belong to; only points of the same set are compared. Where a set has fewer than k points, all are taken. Pairs are
    sorted by y, then by distance; of equally far points of x, the one of the lower number comes first.

    Distances are computed in float64. DataError for other shapes, different dims or dtypes, k < 1, coordinates that are
    not finite, and batches that are not sorted.
    """
    _check_count("knn", "k", k)
    return near_points(_rows(x), _rows(y), batch_x, batch_y, k, math.inf, False)


def radius(
    x: Tensor,
    y: Tensor,
    r: float,
    batch_x: Tensor | None = None,
    batch_y: Tensor | None = None,
    max_num_neighbors: int | None = None,
) -> Tensor:
    """All points of x that are at most r away from each point of y, int64 [2, pairs]: row 0 numbers y, row 1 numbers x.

    Pairs are sorted by y, then by x. With `max_num_neighbors`, only so many points of x, the nearest, sorted by
    distance. Otherwise as `knn`. DataError also for r < 0, an infinite r, and more pairs than there is memory for.
    """
    return near_points(_rows(x), _rows(y), batch_x, batch_y, _most("radius", max_num_neighbors), _checked(r), False)


def knn_graph(
    x: Tensor, k: int, batch: Tensor | None = None, loop: bool = False, flow: Flow = "source_to_target"
) -> Tensor:
    """Edges to each point of x from the k points that are nearest to it, int64 [2, edges].

    With `loop` the point itself is among them. Edges are sorted by the point that they lead to, then by distance. With
    the flow "target_to_source" the rows are exchanged. Otherwise as `knn`.
    """
    _check_count("knn_graph", "k", k)
    return _directed(near_points(_rows(x), None, batch, None, k, math.inf, not loop), flow)


def radius_graph(
    x: Tensor,
    r: float,
    batch: Tensor | None = None,
    loop: bool = False,
    max_num_neighbors: int | None = None,
    flow: Flow = "source_to_target",
) -> Tensor:
    """Edges between the points of x that are at most r apart, in both directions, int64 [2, edges].

    With `loop`, also from each point to itself. Edges are sorted by the point that they lead to, then by the other.
    With `max_num_neighbors`, only so many lead to each point, from the nearest, sorted by distance. With the flow
    "target_to_source" the rows are exchanged. Otherwise as `radius`.
    """
    most = _most("radius_graph", max_num_neighbors)
    return _directed(near_points(_rows(x), None, batch, None, most, _checked(r), not loop), flow)


def nearest(x: Tensor, y: Tensor, batch_x: Tensor | None = None, batch_y: Tensor | None = None) -> Tensor:
    """The point of y that is nearest to each point of x, int64 [N]. DataError if a set of x has no points of y;
    otherwise as `knn`."""
    return nearest_points(_rows(x), _rows(y), batch_x, batch_y)


@torch.library.custom_op("graphweave::near_points", mutates_args=())
def near_points(
    x: Tensor, y: Tensor | None, batch_x: Tensor | None, batch_y: Tensor | None, k: int, r: float, others: bool
) -> Tensor:
    """Pairs [2, pairs] of a point of y (of x where y is None) and one of x that is near it: the k nearest, or all for
    k = 0, of those that are at most r away. With `others` a point is not near itself."""
    points = point_sets("x", x, batch_x)
    queries = points
    if y is not None:
        queries = point_sets("y", y, batch_y)
        check_alike("near points", x, y)
    return _pairs(points, None if y is None else queries, k, r, others).to(x.device)


@near_points.register_fake
def _near_points_fake(
    x: Tensor, y: Tensor | None, batch_x: Tensor | None, batch_y: Tensor | None, k: int, r: float, others: bool
) -> Tensor:
    if k == 0 or r < math.inf or batch_x is not None or batch_y is not None:
        return x.new_empty(2, torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)
    queries = x.shape[0] if y is None else y.shape[0]
    pairs = queries * torch.sym_min(k, torch.sym_max(x.shape[0] - others, 0))
    return x.new_empty(2, pairs, dtype=torch.int64)


@torch.library.custom_op("graphweave::nearest_points", mutates_args=())
def nearest_points(x: Tensor, y: Tensor, batch_x: Tensor | None, batch_y: Tensor | None) -> Tensor:
    """See `nearest`."""
    queries, points = point_sets("x", x, batch_x), point_sets("y", y, batch_y)
    check_alike("nearest", x, y)
    lonely = queries.numbers[~torch.isin(queries.numbers, points.numbers)]
    if lonely.numel():
        raise DataError(
            f"nearest: y must have a point of each set of x (got none of set {int(lonely[0])})."
            " Remove the points of x without any, or correct the batches."
        )
    return _pairs(points, queries, 1, math.inf, False)[1].clone().to(x.device)


@nearest_points.register_fake
def _nearest_points_fake(x: Tensor, y: Tensor, batch_x: Tensor | None, batch_y: Tensor | None) -> Tensor:
    return x.new_empty(x.shape[0], dtype=torch.int64)


def _pairs(points: PointSets, queries: PointSets | None, k: int, r: float, others: bool) -> Tensor:
    largest = points.largest
    factor = safe_factor(largest, largest if queries is None else queries.largest, 0.0 if r == math.inf else r)
    points = points.scaled(factor)
    raw, raw_queries, set_of = points.raw(), None, None
    if queries is not None:
        queries = queries.scaled(factor)
        raw_queries, set_of = queries.raw(), _places(queries.numbers, points.numbers)
    square = math.inf if r == math.inf else min((r * factor) ** 2, sys.float_info.max)
    functions, count, workers = searches.library(), ctypes.c_int64(), threads.num_threads()
    address = None if set_of is None else set_of.data_ptr()
    handle = functions.gw_near_new(raw, raw_queries, address, k, square, others, searches.MOST_KEPT, workers, count)
    if not handle:
        refuse_memory("near points", "")
    try:
        out = pairs_of(count.value, "near points")
        if functions.gw_near_take(handle, out.data_ptr(), workers):
            refuse_memory("near points", f" of {count.value} pairs")
    finally:
        functions.gw_near_free(handle)
    return out


def _places(numbers: Tensor, among: Tensor) -> Tensor:
    """The place of each number in `among`, which is sorted; -1 for a number that is not there."""
    place = torch.searchsorted(among, numbers)
    there = place < among.numel()
    there[there.clone()] = among[place[there]] == numbers[there]
    return place.where(there, -1)


def pairs_of(count: int, what: str) -> Tensor:
    """Room for `count` pairs, [2, count]. DataError if there is none, or if `count` is -1 for too many."""
    if count < 0:
        raise DataError(f"{what}: there are more pairs than 64 bits count. Pass a smaller distance.")
    try:
        return torch.empty(2, count, dtype=torch.int64, device="cpu")
    except RuntimeError:  # what PyTorch raises where there is no memory
        refuse_memory(what, f" of {count} pairs")


def refuse_memory(what: str, of: str) -> NoReturn:
    """DataError where memory does not suffice."""
    raise DataError(f"{what}: there is no memory for the search{of}. Pass fewer points, or a smaller distance.")


def _rows(points: Tensor) -> Tensor:
    return (points.unsqueeze(1) if points.dim() == 1 else points).detach()


def _directed(pairs: Tensor, flow: Flow) -> Tensor:
    if flow not in ("source_to_target", "target_to_source"):
        raise DataError(
            f"expected the flow 'source_to_target' or 'target_to_source' (got {flow!r}). Pass one of these."
        )
    return pairs.flip(0) if flow == "source_to_target" else pairs


def _most(what: str, max_num_neighbors: int | None) -> int:
    if max_num_neighbors is None:
        return 0
    _check_count(what, "max_num_neighbors", max_num_neighbors)
    return max_num_neighbors


def _check_count(what: str, name: str, count: int) -> None:
    if not 1 <= count < 2**63:
        raise DataError(f"{what}: {name} must be from 1 to 2^63 - 1 (got {count}). Pass the number of points to take.")


def _checked(r: float) -> float:
    if not 0 <= r < math.inf:
        raise DataError(f"r must be a finite distance of at least 0 (got {r}). Pass such a distance.")
    return float(r)
