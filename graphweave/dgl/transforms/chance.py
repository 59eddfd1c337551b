"""Transforms that drop, add, mask or shuffle at random, by PyTorch's generator."""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.dgl.graph import DGLGraph
from graphweave.dgl.transforms.base import BaseTransform


class DropNode(BaseTransform):
    """Without each node, and the edges at it, with the chance p."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = _chance(p)

    def __call__(self, g: DGLGraph) -> DGLGraph:
        g = g.clone()
        for t in g.ntypes:
            g.remove_nodes(_drawn(g.num_nodes(t), self.p, g.device).to(g.idtype), ntype=t)
        return g


class DropEdge(BaseTransform):
    """Without each edge with the chance p."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = _chance(p)

    def __call__(self, g: DGLGraph) -> DGLGraph:
        g = g.clone()
        for key in g.canonical_etypes:
            g.remove_edges(_drawn(g.num_edges(key), self.p, g.device).to(g.idtype), etype=key)
        return g


class AddEdge(BaseTransform):
    """`ratio` times as many further edges in each relation, between nodes drawn with equal chances."""

    def __init__(self, ratio: float = 0.2) -> None:
        self.ratio = ratio

    def __call__(self, g: DGLGraph) -> DGLGraph:
        g = g.clone()
        for key in g.canonical_etypes:
            count = int(g.num_edges(key) * self.ratio)
            if count:
                src, dst = (
                    torch.randint(g.num_nodes(t), (count,), dtype=g.idtype, device=g.device) for t in (key[0], key[2])
                )
                g.add_edges(src, dst, etype=key)
        return g


class NodeShuffle(BaseTransform):
    """The rows of all node fields in a random order, the same for the fields of a type."""

    def __call__(self, g: DGLGraph) -> DGLGraph:
        g = g.clone()
        for t, frame in g.node_frames.items():
            order = torch.randperm(g.num_nodes(t), device=g.device)
            for name, x in list(frame.items()):
                frame[name] = x[order]
        return g


class FeatMask(BaseTransform):
    """Zeros in each column of the named fields with the chance p, the same columns for all rows."""

    def __init__(
        self, p: float = 0.5, node_feat_names: list[str] | None = None, edge_feat_names: list[str] | None = None
    ) -> None:
        self.p = _chance(p)
        self.node_feat_names, self.edge_feat_names = node_feat_names or [], edge_feat_names or []

    def __call__(self, g: DGLGraph) -> DGLGraph:
        g = g.clone()
        for frames, names in ((g.node_frames, self.node_feat_names), (g.edge_frames, self.edge_feat_names)):
            for frame in frames.values():
                for name in names:
                    if name in frame:
                        x = frame[name]
                        frame[name] = x.index_fill(-1, _drawn(x.shape[-1], self.p, x.device), 0)
        return g


def _drawn(num: int, p: float, device: torch.device) -> Tensor:
    """Each number below `num` with the chance p, int64."""
    return (torch.rand(num, device=device) < p).nonzero().squeeze(1)


def _chance(p: float) -> float:
    if not 0 <= p <= 1:
        raise DataError(f"expected a chance p from 0 to 1 (got {p}). Pass such a number.")
    return p
