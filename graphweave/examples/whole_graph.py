"""Parts that trainings share which classify nodes and take the whole graph in each step."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphweave.data import NodeData, TypedNodeData
from graphweave.examples.measures import ACCURACY, accuracy, commonest
from graphweave.examples.training import History, Predictions, TrainingJob, TrainingWay, wrap

Nodes = TypeVar("Nodes", NodeData, TypedNodeData)


class WholeGraphTraining(TrainingWay, Generic[Nodes]):
    """One way of training `model` on `data`: an epoch is one step, by the cross-entropy of the training nodes. The
    baseline is the commonest class of these.

    A subclass seeds torch before it makes the model, so that all ways have the same initial weights.
    """

    measure = ACCURACY

    def __init__(self, way: str, job: TrainingJob, data: Nodes, model: nn.Module) -> None:
        self.way, self.history = way, History()
        self.optimizer = torch.optim.Adam(model.parameters(), lr=job.lr, weight_decay=job.weight_decay)
        self.modules = (model,)
        self.model = wrap(way, job)(model)
        self.data: Nodes
        self.use(data)

    def use(self, data: Nodes) -> None:
        """Let the next steps train on `data`, which has the same features and classes as the data before."""
        self.data = data
        self.rows = data.train_mask.nonzero().flatten()
        self.target = data.y[self.rows]

    @abstractmethod
    def logits(self) -> Tensor:
        """The model's results [N, classes] for all nodes."""

    def step(self) -> float:
        """Run one training step over the whole graph. Returns the loss."""
        self.model.train()
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.logits()[self.rows], self.target)
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
            return self.logits().argmax(dim=1)

    def test(self) -> dict[str, float]:
        """The accuracy on the test nodes."""
        return {f"test {ACCURACY}": accuracy(self.predict(), self.data.y, self.data.test_mask)}

    def predictions(self) -> Predictions:
        """The predicted and the true classes of the test nodes."""
        mask = self.data.test_mask
        return Predictions.of_classes(self.predict()[mask], self.data.y[mask], self.data.num_classes)

    def baseline(self) -> dict[str, float]:
        """The accuracy of the commonest class of the training nodes."""
        return commonest(self.data.y, self.data.train_mask, self.data.test_mask)
