"""The graphs of `bench.ops`: those of FeatGraph's table at a tenth of their size, and real ones.

Y. Hu et al., "FeatGraph: A Flexible and Efficient Backend for Graph Neural Network Systems", SC 2020, table II:
rand-100K has 20K nodes of average degree 2000 and 80K of degree 100; here it is rand-10K. The uniform graphs of its
table IV have 10K nodes here, too.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from graphweave.data import npz, rmat

_UNIFORM = {"uniform-99.95": 0.0005, "uniform-99.5": 0.005, "uniform-95": 0.05}
"""Share of all pairs of 10,000 nodes that are edges. The name of a graph has the share that are not, in percent."""

_FILES = {"coauthor_physics": "coauthor_physics.npz", "flickr_small": "flickr_small.npz"}

GRAPHS = ("rand-10k", *_UNIFORM, *_FILES, "rmat", "tiny")
"""`tiny` is for trying things out."""


def absent(name: str, folder: Path) -> str | None:
    """Why a graph cannot be loaded; None if it can."""
    if name not in _FILES or (folder / _FILES[name]).is_file():
        return None
    return f"{folder / _FILES[name]} is absent"


def edges_of(name: str, folder: Path, seed: int = 0) -> tuple[Tensor, int]:
    """(edge_index [2, E] of int64, number of nodes). Edges are in no particular order."""
    generator = torch.Generator().manual_seed(seed)
    if name in _FILES:
        data = npz(folder / _FILES[name])
        return data.edge_index, data.num_nodes
    if name == "rmat":
        return rmat(169_343, 1_166_243, seed), 169_343
    if name == "tiny":
        return rmat(300, 2_000, seed), 300
    nodes = 10_000
    if name == "rand-10k":
        degree = torch.full((nodes,), 100)
        degree[torch.randperm(nodes, generator=generator)[: nodes // 5]] = 2000
        dst = torch.arange(nodes).repeat_interleave(degree)
    else:
        dst = torch.randint(nodes, (int(_UNIFORM[name] * nodes * nodes),), generator=generator)
    src = torch.randint(nodes, (dst.shape[0],), generator=generator)
    order = torch.randperm(dst.shape[0], generator=generator)
    return torch.stack([src, dst])[:, order], nodes
