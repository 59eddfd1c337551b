"""What every training of the command line has: ways to run a module, a history, and the verbs that are asked of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, cast

import torch
from torch import Tensor, nn

import graphweave
from graphweave.core.settings import override

Wrap: TypeAlias = Callable[[nn.Module], nn.Module]


class Plain(nn.Module):
    """`inner` by PyTorch's own calls, without the kernels that a graph's verbs have outside compiled models too."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any) -> Any:
        with override(eager_kernels=False):
            return self.inner(*args)


WAYS: dict[str, Wrap] = {
    "graphweave": lambda module: graphweave.compile(module),
    "eager": lambda module: Plain(module),
    "inductor": lambda module: cast(nn.Module, torch.compile(module)),
}
"""How a module is made to run; "inductor" is torch.compile with its default backend and default settings."""

ACCURACY, MRR = "accuracy", "MRR"
"""What validation measures."""


@dataclass(frozen=True, slots=True)
class Links:
    """How links are learnt and predicted (`cli/links.py`).

    `batch`: triples of a step. `negatives`: entities drawn for a step against which tails are told apart; 0 for all.
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
    links: Links = Links()

    def apply_threads(self) -> None:
        if self.threads is not None:
            torch.set_num_threads(self.threads)


@dataclass(slots=True)
class History:
    """One entry an epoch; `seconds` are those of training steps alone (forward, backward, optimiser), not evaluation.

    `train` and `val` are NaN where nothing was measured in that epoch.
    """

    loss: list[float] = field(default_factory=list)
    train: list[float] = field(default_factory=list)
    val: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Median seconds of an epoch, the first (which compiles) left out where there are others."""
        return statistics.median(self.seconds[1:] or self.seconds)

    @property
    def last_val(self) -> float:
        """The newest that was measured, NaN if nothing was."""
        return next((value for value in reversed(self.val) if not math.isnan(value)), math.nan)


class TrainingWay(Protocol):
    """One way of training a model on data, an epoch at a time, so that several ways can take turns."""

    way: str
    measure: str
    history: History

    def step(self) -> float:
        """One training step; its loss."""

    def epoch(self, tick: Callable[[float], None] = ...) -> None:
        """An epoch of timed steps, then validation. `tick` is told the share that is done of one with many steps."""

    def warm_up(self) -> None:
        """Two steps on a small graph: all of compilation, little of memory."""

    def test(self) -> dict[str, float]:
        """What is measured on the test split, by name."""


def accuracy(predicted: Tensor, y: Tensor, mask: Tensor) -> float:
    """Share of `mask` that is right; NaN where the mask is empty."""
    return float((predicted == y)[mask].float().mean())
