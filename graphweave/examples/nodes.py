"""Trains a PyG model for node classification."""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.data import NodeData, rmat
from graphweave.examples.convolutions import build
from graphweave.examples.training import TrainingJob
from graphweave.examples.whole_graph import WholeGraphTraining

_WARM_UP_NODES = 64
_WARM_UP_EDGES = 512
"""Numbers of nodes and edges of the graph of a warm-up."""


class NodeTraining(WholeGraphTraining[NodeData]):
    """One way of training on `data`. All ways have the same seed, and so the same initial weights."""

    def __init__(self, way: str, job: TrainingJob, data: NodeData) -> None:
        torch.manual_seed(job.seed)
        model = build(job, data.x.size(1), data.num_classes)
        super().__init__(way, job, data, model)

    def logits(self) -> Tensor:
        out: Tensor = self.model(self.data.x, self.data.edge_index)
        return out

    def warm_up(self) -> None:
        """Run two steps on a small graph."""
        data = self.data
        self.use(_small(data))
        for _ in range(2):
            self.step()
        self.use(data)


def _small(data: NodeData) -> NodeData:
    """A small graph with the numbers of features and classes of `data`, in which every node is in every split."""
    rows = torch.arange(_WARM_UP_NODES) % data.num_nodes
    every = torch.ones(_WARM_UP_NODES, dtype=torch.bool)
    y = torch.arange(_WARM_UP_NODES) % data.num_classes
    edges = rmat(_WARM_UP_NODES, _WARM_UP_EDGES)
    return NodeData(data.x[rows], edges, y, every, every, every, data.num_classes, data.name)
