"""Modules that make graphs of near points: `KNNGraph`, `SegmentedKNNGraph`, `RadiusGraph`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from graphweave.dgl.near import knn_graph, radius_graph, segmented_knn_graph


class KNNGraph(nn.Module):
    """`dgl.knn_graph` with `k` neighbours."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def forward(
        self, x: Tensor, algorithm: str = "bruteforce-blas", dist: str = "euclidean", exclude_self: bool = False
    ) -> Any:
        """Points [N, D] or [B, N, D] -> graph."""
        return knn_graph(x, self.k, algorithm, dist, exclude_self)


class SegmentedKNNGraph(nn.Module):
    """`dgl.segmented_knn_graph` with `k` neighbours."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def forward(
        self, x: Tensor, segs: Sequence[int], algorithm: str = "bruteforce-blas", dist: str = "euclidean",
        exclude_self: bool = False,
    ) -> Any:  # fmt: skip
        """Points [sum of segs, D] -> graph."""
        return segmented_knn_graph(x, self.k, segs, algorithm, dist, exclude_self)


class RadiusGraph(nn.Module):
    """`dgl.radius_graph` with the radius `r` in the `p`-norm."""

    def __init__(
        self, r: float, p: float = 2, self_loop: bool = False, compute_mode: str = "donot_use_mm_for_euclid_dist"
    ) -> None:
        super().__init__()
        self.r, self.p, self.self_loop, self.compute_mode = r, p, self_loop, compute_mode

    def forward(self, x: Tensor, get_distances: bool = False) -> Any:
        """Points [N, D] -> graph, or (graph, distances [E, 1])."""
        return radius_graph(x, self.r, self.p, self.self_loop, self.compute_mode, get_distances)
