"""Parts that all trainings share: ways to run a module, options, a history, and methods."""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

import graphweave
from graphweave.core.errors import DataError
from graphweave.core.json_values import JsonObject
from graphweave.core.settings import override

Wrap: TypeAlias = Callable[[nn.Module], nn.Module]


class Plain(nn.Module):
    """Runs `inner` by PyTorch's own calls, without the kernels that graphs use outside of compiled models."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any) -> Any:
        with override(eager_kernels=False):
            return self.inner(*args)


WAYS = ("graphweave", "tuned", "eager", "inductor")
"""Names of the ways to run a module. "inductor" is torch.compile with its default backend and settings."""


def wrap(way: str, job: TrainingJob) -> Wrap:
    """The function that prepares a module to run in one of `WAYS`."""
    match way:
        case "graphweave":
            return lambda module: graphweave.compile(module)
        case "tuned":
            return lambda module: graphweave.compile(module, options={"schedule": "tune", "budget": job.budget})
        case "eager":
            return lambda module: Plain(module)
        case _:
            return lambda module: cast(nn.Module, torch.compile(module))


@dataclass(frozen=True, slots=True)
class Links:
    """Options for learning and predicting links (`examples/triples.py`, `examples/pairs.py`).

    `batch`: triples of a step. `negatives`: entities that each step draws as wrong tails; 0 stands for all.
    `edge_dropout`: rate at which the batch's own edges are left out of the graph. `eval_every`: epochs between
    validations.
    """

    decoder: str = "distmult"
    batch: int = 1024
    negatives: int = 0
    edge_dropout: float = 0.5
    eval_every: int = 5


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """The options of a training that all ways have in common. If `threads` is None, torch chooses.

    `task` is one of `TASKS` (`examples/tasks.py`); None stands for what the data say. `batch`: how much a step takes,
    None for the task's default. `fanout`: neighbours that each hop draws for batches of nodes, () for the default.
    `budget`: seconds that the way "tuned" may measure for each captured graph. `hidden` is the width of all heads
    together.
    """

    model: str
    hidden: int = 64
    heads: int = 4
    dropout: float = 0.5
    lr: float = 0.01
    weight_decay: float = 0.0
    epochs: int = 100
    seed: int = 0
    threads: int | None = None
    links: Links = Links()
    task: str | None = None
    batch: int | None = None
    fanout: tuple[int, ...] = ()
    budget: float = 60.0

    def check_heads(self) -> None:
        """DataError unless all heads together can have the width `hidden`."""
        if self.hidden % self.heads:
            raise DataError(
                f"hidden must be a multiple of heads for {self.model} (got {self.hidden} and {self.heads}). Choose"
                " another width."
            )

    def fanout_of(self, default: tuple[int, ...]) -> tuple[int, ...]:
        """`fanout`, or the default. DataError unless there is a number for each layer, as in the default."""
        found = self.fanout or default
        if len(found) != len(default):
            raise DataError(
                f"fanout must have one number for each of {len(default)} layers (got {','.join(map(str, found))})."
                f" Write it as {','.join(map(str, default))}."
            )
        return found

    def apply_threads(self) -> None:
        if self.threads is not None:
            torch.set_num_threads(self.threads)


@dataclass(slots=True)
class History:
    """One entry for each epoch. `seconds` count only the training steps (forward, backward, optimiser).

    `train` and `val` are NaN for an epoch without a measurement.
    """

    loss: list[float] = field(default_factory=list)
    train: list[float] = field(default_factory=list)
    val: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Median seconds of an epoch, without the first one (which compiles) if there are others."""
        return statistics.median(self.seconds[1:] or self.seconds)

    @property
    def last_val(self) -> float:
        """The last validation that was measured; NaN if none was."""
        return next((value for value in reversed(self.val) if not math.isnan(value)), math.nan)


@dataclass(frozen=True, slots=True)
class Predictions:
    """A model's predictions for the test data, and the truth: numbers of `classes`, which are named, or, if `classes`
    is (), numbers to predict. `predicted` and `true` [n]."""

    predicted: Tensor
    true: Tensor
    classes: tuple[str, ...] = ()

    @classmethod
    def of_classes(cls, predicted: Tensor, true: Tensor, classes: int | Sequence[str]) -> Predictions:
        """Predicted and true classes, without the rows whose class is not known. Unnamed classes have numbers."""
        names = tuple(map(str, range(classes))) if isinstance(classes, int) else tuple(classes)
        return cls(predicted[true >= 0], true[true >= 0], names)

    @classmethod
    def of_numbers(cls, predicted: Tensor, true: Tensor) -> Predictions:
        """Predicted and true numbers, without those that are not known (NaN)."""
        known = ~true.isnan()
        return cls(predicted[known], true[known])


class TrainingWay(ABC):
    """One way of training modules on data, an epoch at a time, so that several ways can take turns."""

    way: str
    measure: str
    history: History
    modules: tuple[nn.Module, ...]
    optimizer: torch.optim.Optimizer
    generator: torch.Generator | None = None

    @abstractmethod
    def step(self) -> float:
        """Run one training step. Returns the loss."""

    @abstractmethod
    def epoch(self, tick: Callable[[float], None] = lambda share: None) -> None:
        """Run an epoch of timed steps, then validation. Calls `tick` with the share of the steps that are done."""

    @abstractmethod
    def warm_up(self) -> None:
        """Run two steps on a small graph, so that everything is compiled with little memory."""

    @abstractmethod
    def test(self) -> dict[str, float]:
        """The measures on the test split, by name."""

    @abstractmethod
    def predictions(self) -> Predictions | None:
        """Predictions of the test data; None for trainings that rank or score pairs. Collective."""

    @abstractmethod
    def baseline(self) -> dict[str, float]:
        """Some of the same measures of what needs no training."""

    def state(self) -> JsonObject:
        """The state from which the training continues between two epochs, apart from torch's own generator."""
        return {
            "modules": [module.state_dict() for module in self.modules],
            "optimizer": self.optimizer.state_dict(),
            "generator": None if self.generator is None else self.generator.get_state(),
        }

    def restore(self, state: JsonObject) -> None:
        """Go on from `state`, of a training of the same job on the same data."""
        for module, values in zip(self.modules, state["modules"], strict=True):
            module.load_state_dict(values)
        self.optimizer.load_state_dict(state["optimizer"])
        if self.generator is not None:
            self.generator.set_state(state["generator"])
