"""Functions that make edge lists: the symmetric closure of edges, and random R-MAT graphs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from graphweave.core.errors import DataError

_QUADRANTS = (0.57, 0.19, 0.19, 0.05)
"""Probabilities of the four quadrants at each level, as in Graph500. They give a power-law graph with hubs."""


def symmetrise(src: Tensor, dst: Tensor, num_nodes: int) -> Tensor:
    """edge_index [2, E'] int64 with both directions of every edge, no duplicates, no self-loops, sorted by source."""
    src, dst = src.to(torch.int64), dst.to(torch.int64)
    keep = src != dst
    src, dst = src[keep], dst[keep]
    keys = torch.unique(torch.cat([src * num_nodes + dst, dst * num_nodes + src]))
    if keys.numel() == 0:
        return torch.empty((2, 0), dtype=torch.int64)
    return torch.stack([keys // num_nodes, keys % num_nodes])


def rmat(num_nodes: int, num_edges: int, seed: int = 0) -> Tensor:
    """edge_index [2, num_edges] int64 of a seeded R-MAT graph: directed, duplicates and self-loops possible.

    Node numbers are shuffled, so that hubs do not share cache lines, as they would without shuffling.
    Source: Chakrabarti, Zhan, Faloutsos, "R-MAT: A Recursive Model for Graph Mining", SDM 2004.
    """
    if num_nodes < 1 or num_edges < 0:
        raise DataError(
            f"rmat: expected num_nodes >= 1 and num_edges >= 0 (got {num_nodes} and {num_edges}). Pass such numbers."
        )
    rng = np.random.default_rng(seed)
    levels = max(num_nodes - 1, 0).bit_length()
    parts: list[np.ndarray] = []
    missing = num_edges
    while missing > 0:
        # Pairs beyond num_nodes are drawn again. About half survive if num_nodes is just over a power of two.
        pairs = _draw(rng, levels, missing + missing // 2 + 16)
        pairs = pairs[:, (pairs < num_nodes).all(axis=0)][:, :missing]
        parts.append(pairs)
        missing -= pairs.shape[1]
    edges = np.concatenate(parts, axis=1) if parts else np.empty((2, 0), dtype=np.int64)
    return torch.from_numpy(rng.permutation(num_nodes)[edges].astype(np.int64, copy=False))


def _draw(rng: np.random.Generator, levels: int, count: int) -> np.ndarray:
    """[2, count] int64 in 0..2**levels-1: at each level a quadrant is drawn, which gives one bit of row and column."""
    bounds = np.cumsum(_QUADRANTS)[:3].astype(np.float32)
    pairs = np.zeros((2, count), dtype=np.int64)
    for _ in range(levels):
        quadrant = np.searchsorted(bounds, rng.random(count, dtype=np.float32), side="right")
        pairs[0] = 2 * pairs[0] + quadrant // 2
        pairs[1] = 2 * pairs[1] + quadrant % 2
    return pairs
