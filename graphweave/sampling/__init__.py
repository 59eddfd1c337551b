"""Batches of a graph: neighbours, clusters, subgraphs and edges, the same for any number of threads and workers."""

from __future__ import annotations

from typing import Any

from graphweave.sampling.blocks import BlockSampler
from graphweave.sampling.clusters import ClusterSampler
from graphweave.sampling.edge_prediction import as_edge_prediction_sampler
from graphweave.sampling.loader import DataLoader
from graphweave.sampling.negatives import NegativeSampler
from graphweave.sampling.prefetch import Prefetcher
from graphweave.sampling.saint import SAINTSampler
from graphweave.sampling.walks import RandomWalker

__all__ = [
    "BlockSampler",
    "ClusterSampler",
    "DataLoader",
    "HGTLoader",
    "HGTSampler",
    "LinkNeighborLoader",
    "NegativeSampler",
    "NeighborLoader",
    "NeighborSampler",
    "Prefetcher",
    "RandomWalker",
    "SAINTSampler",
    "as_edge_prediction_sampler",
]


def __getattr__(name: str) -> Any:
    """What derives from a class of PyG, which is loaded when their names are first used."""
    if name == "NeighborSampler":
        from graphweave.sampling.pyg import NeighborSampler

        return NeighborSampler
    if name in ("NeighborLoader", "LinkNeighborLoader"):
        from graphweave.sampling import pyg_loaders

        return getattr(pyg_loaders, name)
    if name in ("HGTLoader", "HGTSampler"):
        from graphweave.sampling import hgt

        return getattr(hgt, name)
    raise AttributeError(f"module 'graphweave.sampling' has no attribute {name!r}")
