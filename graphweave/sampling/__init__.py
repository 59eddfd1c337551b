"""Batches of a graph: neighbours drawn hop by hop, in native code, the same for any number of threads and workers."""

from __future__ import annotations

from typing import Any

from graphweave.sampling.blocks import BlockSampler
from graphweave.sampling.negatives import NegativeSampler
from graphweave.sampling.prefetch import Prefetcher
from graphweave.sampling.walks import RandomWalker

__all__ = ["BlockSampler", "NegativeSampler", "NeighborSampler", "Prefetcher", "RandomWalker"]


def __getattr__(name: str) -> Any:
    """`NeighborSampler` derives from a class of PyG, which is loaded when the name is first used."""
    if name != "NeighborSampler":
        raise AttributeError(f"module 'graphweave.sampling' has no attribute {name!r}")
    from graphweave.sampling.pyg import NeighborSampler

    return NeighborSampler
