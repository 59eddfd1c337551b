"""`dgl.geometry`: points that are far from each other, and pairs of neighbours for coarsening a graph."""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.dgl.graph import DGLGraph

__all__ = ["farthest_point_sampler", "neighbor_matching"]


def farthest_point_sampler(pos: Tensor, npoints: int, start_idx: int | None = None) -> Tensor:
    """`npoints` points of each set, each the one that is farthest from those before it, int64 [B, npoints].

    `pos`: sets of points [B, N, D]. `start_idx`: the first point of each set; None draws one from PyTorch's generator.
    Of equally far points, the first is taken. Source: Eldar et al., "The Farthest Point Strategy for Progressive Image
    Sampling", 1997. DataError for other shapes, more points than a set has, and a start that is none of them.
    """
    if pos.dim() != 3 or not 0 < npoints <= pos.shape[1]:
        raise DataError(
            f"farthest_point_sampler: expected points [B, N, D], 0 < npoints <= N (got {list(pos.shape)}, {npoints})."
            " Pass these."
        )
    sets, count, _ = pos.shape
    if start_idx is not None and not 0 <= start_idx < count:
        raise DataError(f"start_idx must be from 0 to {count - 1} (got {start_idx}). Pass the number of a point.")
    first = torch.randint(count, (sets,)) if start_idx is None else torch.full((sets,), start_idx)
    points, last, rows = pos.detach(), first.to(pos.device), torch.arange(sets, device=pos.device)
    out = torch.empty(sets, npoints, dtype=torch.long, device=pos.device)
    nearest = points.new_full((sets, count), float("inf"))
    for i in range(npoints):
        out[:, i] = last
        square = (points - points[rows, last].unsqueeze(1)).square().sum(-1)
        nearest = torch.minimum(nearest, square)
        last = (nearest == nearest.amax(1, keepdim=True)).int().argmax(1)
    return out


def neighbor_matching(graph: DGLGraph, e_weights: Tensor | None = None, relabel_idx: bool = True) -> Tensor:
    """A matching of neighbours that no further pair fits into: the label of each node, equal for the two of a pair,
    int64 [N].

    Nodes are visited in random order, from PyTorch's generator. Each that is not matched yet takes a neighbour that is
    not either, at random, or that with the greatest of `e_weights` [E]; without one it stays alone. Self-loops are
    ignored, and both directions of each edge should be there. A label is the smaller number of the two; `relabel_idx`
    numbers labels from 0. Source: Dhillon, Guan and Kulis, "Weighted Graph Cuts without Eigenvectors", 2007 (Graclus).
    DataError for several relations.
    """
    if len(graph.canonical_etypes) != 1 or len(graph.ntypes) != 1:
        raise DataError(
            f"neighbor_matching: expected one node type and one relation (got {graph.canonical_etypes})."
            " Pass dgl.to_homogeneous(graph)."
        )
    count, (src, dst) = graph.num_nodes(), (x.long().cpu() for x in graph.edges())
    value = torch.rand(len(src)) if e_weights is None else e_weights.detach().reshape(-1).cpu()
    order = torch.argsort(value, descending=True, stable=True)
    order = order[torch.argsort(src[order], stable=True)]
    begins = torch.bincount(src, minlength=count).cumsum(0).tolist()
    near, label = dst[order].tolist(), [-1] * count
    for u in torch.randperm(count).tolist():
        if label[u] < 0:
            around = near[begins[u - 1] if u else 0 : begins[u]]
            other = next((v for v in around if v != u and label[v] < 0), u)
            label[u] = label[other] = min(u, other)
    found = torch.tensor(label, dtype=torch.long)
    return (found.unique(return_inverse=True)[1] if relabel_idx and count else found).to(graph.device)
