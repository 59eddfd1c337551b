"""What trainings by batches share: epochs of timed steps, validation, and what a checkpoint keeps."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from graphweave.cli.training import History, Resumable, TrainingJob

Batch = TypeVar("Batch")


class BatchTraining(Resumable, ABC, Generic[Batch]):
    """One way of training by batches. All ways have the same seed, and so the same weights, batches and draws.

    A subclass makes its modules between `torch.manual_seed(job.seed)` and `optimise`, and says what a batch is, its
    loss, and how results are measured.
    """

    measure: str
    _warm_up_count = 2

    def __init__(self, way: str, job: TrainingJob) -> None:
        self.way, self.job, self.history = way, job, History()
        self.generator: torch.Generator = torch.Generator().manual_seed(job.seed)
        self._ahead: Iterator[Batch] = iter(())
        torch.manual_seed(job.seed)

    def optimise(self, *modules: nn.Module) -> None:
        self.modules = modules
        parameters = [p for module in modules for p in module.parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=self.job.lr, weight_decay=self.job.weight_decay)

    @property
    @abstractmethod
    def steps(self) -> int:
        """Number of steps of an epoch."""

    @abstractmethod
    def batches(self) -> Iterator[Batch]:
        """The batches of one epoch, drawn by `self.generator`."""

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor:
        """The loss of a batch, a number with a gradient."""

    @abstractmethod
    def scores(self, part: str) -> dict[str, float]:
        """Measures on a split, "val" or "test", by name; the first is that of `measure`."""

    @abstractmethod
    def baseline(self) -> dict[str, float]:
        """The same measures of what needs no training, on the test split."""

    def step(self) -> float:
        """Run one training step on the next batch. Returns the loss."""
        batch = next(self._ahead, None)
        if batch is None:
            self._ahead = self.batches()
            batch = next(self._ahead)
        return self._step(batch)

    def epoch(self, tick: Callable[[float], None] = lambda share: None) -> None:
        """Train on each batch once, then validate. Time counts what makes batches."""
        loss, start, outside = 0.0, time.perf_counter(), 0.0
        for number, batch in enumerate(self.batches()):
            loss += self._step(batch)
            shown = time.perf_counter()
            tick((number + 1) / self.steps)
            outside += time.perf_counter() - shown
        self.history.seconds.append(time.perf_counter() - start - outside)
        self.history.loss.append(loss / self.steps)
        self.history.train.append(math.nan)
        self.history.val.append(next(iter(self._measured("val").values())))

    def warm_up(self) -> None:
        """Run two steps of different sizes on little data."""
        batches = self.batches()
        for _ in range(self._warm_up_count):
            if (batch := next(batches, None)) is not None:
                self._step(batch)

    def test(self) -> dict[str, float]:
        return {f"test {name}": value for name, value in self._measured("test").items()}

    def _measured(self, part: str) -> dict[str, float]:
        for module in self.modules:
            module.eval()
        with torch.no_grad():
            return self.scores(part)

    def _step(self, batch: Batch) -> float:
        for module in self.modules:
            module.train()
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def _shuffled(self, rows: Tensor, size: int) -> Sequence[Tensor]:
        """`rows` in random order, in pieces of `size`."""
        return rows[torch.randperm(rows.numel(), generator=self.generator)].split(size)
