"""Graphs of near points: `knn_graph`, `segmented_knn_graph`, `radius_graph`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.dgl.base import dgl_warning
from graphweave.dgl.construct import graph
from graphweave.dgl.graph import DGLGraph

if TYPE_CHECKING:
    from scipy.spatial import cKDTree

_DISTANCES = ("euclidean", "cosine")


def knn_graph(
    x: Tensor, k: int, algorithm: str = "bruteforce-blas", dist: str = "euclidean", exclude_self: bool = False
) -> DGLGraph:
    """An edge to each point from each of its k nearest points, itself among them unless `exclude_self`.

    `x`: points [N, D], or several sets [B, N, D], which are the graphs of a batch. Where a set has fewer points, k is
    lowered for all, with a `DGLWarning`. `algorithm` is DGL's and decides nothing. Edges are sorted by destination,
    then by distance. DataError for k < 1, other shapes and other distances than "euclidean" and "cosine".
    """
    if x.dim() not in (2, 3) or k + exclude_self < 1 or x.shape[-2] == 0:
        raise DataError(
            f"knn_graph: expected points [N, D] or [B, N, D] and k > 0 (got {list(x.shape)}, {k}). Pass these."
        )
    sets = x if x.dim() == 3 else x[None]
    return segmented_knn_graph(
        sets.reshape(-1, x.shape[-1]), k, [sets.shape[1]] * len(sets), algorithm, dist, exclude_self
    )


def segmented_knn_graph(
    x: Tensor,
    k: int,
    segs: Sequence[int],
    algorithm: str = "bruteforce-blas",
    dist: str = "euclidean",
    exclude_self: bool = False,
) -> DGLGraph:
    """`knn_graph` of several sets of points, one after the other in x [sum of segs, D], with segs[i] points each."""
    if x.dim() != 2 or k + exclude_self < 1:
        raise DataError(f"segmented_knn_graph: expected points [N, D], k > 0 (got {list(x.shape)}, {k}). Pass these.")
    if dist not in _DISTANCES:
        raise DataError(f"expected the distance 'euclidean' or 'cosine' (got {dist!r}). Pass one of these.")
    if sum(segs) != len(x):
        raise DataError(f"segs must add up to the {len(x)} points (got {sum(segs)}). Correct segs.")
    fewest = min((count for count in segs if count), default=0) - exclude_self
    if k > fewest:
        dgl_warning(f"k={k} is lowered to {fewest}: the smallest set has no more neighbours for a point.", stacklevel=3)
        k = max(fewest, 0)
    points = x.detach().double()
    if dist == "cosine":
        points = torch.nn.functional.normalize(points, dim=1)
    src, dst = [], []
    for begin, rows in _segments(points.cpu().numpy(), segs):
        most = min(k + exclude_self, len(rows))
        found = _tree(rows).query(rows, most)[1].reshape(len(rows), most)
        own = np.repeat(np.arange(len(rows))[:, None], most, 1)
        if exclude_self:
            keep = found != own
            keep[keep.all(1), -1] = False  # a point that equal points have pushed out of its own list
            found, own = found[keep], own[keep]
        src.append(begin + found.reshape(-1))
        dst.append(begin + own.reshape(-1))
    out = _graph(src, dst, len(x), x.device)
    out.set_batch_num_nodes(torch.tensor(list(segs)))
    out.set_batch_num_edges(k * torch.tensor(list(segs)))
    return out


def radius_graph(
    x: Tensor,
    r: float,
    p: float = 2,
    self_loop: bool = False,
    compute_mode: str = "donot_use_mm_for_euclid_dist",
    get_distances: bool = False,
) -> Any:
    """An edge between points whose distance in the p-norm is at most r, both ways; to itself with `self_loop`.

    `x`: points [N, D]. With `get_distances`, also the distance of each edge's ends, [num_edges, 1], which is
    differentiable. `compute_mode` is DGL's and decides nothing. Edges are sorted by source.
    """
    if x.dim() != 2:
        raise DataError(f"radius_graph: expected points [N, D] (got {list(x.shape)}). Pass one set of points.")
    points = x.detach().double().cpu().numpy()
    near = _tree(points).query_ball_point(points, r, p=p, return_sorted=True) if len(points) else []
    src = np.repeat(np.arange(len(points)), [len(found) for found in near]).astype(np.int64)
    dst = np.concatenate([np.asarray(found, dtype=np.int64) for found in near]) if len(points) else src
    if not self_loop:
        src, dst = src[src != dst], dst[src != dst]
    out = _graph([src], [dst], len(x), x.device)
    if not get_distances:
        return out
    u, v = out.edges()
    return out, torch.linalg.vector_norm(x[u] - x[v], ord=p, dim=1, keepdim=True)


def _segments(points: np.ndarray, segs: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
    begin = 0
    for count in segs:
        if count:
            yield begin, points[begin : begin + count]
        begin += count


def _tree(points: np.ndarray) -> cKDTree:
    from scipy.spatial import cKDTree  # SciPy takes long to load

    return cKDTree(points)


def _graph(src: Sequence[np.ndarray], dst: Sequence[np.ndarray], num_nodes: int, device: torch.device) -> DGLGraph:
    none = np.empty(0, dtype=np.int64)
    ends = [torch.from_numpy(np.concatenate([none, *side]).astype(np.int64)).to(device) for side in (src, dst)]
    return graph((ends[0], ends[1]), num_nodes=num_nodes)
