"""The graphs and the 2-layer models that the benchmarks train."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn

from bench.common import ROOT
from graphweave.data import npz, rmat

FEATURES = 64
"""Width of the random input features."""

HIDDEN = 64
"""Width of the hidden layer and of the logits: both layers of every model are 64 wide."""

ARXIV_NODES, ARXIV_EDGES = 169_343, 1_166_243
"""Size of the R-MAT graph: that of ogbn-arxiv."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Node features [N, F], edge index [2, E] and random labels [N] in 0..63."""

    x: Tensor
    edge_index: Tensor
    y: Tensor


GRAPHS = ("arxiv", "pubmed", "cora", "cora-features", "rmat")
"""Names `load` knows. All have 64 random features but cora-features, which has its own 1433."""

_FILES = {
    "arxiv": "ogbn_arxiv_structure.npz",
    "pubmed": "pubmed.npz",
    "cora": "cora.npz",
    "cora-features": "cora.npz",
}


def data_dir() -> Path:
    """Folder of the graph files: the environment's GRAPHWEAVE_DATA, else `shared/data` beside the repository."""
    return Path(os.environ.get("GRAPHWEAVE_DATA", ROOT.parent / "shared" / "data"))


def missing(name: str, folder: Path) -> str | None:
    """Why a graph cannot be loaded, None when it can."""
    if name not in _FILES or (folder / _FILES[name]).is_file():
        return None
    return f"{folder / _FILES[name]} is absent"


def load(name: str, folder: Path, seed: int = 0) -> Workload:
    """arxiv is made symmetric (2.3M edges); R-MAT is directed, as drawn."""
    generator = torch.Generator().manual_seed(seed)
    if name == "rmat":
        num_nodes, index, own = ARXIV_NODES, rmat(ARXIV_NODES, ARXIV_EDGES, seed), None
    else:
        data = npz(folder / _FILES[name], symmetric=name == "arxiv")
        num_nodes, index, own = data.num_nodes, data.edge_index, data.x
    x = own if name == "cora-features" and own is not None else torch.randn(num_nodes, FEATURES, generator=generator)
    y = torch.randint(HIDDEN, (num_nodes,), generator=generator)
    return Workload(x, index, y)


class TwoLayer(nn.Module):
    """conv, ReLU, conv: 64 logits a node."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.second = second

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


def _mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))


def two_layer(layer: Callable[[int], nn.Module], inputs: int, width: int = HIDDEN) -> TwoLayer:
    return TwoLayer(layer(inputs), layer(width))


def attention(inputs: int, heads: int, channels: int) -> TwoLayer:
    """GAT whose two layers are both `heads` x `channels`, concatenated."""
    return two_layer(lambda width: pyg.GATConv(width, channels, heads=heads), inputs, heads * channels)


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "gcn": lambda inputs: two_layer(lambda width: pyg.GCNConv(width, HIDDEN), inputs),
    "sage": lambda inputs: two_layer(lambda width: pyg.SAGEConv(width, HIDDEN), inputs),
    "gin": lambda inputs: two_layer(lambda width: pyg.GINConv(_mlp(width, HIDDEN)), inputs),
    "gat": lambda inputs: attention(inputs, 4, 16),
    "gatv2": lambda inputs: two_layer(lambda width: pyg.GATv2Conv(width, 16, heads=4), inputs),
}
"""Model name -> constructor from the input width. Nothing is cached between steps (GCN normalises every step)."""


def training_step(model: Callable[..., Tensor], parameters: Sequence[nn.Parameter], work: Workload) -> Tensor:
    """Forward, cross entropy on every node, backward into fresh gradients; no optimiser, which all systems share."""
    for parameter in parameters:
        parameter.grad = None
    loss = F.cross_entropy(model(work.x, work.edge_index), work.y)
    loss.backward()
    return loss.detach()
