"""Parts that trainings by batches share: epochs of timed steps on any number of ranks, validation, and checkpoints."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from graphweave.core.errors import DataError
from graphweave.core.json_values import JsonObject
from graphweave.distributed.batch_norm import over_ranks, take_part
from graphweave.distributed.ranks import ALONE, Ranks
from graphweave.examples.training import History, Predictions, TrainingJob, TrainingWay

Batch = TypeVar("Batch")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class RankStep(Generic[Batch]):
    """The work of one rank in a step: a batch, and the number of terms of the loss in the batches of all ranks.

    `counts` is false where a batch has fewer rows than there are ranks, and this rank has none: it then computes on
    rows of another, so that every rank takes part in the same exchanges, and its loss counts nothing.
    """

    batch: Batch
    terms: int
    counts: bool


class _Loss(nn.Module):
    """The function `loss` as a module that holds the parameters it uses, for `DistributedDataParallel`."""

    def __init__(self, modules: Sequence[nn.Module], loss: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.parts, self.loss = nn.ModuleList(modules), loss

    def forward(self, batch: Any) -> Tensor:
        return self.loss(batch)


class BatchTraining(TrainingWay, Generic[Batch]):
    """One way of training by batches. All ways have the same seed, and so the same weights, batches and draws.

    Every rank draws the same batches and computes the loss of its share of each. Gradients are those of the mean over
    the whole batch, so a training is the same on any number of ranks, up to the order of sums and to dropout.

    A subclass makes its modules between `torch.manual_seed(job.seed)` and `optimise`, and says what a batch is, its
    loss, and how results are measured.
    """

    size: int
    """Rows of a batch on all ranks together."""
    decay = 1.0
    """The learning rate is multiplied by this after each epoch."""
    _warm_up_count = 2

    def __init__(self, way: str, job: TrainingJob, ranks: Ranks = ALONE) -> None:
        self.way, self.job, self.ranks, self.history = way, job, ranks, History()
        self.generator: torch.Generator = torch.Generator().manual_seed(job.seed)
        self._ahead: Iterator[RankStep[Batch]] = iter(())
        self._begun: Tensor | None = None
        self._done, self._loss_so_far = 0, 0.0
        torch.manual_seed(job.seed)

    def optimise(self, *modules: nn.Module) -> None:
        """Train the parameters of `modules`. DataError for batches of fewer rows than there are ranks."""
        if self.size < self.ranks.size:
            raise DataError(
                f"batch must be {self.ranks.size} at least, so that each of {self.ranks.size} ranks has a row of it"
                f" (got {self.size}). Give a larger batch, or start fewer ranks."
            )
        self.modules = modules
        parameters = [p for module in modules for p in module.parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=self.job.lr, weight_decay=self.job.weight_decay)
        if self.ranks.size > 1:
            torch.manual_seed(self.job.seed + self.ranks.rank)  # each rank drops other rows

    @cached_property
    def _reduced_loss(self) -> Callable[[Batch], Tensor]:
        """`loss`, with gradients that are means over ranks. Collective when it is first asked for."""
        if self.ranks.size == 1:
            return self.loss
        # PyTorch would cut a compiled model at the ends of buckets of gradients, to exchange one while it computes the
        # next. A compiled backward computes all gradients together, and kernels end at a cut.
        torch._dynamo.config.optimize_ddp = False
        return DistributedDataParallel(_Loss(self.modules, self.loss), gradient_as_bucket_view=True)

    def normalised(self, model: nn.Module) -> nn.Module:
        """`model`, whose batch normalisations are by the rows of all ranks."""
        return model if self.ranks.size == 1 else over_ranks(model)

    @property
    @abstractmethod
    def steps(self) -> int:
        """Number of steps of an epoch."""

    @abstractmethod
    def drawn(self) -> Iterator[Any]:
        """The random numbers that `self.generator` draws for each batch of one epoch: the same on all ranks."""

    @abstractmethod
    def make_batch(self, drawn: Any, own: slice, number: int) -> Batch:
        """The rows `own` of the batch that was drawn as number `number` of the epoch."""

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor:
        """The sum of the terms of the loss over a batch, a number with a gradient."""

    @abstractmethod
    def scores(self, part: str) -> dict[str, float]:
        """Measures on a split, "val" or "test", by name; the first is that of `measure`. The same on all ranks."""

    def _test_predictions(self) -> Predictions | None:
        """Predictions of the test data, the same on all ranks; None for a training that ranks or scores pairs."""
        return None

    def count(self, drawn: Any) -> int:
        """The number of rows of a batch."""
        return drawn.size(-1)

    def terms(self, drawn: Any) -> int:
        """The number of terms of its loss, of which the mean is taken."""
        return self.count(drawn)

    def batches(self, skip: int = 0) -> Iterator[RankStep[Batch]]:
        """This rank's steps of one epoch, without the first `skip`."""
        for number, drawn in enumerate(self.drawn()):
            if number >= skip:
                own = self.ranks.share(self.count(drawn))
                counts = own.start < own.stop
                batch = self.make_batch(drawn, own if counts else slice(0, 1), number)
                yield RankStep(batch, max(self.terms(drawn), 1), counts)

    def step(self) -> float:
        """Run one training step on the next batch. Returns this rank's part of the loss."""
        batch = next(self._ahead, None)
        if batch is None:
            self._ahead = self.batches()
            batch = next(self._ahead)
        return self._step(batch)

    def epoch(self, tick: Callable[[float], None] = lambda share: None) -> None:
        """Train on each batch once, or on those that a resumed training has left, then validate. Time counts what
        makes batches."""
        start, outside = time.perf_counter(), 0.0
        for group in self.optimizer.param_groups:
            group["lr"] = self.job.lr * self.decay ** len(self.history.loss)
        self._begun = self.generator.get_state()
        for batch in self.batches(self._done):
            self._loss_so_far += self._step(batch)
            self._done += 1
            shown = time.perf_counter()
            tick(self._done / self.steps)
            outside += time.perf_counter() - shown
        self.history.seconds.append(time.perf_counter() - start - outside)
        (loss,) = self.ranks.sum(self._loss_so_far)
        self._begun, self._done, self._loss_so_far = None, 0, 0.0
        self.history.loss.append(loss / self.steps)
        self.history.train.append(math.nan)
        self.history.val.append(next(iter(self._measured("val").values())) if self.validates() else math.nan)

    def validates(self) -> bool:
        """Whether the epoch that was just done ends in a validation."""
        return True

    def warm_up(self) -> None:
        """Run two steps of different sizes on little data."""
        batches = self.batches()
        for _ in range(self._warm_up_count):
            if (batch := next(batches, None)) is not None:
                self._step(batch)

    def test(self) -> dict[str, float]:
        return {f"test {name}": value for name, value in self._measured("test").items()}

    def state(self) -> JsonObject:
        """The state that every training keeps. Within an epoch, the generator's state is that at its beginning, and the
        steps since then are counted."""
        state = super().state()
        if self._begun is not None:
            state["generator"] = self._begun
        (loss,) = self.ranks.sum(self._loss_so_far)
        return state | {"steps": self._done, "loss": loss}

    def restore(self, state: JsonObject) -> None:
        super().restore(state)
        self._done, self._loss_so_far = state["steps"], state["loss"] if self.ranks.first else 0.0

    def predictions(self) -> Predictions | None:
        return self._evaluated(self._test_predictions)

    def _measured(self, part: str) -> dict[str, float]:
        return self._evaluated(lambda: self.scores(part))

    def _evaluated(self, compute: Callable[[], Result]) -> Result:
        for module in self.modules:
            module.eval()
        with torch.no_grad():
            return compute()

    def _step(self, step: RankStep[Batch]) -> float:
        for module in self.modules:
            module.train()
            take_part(module, step.counts)
        self.optimizer.zero_grad()
        loss = self._reduced_loss(step.batch) * ((1 if step.counts else 0) / step.terms)
        (loss * self.ranks.size).backward()  # ranks take the mean of their gradients, and need the sum
        self.before_update()
        self.optimizer.step()
        return loss.item()

    def before_update(self) -> None:
        """Called with the gradients of a step, which are the same on all ranks."""

    def _shuffled(self, rows: Tensor, size: int) -> Sequence[Tensor]:
        """`rows` in random order, in pieces of `size`."""
        return rows[torch.randperm(rows.numel(), generator=self.generator)].split(size)

    def _over_rows(self, rows: Tensor, size: int, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """`compute` of all rows, joined: each rank computes its share, `size` rows at a time."""
        own = rows[self.ranks.share(rows.numel())]
        if self.ranks.size > 1 and not own.numel():
            return self.ranks.gathered(compute(rows[:1])[:0])
        return self.ranks.gathered(torch.cat([compute(some) for some in own.split(size)]))


class SplitRows(Protocol):
    """Data of which each row is in one split, or in none."""

    @property
    def train_mask(self) -> Tensor: ...

    @property
    def val_mask(self) -> Tensor: ...

    @property
    def test_mask(self) -> Tensor: ...


class RowTraining(BatchTraining[Batch]):
    """Training by batches of `size` rows of the training split, each of which is one term of the loss."""

    def __init__(self, way: str, job: TrainingJob, split: SplitRows, size: int, ranks: Ranks = ALONE) -> None:
        super().__init__(way, job, ranks)
        self.size = size
        masks = {"train": split.train_mask, "val": split.val_mask, "test": split.test_mask}
        self.rows = {part: mask.nonzero().flatten() for part, mask in masks.items()}

    @property
    def steps(self) -> int:
        return -(-self.rows["train"].numel() // self.size)

    def drawn(self) -> Iterator[Tensor]:
        return iter(self._shuffled(self.rows["train"], self.size))


class TargetTraining(RowTraining[Batch]):
    """Training by rows, each of which has one row of `y`, the targets of all rows."""

    y: Tensor

    @abstractmethod
    def answers(self, rows: Tensor) -> Tensor:
        """The model's results [n, targets] for some rows, in the units of `y`."""

    @abstractmethod
    def guess(self) -> Tensor:
        """One result [targets] for every row, which needs no training."""

    @abstractmethod
    def measured(self, out: Tensor, y: Tensor) -> dict[str, float]:
        """Measures of answers, by name, the first by that of `measure`; NaN where there are no rows."""

    @abstractmethod
    def predicted(self, out: Tensor, y: Tensor) -> Predictions | None:
        """Answers as predictions; None if they are only scores."""

    def scores(self, part: str) -> dict[str, float]:
        rows = self.rows[part]
        out = self._over_rows(rows, self.size, self.answers) if rows.numel() else self.guess().expand(0, -1)
        return self.measured(out, self.y[rows])

    def baseline(self) -> dict[str, float]:
        y = self.y[self.rows["test"]]
        found = self.measured(self.guess().expand(y.size(0), -1), y)
        return {f"test {name}": value for name, value in found.items()}

    def _test_predictions(self) -> Predictions | None:
        rows = self.rows["test"]
        return self.predicted(self._over_rows(rows, self.size, self.answers), self.y[rows]) if rows.numel() else None
