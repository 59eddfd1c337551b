"""Curves and bars of a training run as one picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphweave.cli.runner import Runner
from graphweave.core.errors import DataError, GraphweaveError

_FORMATS = (".png", ".pdf", ".svg")


def check_plot(path: Path) -> None:
    """Raises before the training rather than after it if `path` cannot be drawn."""
    _matplotlib()
    if path.suffix.lower() not in _FORMATS:
        raise DataError(f"--plot must end in {', '.join(_FORMATS)} (got {str(path)!r}).")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise DataError(f"--plot cannot be written: {path}.")


def _matplotlib() -> Any:
    try:
        # Imported here: an optional dependency that takes a second to load.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise GraphweaveError("matplotlib is missing. Run: pip install 'graphweave[plot]'") from error
    return Figure


def draw(path: Path, runners: Sequence[Runner]) -> None:
    """Loss and validation accuracy of each way by epoch, and its median epoch time."""
    figure = _matplotlib()(figsize=(12, 3.6), layout="constrained")
    loss, share, bars = figure.subplots(1, 3)
    for runner in runners:
        epochs = range(1, len(runner.history.loss) + 1)
        loss.plot(epochs, runner.history.loss, label=runner.way)
        share.plot(epochs, runner.history.val, label=f"{runner.way}, validation")
    share.plot(epochs, runners[0].history.train, "--", label=f"{runners[0].way}, train")
    loss.set(xlabel="epoch", title="loss")
    share.set(xlabel="epoch", title="accuracy")
    bars.bar([runner.way for runner in runners], [1e3 * runner.history.median for runner in runners])
    bars.set(ylabel="ms", title="median epoch")
    loss.legend()
    share.legend()
    figure.savefig(path)
