"""What `graphweave train` shows: progress while it runs, a table at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from graphweave.cli.runner import History, Runner

_LINES = 10
"""Progress lines over a whole run where the output is not a terminal."""


@contextmanager
def progress(console: Console, epochs: int) -> Iterator[Callable[[History], None]]:
    """Gives a function to call after each epoch: it moves a bar, or where there is no terminal prints some lines."""
    if not console.is_terminal:
        every = max(epochs // _LINES, 1)

        def line(history: History) -> None:
            done = len(history.loss)
            if done == 1 or done % every == 0 or done == epochs:
                console.print(f"epoch {done}/{epochs}  {_state(history)}", highlight=False)

        yield line
        return
    columns = (
        TextColumn("epoch"),
        MofNCompleteColumn(),
        BarColumn(bar_width=24),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=epochs)
        yield lambda history: bar.update(task, advance=1, description=_state(history))


def _state(history: History) -> str:
    return (
        f"loss {history.loss[-1]:.4f}  train {_percent(history.train[-1])}  val {_percent(history.val[-1])}  "
        f"{_duration(history.seconds[-1])}"
    )


def summary(runners: Sequence[Runner], memory_heading: str, peaks: Sequence[int | None]) -> Table:
    """Rows are measurements, columns the ways; with several ways, each measurement beside its ratio to the first."""
    table = Table()
    table.add_column("")
    for runner in runners:
        table.add_column(runner.way, justify="right")
    histories = [runner.history for runner in runners]
    table.add_row("test accuracy", *(_percent(runner.test_accuracy()) for runner in runners))
    table.add_row("median epoch", *_ratios([history.median for history in histories], _duration))
    table.add_row("first epoch, with compilation", *_ratios([history.seconds[0] for history in histories], _duration))
    table.add_row(memory_heading, *_ratios(peaks, _bytes))
    return table


def _ratios(values: Sequence[float | None], show: Callable[[float], str]) -> list[str]:
    first = values[0]
    cells = ["not measured" if value is None else show(value) for value in values]
    for i, value in enumerate(values):
        if i > 0 and value is not None and first:
            cells[i] += f" ({value / first:.2f}x)"
    return cells


def _percent(share: float) -> str:
    return "none" if math.isnan(share) else f"{100 * share:.1f}%"


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.2f} ms"


def _bytes(count: float) -> str:
    return f"{count / 2**20:.1f} MiB"
