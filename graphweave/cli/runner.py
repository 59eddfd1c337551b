"""Training one model one way, an epoch at a time, so that several ways can take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import graphweave
from graphweave.cli.models import build
from graphweave.data import NodeData

Wrap: TypeAlias = Callable[[nn.Module], nn.Module]

WAYS: dict[str, Wrap] = {
    "graphweave": lambda module: graphweave.compile(module),
    "eager": lambda module: module,
    "inductor": lambda module: cast(nn.Module, torch.compile(module)),
}
"""How a module is made to run; "inductor" is torch.compile with its default backend and default settings."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is trained, and how: everything that the ways have in common. `threads` None leaves torch's choice."""

    model: str
    hidden: int
    heads: int
    dropout: float
    lr: float
    weight_decay: float
    epochs: int
    seed: int
    threads: int | None

    def apply_threads(self) -> None:
        if self.threads is not None:
            torch.set_num_threads(self.threads)


@dataclass(slots=True)
class History:
    """One entry an epoch; `seconds` is the training step alone (forward, backward, optimiser), not the evaluation."""

    loss: list[float] = field(default_factory=list)
    train: list[float] = field(default_factory=list)
    val: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Median seconds of an epoch, the first (which compiles) left out where there are others."""
        return statistics.median(self.seconds[1:] or self.seconds)


class Runner:
    """One way of training `data`: same seed, so the same initial weights whichever way."""

    def __init__(self, way: str, job: Job, data: NodeData) -> None:
        self.way = way
        self.history = History()
        torch.manual_seed(job.seed)
        module = build(job.model, data.x.size(1), job.hidden, data.num_classes, job.heads, job.dropout)
        self.optimizer = torch.optim.Adam(module.parameters(), lr=job.lr, weight_decay=job.weight_decay)
        self.model = WAYS[way](module)
        self.use(data)

    def use(self, data: NodeData) -> None:
        """Trains on `data` from now on: the same features and classes, any number of nodes and edges."""
        self.data = data
        self.rows = data.train_mask.nonzero().flatten()
        self.target = data.y[self.rows]

    def step(self) -> float:
        """One training step over the whole graph; the loss."""
        self.model.train()
        self.optimizer.zero_grad()
        logits = self.model(self.data.x, self.data.edge_index)
        loss = F.cross_entropy(logits[self.rows], self.target)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def epoch(self) -> None:
        """A timed step, then accuracy on train and validation nodes."""
        start = time.perf_counter()
        loss = self.step()
        self.history.seconds.append(time.perf_counter() - start)
        self.history.loss.append(loss)
        predicted = self.predict()
        self.history.train.append(accuracy(predicted, self.data.y, self.data.train_mask))
        self.history.val.append(accuracy(predicted, self.data.y, self.data.val_mask))

    def predict(self) -> Tensor:
        """The likeliest class of each node [N]."""
        self.model.eval()
        with torch.no_grad():
            return self.model(self.data.x, self.data.edge_index).argmax(dim=1)

    def test_accuracy(self) -> float:
        return accuracy(self.predict(), self.data.y, self.data.test_mask)


def accuracy(predicted: Tensor, y: Tensor, mask: Tensor) -> float:
    """Share of `mask` that is right; NaN where the mask is empty."""
    return float((predicted == y)[mask].float().mean())
