"""Trains a relational model to classify the nodes of a typed graph."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from graphweave.cli.relational_models import Classifier, RelationalEdges
from graphweave.cli.training import ACCURACY, History, Predictions, Resumable, TrainingJob, accuracy, commonest, wrap
from graphweave.data import TypedNodeData

_WARM_UP_EDGES = 512
"""Number of edges of the first step of a warm-up."""


class EntityRunner(Resumable):
    """One way of training on `data`. All ways have the same seed, and so the same initial weights."""

    measure = ACCURACY

    def __init__(self, way: str, job: TrainingJob, data: TypedNodeData) -> None:
        self.way, self.data, self.history = way, data, History()
        torch.manual_seed(job.seed)
        widths = [None if x is None else x.size(1) for x in data.features]
        module = Classifier(
            job.model, widths, data.node_counts, job.hidden, data.num_classes, job.heads, data.num_rels, job.dropout
        )
        self.optimizer = torch.optim.Adam(module.parameters(), lr=job.lr, weight_decay=job.weight_decay)
        self.modules = (module,)
        self.model = wrap(way, job)(module)
        self.edges = RelationalEdges.of(data.edge_index, data.etype, data.ntype)
        self.rows = data.train_mask.nonzero().flatten()

    def step(self) -> float:
        """Run one training step over the whole graph. Returns the loss."""
        return self._step(self.edges)

    def epoch(self, tick: Callable[[float], None] = lambda share: None) -> None:
        """Run a timed step, then measure the accuracy on train and validation nodes."""
        start = time.perf_counter()
        loss = self.step()
        self.history.seconds.append(time.perf_counter() - start)
        self.history.loss.append(loss)
        predicted = self.predict()
        self.history.train.append(accuracy(predicted, self.data.y, self.data.train_mask))
        self.history.val.append(accuracy(predicted, self.data.y, self.data.val_mask))

    def predict(self) -> Tensor:
        """The most likely class of each node [N]."""
        self.model.eval()
        with torch.no_grad():
            return self._logits(self.edges).argmax(dim=1)

    def warm_up(self) -> None:
        """Run two steps of different sizes on few edges."""
        for count in (_WARM_UP_EDGES, _WARM_UP_EDGES // 2):
            self._step(self.edges.first(count))

    def test(self) -> dict[str, float]:
        return {"test accuracy": accuracy(self.predict(), self.data.y, self.data.test_mask)}

    def predictions(self) -> Predictions:
        mask = self.data.test_mask
        return Predictions.of_classes(self.predict()[mask], self.data.y[mask], self.data.num_classes)

    def baseline(self) -> dict[str, float]:
        """That of the commonest class of the training nodes."""
        return commonest(self.data.y, self.data.train_mask, self.data.test_mask)

    def _step(self, edges: RelationalEdges) -> float:
        self.model.train()
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self._logits(edges)[self.rows], self.data.y[self.rows])
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def _logits(self, edges: RelationalEdges) -> Tensor:
        out: Tensor = self.model(self.data.features, edges.graph, edges.etype, edges.ntype, edges.norm)
        return out
