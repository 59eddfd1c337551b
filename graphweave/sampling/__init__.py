"""Batches of a graph: neighbours, clusters, subgraphs and edges, the same for any number of threads and workers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphweave.sampling.blocks import BlockSampler
    from graphweave.sampling.clusters import ClusterSampler
    from graphweave.sampling.edge_prediction import as_edge_prediction_sampler
    from graphweave.sampling.hgt import HGTLoader, HGTSampler
    from graphweave.sampling.loader import DataLoader
    from graphweave.sampling.negatives import NegativeSampler
    from graphweave.sampling.prefetch import Prefetcher
    from graphweave.sampling.pyg import NeighborSampler
    from graphweave.sampling.pyg_loaders import LinkNeighborLoader, NeighborLoader
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

_MODULE_OF = {
    "BlockSampler": "blocks",
    "ClusterSampler": "clusters",
    "DataLoader": "loader",
    "HGTLoader": "hgt",
    "HGTSampler": "hgt",
    "LinkNeighborLoader": "pyg_loaders",
    "NegativeSampler": "negatives",
    "NeighborLoader": "pyg_loaders",
    "NeighborSampler": "pyg",
    "Prefetcher": "prefetch",
    "RandomWalker": "walks",
    "SAINTSampler": "saint",
    "as_edge_prediction_sampler": "edge_prediction",
}
"""Name -> the module that defines it, loaded when the name is first asked for: PyG and the compiler take seconds to
load."""


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
