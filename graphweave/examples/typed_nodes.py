"""Trains a relational model to classify the nodes of a typed graph."""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.data import TypedNodeData
from graphweave.examples.relational_models import Classifier, RelationalEdges
from graphweave.examples.training import TrainingJob
from graphweave.examples.whole_graph import WholeGraphTraining

_WARM_UP_EDGES = 512
"""Number of edges of the first step of a warm-up."""


class TypedNodeTraining(WholeGraphTraining[TypedNodeData]):
    """One way of training on `data`. All ways have the same seed, and so the same initial weights."""

    def __init__(self, way: str, job: TrainingJob, data: TypedNodeData) -> None:
        torch.manual_seed(job.seed)
        widths = [None if x is None else x.size(1) for x in data.features]
        model = Classifier(job, widths, data.node_counts, data.num_classes, data.num_rels)
        super().__init__(way, job, data, model)
        self.edges = RelationalEdges.of(data.edge_index, data.etype, data.ntype)

    def logits(self) -> Tensor:
        edges = self.edges
        out: Tensor = self.model(self.data.features, edges.graph, edges.etype, edges.ntype, edges.norm)
        return out

    def warm_up(self) -> None:
        """Run two steps of different sizes on few edges."""
        edges = self.edges
        for count in (_WARM_UP_EDGES, _WARM_UP_EDGES // 2):
            self.edges = edges.first(count)
            self.step()
        self.edges = edges
