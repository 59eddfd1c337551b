"""`graphweave bench`: the time of a training step, compiled, tuned, and by eager PyTorch, in turns."""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from graphweave.cli.arguments import positive, positive_int
from graphweave.cli.durations import duration
from graphweave.cli.notes import told_after
from graphweave.cli.report import ratios
from graphweave.cli.tasks import described, start
from graphweave.cli.train import add_training, asked

_BUDGET = 60.0
"""Seconds that `--tune` may measure for each captured graph if it names no number."""


def add_arguments(sub: argparse.ArgumentParser) -> None:
    sub.set_defaults(run=run, epochs=1)
    add_training(sub)
    add = sub.add_argument
    add("--steps", type=positive_int, default=10, help="timed steps of each way (default: %(default)s)")
    add("--tune", type=positive, nargs="?", const=_BUDGET, metavar="SECONDS", help="also the fastest choices that "
        f"measuring finds in so many seconds a graph ({_BUDGET:.0f} if left out), kept for similar graphs")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Prints a table of the first step, which compiles and tunes, and of the median of the steps after it."""
    with told_after("bench"):
        model, job, data = asked(args)
    ways = ["graphweave", "eager"]
    if args.tune is not None:
        job = dataclasses.replace(job, budget=args.tune)
        ways.insert(1, "tuned")
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(described(model, data), highlight=False)
    trainings = [start(way, job, data) for way in ways]
    first: list[float] = []
    rest: list[list[float]] = [[] for _ in ways]
    with console.status("compiling" if args.tune is None else "compiling and tuning"):
        for training in trainings:
            first.append(_seconds(training.step))
    for turn in range(args.steps):
        for i in range(len(ways)):
            at = (turn + i) % len(ways)  # another way begins each turn
            rest[at].append(_seconds(trainings[at].step))
    table = Table("", *ways)
    table.add_row("median step", *ratios([statistics.median(times) for times in rest], duration))
    table.add_row("first step", *ratios(first, duration))
    console.print(table)
    return 0


def _seconds(step: Callable[[], float]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin
