"""Neighbours of points, by the signatures of pyg-lib and of torch_cluster. Points are found by `graphweave.points`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from graphweave import points
from graphweave.points.near import Flow

# ---------------------------------------------------------------- torch_cluster, with the number of a cloud by point


def knn(
    x: Tensor, y: Tensor, k: int, batch_x: Tensor | None = None, batch_y: Tensor | None = None, cosine: bool = False,
    num_workers: int = 1, batch_size: int | None = None,
) -> Tensor:  # fmt: skip
    """[2, pairs]: a point of `y`, and one of the `k` points of `x` that are nearest to it; nearest by angle with
    `cosine`."""
    x, y = (normalize(x, dim=-1), normalize(y, dim=-1)) if cosine else (x, y)
    return points.knn(x, y, k, batch_x, batch_y)


def knn_graph(
    x: Tensor, k: int, batch: Tensor | None = None, loop: bool = False, flow: Flow = "source_to_target",
    cosine: bool = False, num_workers: int = 1, batch_size: int | None = None,
) -> Tensor:  # fmt: skip
    return points.knn_graph(normalize(x, dim=-1) if cosine else x, k, batch, loop, flow)


def radius(
    x: Tensor, y: Tensor, r: float, batch_x: Tensor | None = None, batch_y: Tensor | None = None,
    max_num_neighbors: int | None = 32, num_workers: int = 1, batch_size: int | None = None,
    ignore_same_index: bool = False,
) -> Tensor:  # fmt: skip
    """[2, pairs]: a point of `y`, and one of `x` within `r` of it, at most the `max_num_neighbors` nearest. With
    `ignore_same_index`, `y` is `x`, and no point is paired with itself."""
    if ignore_same_index:
        return points.radius_graph(x, r, batch_x, False, max_num_neighbors, "target_to_source")
    return points.radius(x, y, r, batch_x, batch_y, max_num_neighbors)


def radius_graph(
    x: Tensor, r: float, batch: Tensor | None = None, loop: bool = False, max_num_neighbors: int | None = 32,
    flow: Flow = "source_to_target", num_workers: int = 1, batch_size: int | None = None,
) -> Tensor:  # fmt: skip
    return points.radius_graph(x, r, batch, loop, max_num_neighbors, flow)


def fps(
    x: Tensor, batch: Tensor | None = None, ratio: float | Tensor = 0.5, random_start: bool = True,
    batch_size: int | None = None, ptr: object = None,
) -> Tensor:  # fmt: skip
    """The numbers of points that are chosen one after the other, each farthest from those before it."""
    batch = batch if ptr is None else _clouds(torch.as_tensor(ptr, device=x.device), x)
    ratio = float(ratio) if isinstance(ratio, Tensor) else ratio
    return points.fps(x.flatten(1) if x.dim() > 2 else x, batch, ratio, random_start)


# ---------------------------------------------------------------- pyg-lib, with pointers to the clouds


def _clouds(ptr: Tensor | None, x: Tensor) -> Tensor | None:
    """The number of the cloud of each point, of clouds that lie between pointers."""
    if ptr is None:
        return None
    numbers = torch.arange(x.size(0), dtype=ptr.dtype, device=ptr.device)
    return torch.searchsorted(ptr, numbers, right=True) - 1  # also for a number of pointers that data decides


def _knn(
    x: Tensor, y: Tensor, ptr_x: Tensor | None = None, ptr_y: Tensor | None = None, k: int = 1, cosine: bool = False,
    num_workers: int = 1,
) -> Tensor:  # fmt: skip
    return knn(x, y, k, _clouds(ptr_x, x), _clouds(ptr_y, y), cosine)


def _radius(
    x: Tensor, y: Tensor, ptr_x: Tensor | None = None, ptr_y: Tensor | None = None, r: float = 1.0,
    max_num_neighbors: int | None = 32, num_workers: int = 1, ignore_same_index: bool = False,
) -> Tensor:  # fmt: skip
    batches = _clouds(ptr_x, x), _clouds(ptr_y, y)
    return radius(x, y, r, *batches, max_num_neighbors, ignore_same_index=ignore_same_index)


def _nearest(x: Tensor, y: Tensor, ptr_x: Tensor | None = None, ptr_y: Tensor | None = None) -> Tensor:
    return points.nearest(x, y, _clouds(ptr_x, x), _clouds(ptr_y, y))


def _fps(x: Tensor, ptr: Tensor | None, ratio: float | Tensor = 0.5, random_start: bool = True) -> Tensor:
    return fps(x, _clouds(ptr, x), ratio, random_start)


OPERATORS: dict[str, Callable[..., Any]] = {
    "knn": _knn, "radius": _radius, "nearest": _nearest, "fps": _fps, "grid_cluster": points.grid,
}  # fmt: skip
"""The functions that PyG asks pyg-lib for."""

TORCH_CLUSTER: dict[str, Callable[..., Any]] = {
    "knn": knn, "knn_graph": knn_graph, "radius": radius, "radius_graph": radius_graph, "nearest": points.nearest,
    "fps": fps, "grid_cluster": points.grid,
}  # fmt: skip
"""The functions that programs ask torch_cluster for."""
