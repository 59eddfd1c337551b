"""`dgl.dataloading.negative_sampler`: pairs of nodes for the edges of a batch, which functions of a graph and edges
draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from graphweave.dgl.graph import DGLGraph
from graphweave.dgl.sampling import global_uniform_negative_sampling
from graphweave.graph.relation import CanonicalEtype

Pairs = tuple[Tensor, Tensor] | dict[CanonicalEtype, tuple[Tensor, Tensor]]
"""(sources, destinations) of edges, or relation -> these."""

__all__ = ["GlobalUniform", "PerSourceUniform", "Uniform"]


class PerSourceUniform:
    """For each edge u -> v, `k` pairs (u, v'), where v' is any node of v's type, each equally likely. Pairs may be
    edges."""

    def __init__(self, k: int) -> None:
        self.k = k

    def __call__(self, g: DGLGraph, eids: object) -> Pairs:
        """(sources, destinations) of edges, or relation -> these."""
        return _by_relation(g, eids, self._pairs)

    def _pairs(self, g: DGLGraph, eids: Tensor, key: CanonicalEtype) -> tuple[Tensor, Tensor]:
        src, _ = g.find_edges(eids, etype=key)
        src = src.repeat_interleave(self.k)
        return src, torch.randint(g.num_nodes(key[2]), src.shape, dtype=src.dtype)


Uniform = PerSourceUniform


class GlobalUniform:
    """For each edge at most `k` pairs of nodes that no edge joins, each pair equally likely; self-loops and repeated
    pairs are left out unless asked for."""

    def __init__(
        self, k: int, exclude_self_loops: bool = True, replace: bool = False, redundancy: float | None = None
    ) -> None:
        self.k, self.exclude_self_loops, self.replace, self.redundancy = k, exclude_self_loops, replace, redundancy

    def __call__(self, g: DGLGraph, eids: object) -> Pairs:
        """(sources, destinations) of edges, or relation -> these."""
        return _by_relation(g, eids, self._pairs)

    def _pairs(self, g: DGLGraph, eids: Tensor, key: CanonicalEtype) -> tuple[Tensor, Tensor]:
        return global_uniform_negative_sampling(
            g, len(eids) * self.k, self.exclude_self_loops, self.replace, key, self.redundancy
        )


def _by_relation(
    g: DGLGraph, eids: object, pairs: Callable[[DGLGraph, Tensor, CanonicalEtype], tuple[Tensor, Tensor]]
) -> Pairs:
    if isinstance(eids, Mapping):
        found = {g.to_canonical_etype(name): torch.as_tensor(ids) for name, ids in eids.items()}
        return {key: pairs(g, ids, key) for key, ids in found.items()}
    return pairs(g, torch.as_tensor(eids), g.to_canonical_etype(None))
