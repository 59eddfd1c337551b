"""The graphs that the benchmarks train on: features, edges, pseudo-coordinates and labels, all from one seed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

from bench.turns import ROOT
from graphweave.data import npz, rmat

FEATURES = 64
"""Width of the random input features."""

HIDDEN = 64
"""Width of the hidden layer and of the logits: both layers of every 2-layer model are 64 wide."""

ARXIV_NODES, ARXIV_EDGES = 169_343, 1_166_243
"""Size of the R-MAT graph: that of ogbn-arxiv."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Node features [N, F], edge index [2, E], labels [N] in 0..63, and for some models pseudo-coordinates [E, 2].

    `edge_attr` is (1 / sqrt(deg(u)), 1 / sqrt(deg(v))), degrees at least 1, as MoNet's authors choose for graphs
    without coordinates.
    """

    x: Tensor
    edge_index: Tensor
    y: Tensor
    edge_attr: Tensor | None = None

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The arguments of a model."""
        return (self.x, self.edge_index) if self.edge_attr is None else (self.x, self.edge_index, self.edge_attr)

    def double(self) -> Workload:
        return Workload(
            self.x.double(), self.edge_index, self.y, None if self.edge_attr is None else self.edge_attr.double()
        )


GRAPHS = ("arxiv", "pubmed", "computers", "cora", "cora-features", "ppi", "rmat", "rmat-ppi", "tiny")
"""Graphs with 64 random features, except cora-features, which has Cora's own 1433. `tiny` is for trying things out."""

POINT_SETS = {"points": (16, 1024, 20), "tiny-points": (2, 100, 5)}
"""Static k-nearest-neighbour graphs: name -> (clouds, points in each, neighbours k). Features are 3 coordinates."""

_RANDOM = {"rmat": (ARXIV_NODES, ARXIV_EDGES), "rmat-ppi": (14_755, 492_000), "tiny": (1000, 6000)}
"""R-MAT graphs: name -> (nodes, edges). rmat-ppi has as many nodes as PPI, and as many edges as Amazon's computers."""

_FILES = {
    "arxiv": "ogbn_arxiv_structure.npz",
    "pubmed": "pubmed.npz",
    "computers": "amazon_computers.npz",
    "cora": "cora.npz",
    "cora-features": "cora.npz",
    "ppi": "ppi_structure.npz",
}


def data_dir() -> Path:
    """Folder of the graph files: the environment's GRAPHWEAVE_DATA, else `shared/data` beside the repository."""
    return Path(os.environ.get("GRAPHWEAVE_DATA", ROOT.parent / "shared" / "data"))


def missing(name: str, folder: Path) -> str | None:
    """Why a graph cannot be loaded; None if it can."""
    if name not in _FILES or (folder / _FILES[name]).is_file():
        return None
    return f"{folder / _FILES[name]} is absent"


def load(name: str, folder: Path, seed: int = 0, *, pseudo: bool = False) -> Workload:
    """The workload of a graph. arxiv is made symmetric (2.3M edges); R-MAT graphs are directed."""
    generator = torch.Generator().manual_seed(seed)
    x: Tensor | None = None
    if name in POINT_SETS:
        x, index = knn_clouds(*POINT_SETS[name], generator)
        num_nodes = x.size(0)
    elif name in _RANDOM:
        num_nodes, num_edges = _RANDOM[name]
        index = rmat(num_nodes, num_edges, seed)
    else:
        data = npz(folder / _FILES[name], symmetric=name == "arxiv")
        num_nodes, index = data.num_nodes, data.edge_index
        x = data.x if name == "cora-features" else None
    return workload_of(index, num_nodes, generator, x, pseudo=2 if pseudo else 0)


def workload_of(
    index: Tensor, num_nodes: int, generator: torch.Generator, x: Tensor | None = None, *, inputs: int = FEATURES,
    classes: int = HIDDEN, pseudo: int = 0,
) -> Workload:  # fmt: skip
    """A graph with the features `x`, or random ones [N, inputs], and labels below `classes`.

    Edges have `pseudo` pseudo-coordinates: two are those of `Workload`, any other number random ones.
    """
    if x is None:
        x = torch.randn(num_nodes, inputs, generator=generator)
    y = torch.randint(classes, (num_nodes,), generator=generator)
    if pseudo in (0, 2):
        return Workload(x, index, y, pseudo_coordinates(index, num_nodes) if pseudo else None)
    return Workload(x, index, y, torch.rand(index.size(1), pseudo, generator=generator))


def pseudo_coordinates(edge_index: Tensor, num_nodes: int) -> Tensor:
    """The pseudo-coordinates of `Workload`, [E, 2]. Degrees count incoming edges."""
    degree = torch.bincount(edge_index[1], minlength=num_nodes).clamp(min=1).float()
    return degree.rsqrt()[edge_index].t().contiguous()


def knn_clouds(clouds: int, points: int, k: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Uniform random points [clouds * points, 3] and edges [2, clouds * points * k], neighbour -> point.

    No point is its own neighbour. Edges are grouped by destination, nearest first, clouds one after the other, as
    torch_cluster's knn_graph gives them.
    """
    x = torch.rand(clouds * points, 3, generator=generator)
    sources = []
    for c in range(clouds):
        cloud = x[c * points : (c + 1) * points].numpy()
        _, nearest = cKDTree(cloud).query(cloud, k=k + 1)  # a point is nearest to itself
        sources.append(nearest[:, 1:].reshape(-1) + c * points)
    source = torch.from_numpy(np.concatenate(sources).astype(np.int64))
    return x, torch.stack([source, torch.arange(clouds * points).repeat_interleave(k)])


def csr_matrix(index: Iterable[Tensor], weight: Tensor, size: tuple[int, int]) -> Tensor:
    """A [destinations, sources] in CSR: an edge (src, dst) with its weight is an entry A[dst, src], and one that occurs
    twice is two."""
    src, dst = index
    order = torch.argsort(dst, stable=True)
    pointer = dst.new_zeros(size[0] + 1)
    pointer[1:] = torch.bincount(dst, minlength=size[0]).cumsum(0)
    return torch.sparse_csr_tensor(pointer, src[order], weight[order], size, check_invariants=False)
