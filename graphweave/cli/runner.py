"""Trains a PyG model for node classification."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from graphweave.cli.models import build
from graphweave.cli.training import ACCURACY, History, Predictions, Resumable, TrainingJob, accuracy, commonest, wrap
from graphweave.data import NodeData, rmat

_WARM_UP_NODES = 64
_WARM_UP_EDGES = 512
"""Numbers of nodes and edges of the graph of a warm-up."""


class Runner(Resumable):
    """One way of training on `data`. All ways have the same seed, and so the same initial weights."""

    measure = ACCURACY

    def __init__(self, way: str, job: TrainingJob, data: NodeData) -> None:
        self.way = way
        self.history = History()
        torch.manual_seed(job.seed)
        module = build(job.model, data.x.size(1), job.hidden, data.num_classes, job.heads, job.dropout)
        self.optimizer = torch.optim.Adam(module.parameters(), lr=job.lr, weight_decay=job.weight_decay)
        self.modules = (module,)
        self.model = wrap(way, job)(module)
        self.use(data)

    def use(self, data: NodeData) -> None:
        """Let the next steps train on `data`, which has the same features and classes as the data before."""
        self.data = data
        self.rows = data.train_mask.nonzero().flatten()
        self.target = data.y[self.rows]

    def step(self) -> float:
        """Run one training step over the whole graph. Returns the loss."""
        self.model.train()
        self.optimizer.zero_grad()
        logits = self.model(self.data.x, self.data.edge_index)
        loss = F.cross_entropy(logits[self.rows], self.target)
        loss.backward()
        self.optimizer.step()
        return loss.item()

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
            return self.model(self.data.x, self.data.edge_index).argmax(dim=1)

    def warm_up(self) -> None:
        """Run two steps on a small graph."""
        data = self.data
        self.use(_small(data))
        for _ in range(2):
            self.step()
        self.use(data)

    def test_accuracy(self) -> float:
        return accuracy(self.predict(), self.data.y, self.data.test_mask)

    def test(self) -> dict[str, float]:
        return {"test accuracy": self.test_accuracy()}

    def predictions(self) -> Predictions:
        mask = self.data.test_mask
        return Predictions.of_classes(self.predict()[mask], self.data.y[mask], self.data.num_classes)

    def baseline(self) -> dict[str, float]:
        """That of the commonest class of the training nodes."""
        return commonest(self.data.y, self.data.train_mask, self.data.test_mask)


def _small(data: NodeData) -> NodeData:
    """A small graph with the numbers of features and classes of `data`, in which every node is in every split."""
    rows = torch.arange(_WARM_UP_NODES) % data.num_nodes
    every = torch.ones(_WARM_UP_NODES, dtype=torch.bool)
    y = torch.arange(_WARM_UP_NODES) % data.num_classes
    edges = rmat(_WARM_UP_NODES, _WARM_UP_EDGES)
    return NodeData(data.x[rows], edges, y, every, every, every, data.num_classes, data.name)
