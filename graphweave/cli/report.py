"""The output of `graphweave train`: progress while it runs, and a table at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from graphweave.cli.durations import duration
from graphweave.core.break_even import BreakEven, seconds_text
from graphweave.examples.measures import ACCURACY
from graphweave.examples.training import TrainingWay

_NUM_LINES = 10
"""About this many progress lines are printed for a run if the output is not a terminal."""


Tick: TypeAlias = Callable[[float], None]
"""Function to call with the share of the running epoch that is done."""


@contextmanager
def progress(console: Console, epochs: int, done: int = 0) -> Iterator[tuple[Tick, Callable[[TrainingWay], None]]]:
    """Yields two functions, to call within and after each of `epochs`, of which `done` are behind. They move a bar, or
    print lines if there is no terminal."""
    if not console.is_terminal:
        every = max(epochs // _NUM_LINES, 1)

        def line(training: TrainingWay) -> None:
            now = len(training.history.loss)
            if now == done + 1 or now % every == 0 or now == epochs:
                console.print(f"epoch {now}/{epochs}  {_state(training)}", highlight=False)

        yield lambda share: None, line
        return
    columns = (
        TextColumn("epoch"),
        MofNCompleteColumn(),
        BarColumn(bar_width=24),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=epochs, completed=done)
        finished = done

        def within(share: float) -> None:
            bar.update(task, completed=finished + share)

        def after(training: TrainingWay) -> None:
            nonlocal finished
            finished += 1
            bar.update(task, completed=finished, description=_state(training))

        yield within, after


def _state(training: TrainingWay) -> str:
    history, show = training.history, _shown(training)
    train = f"train {show(history.train[-1])}  " if training.measure == ACCURACY else ""
    name = "" if training.measure == ACCURACY else f"{training.measure} "
    return f"loss {history.loss[-1]:.4f}  {train}val {name}{show(history.last_val)}  {duration(history.seconds[-1])}"


def _shown(training: TrainingWay) -> Callable[[float], str]:
    return _percent if training.measure == ACCURACY else _fraction


def summary(measured: Measured) -> Table:
    """A table of what was measured."""
    table = Table()
    for i, name in enumerate(measured.header):
        table.add_column(name, justify="right" if i else "left")
    for row in measured.rows:
        table.add_row(*row)
    return table


@dataclass(frozen=True, slots=True)
class Measured:
    """A row for each measurement and a column for each way, with ratios to the first way, and one for the baseline's
    results. `peaks` has the bytes that the ways took, `peaks_mean` says of what."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    peaks: tuple[int | None, ...]
    peaks_mean: str


def measure(runners: Sequence[TrainingWay], peaks_mean: str, peaks: Sequence[int | None]) -> Measured:
    """Test the ways, and put what was measured together."""
    histories = [runner.history for runner in runners]
    found, show = [*(runner.test() for runner in runners), runners[0].baseline()], _shown(runners[0])
    rows = (
        *((name, *(show(one.get(name, math.nan)) for one in found)) for name in found[0]),
        ("median epoch", *ratios([history.median for history in histories], duration), ""),
        ("first epoch, with compilation", *ratios([history.seconds[0] for history in histories], duration), ""),
        (peaks_mean, *ratios(peaks, mebibytes), ""),
    )
    header = ("", *(runner.way for runner in runners), "baseline")
    return Measured(header, rows, tuple(peaks), peaks_mean)


def pays(runners: Sequence[TrainingWay]) -> Iterator[str]:
    """A line that says after how many epochs compiling has paid, where eager epochs were timed, too. Of a single
    compiled way, the line says what is known. There is no line after one epoch, which tells nothing of later ones."""
    histories = {runner.way: runner.history for runner in runners}
    compiled, eager = histories.get("graphweave"), histories.get("eager")
    if compiled is None or len(compiled.seconds) < 2:
        return
    first, later = compiled.seconds[0], compiled.median
    if eager is not None:
        yield f"break-even: {BreakEven(first, eager.median, later).text('epoch')}"
    else:
        spent = seconds_text(max(first - later, 0.0))
        yield f"break-even: compiling took {spent} of the first epoch; --compare says after how many it has paid"


def ratios(values: Sequence[float | None], show: Callable[[float], str]) -> list[str]:
    first = values[0]
    cells = ["not measured" if value is None else show(value) for value in values]
    for i, value in enumerate(values):
        if i > 0 and value is not None and first:
            cells[i] += f" ({value / first:.2f}x)"
    return cells


def _percent(share: float) -> str:
    return "none" if math.isnan(share) else f"{100 * share:.1f}%"


def _fraction(value: float) -> str:
    return "none" if math.isnan(value) else f"{value:.4f}"


def mebibytes(count: float) -> str:
    return f"{count / 2**20:.1f} MiB"
