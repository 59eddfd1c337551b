"""A plot of a training run: loss and validation by epoch, and epoch times as bars."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphweave.cli.training import TrainingWay
from graphweave.core.errors import DataError, GraphweaveError

_FORMATS = (".png", ".pdf", ".svg")


def check_plot(path: Path) -> None:
    """Raise if no picture can be written to `path`, so that this shows before the training and not after it."""
    _matplotlib()
    if path.suffix.lower() not in _FORMATS:
        raise DataError(f"--plot must end in {', '.join(_FORMATS)} (got {str(path)!r}). Name such a file.")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise DataError(f"--plot cannot be written: {path}. Name another file.")


def _matplotlib() -> Any:
    try:
        # Imported here, since it is an optional dependency that takes a second to load.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise GraphweaveError("matplotlib is missing. Run: pip install 'graphweave[plot]'") from error
    return Figure


def draw(path: Path, runners: Sequence[TrainingWay]) -> None:
    """Draw the loss and validation of each way by epoch, and its median epoch time."""
    figure = _matplotlib()(figsize=(12, 3.6), layout="constrained")
    loss, quality, bars = figure.subplots(1, 3)
    for runner in runners:
        loss.plot(*_measured(runner.history.loss), label=runner.way)
        quality.plot(*_measured(runner.history.val), ".-", markersize=3, label=f"{runner.way}, validation")
    epochs, train = _measured(runners[0].history.train)
    if train:
        quality.plot(epochs, train, "--", label=f"{runners[0].way}, train")
    loss.set(xlabel="epoch", title="loss")
    quality.set(xlabel="epoch", title=runners[0].measure)
    bars.bar([runner.way for runner in runners], [1e3 * runner.history.median for runner in runners])
    bars.set(ylabel="ms", title="median epoch")
    loss.legend()
    quality.legend()
    figure.savefig(path)


def _measured(values: Sequence[float]) -> tuple[list[int], list[float]]:
    """The epochs that have a value, counted from 1, and their values."""
    pairs = [(epoch, value) for epoch, value in enumerate(values, 1) if not math.isnan(value)]
    return [epoch for epoch, _ in pairs], [value for _, value in pairs]
