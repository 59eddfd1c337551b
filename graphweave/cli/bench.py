"""`graphweave bench`: the time of a training step, compiled, tuned, and by eager PyTorch, in turns."""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from rich.console import Console
from rich.table import Table

from graphweave.cli.arguments import positive, positive_int
from graphweave.cli.bench_page import BenchRun, bench_charts, bench_page
from graphweave.cli.charts import ScaledTimes
from graphweave.cli.durations import duration
from graphweave.cli.named_data import described
from graphweave.cli.notes import told_after
from graphweave.cli.plot import save_picture
from graphweave.cli.report import ratios
from graphweave.cli.train import add_outputs, add_training, asked, check_outputs
from graphweave.compiler.report import collect
from graphweave.core.errors import DataError
from graphweave.data import NodeData
from graphweave.examples.nodes import NodeTraining
from graphweave.examples.tasks import start
from graphweave.examples.training import TrainingJob, TrainingWay

_BUDGET = 60.0
"""Seconds that `--tune` may measure for each captured graph if it names no number."""
_SHARES = (0.125, 0.25, 0.5, 1.0)
"""`--scaling` times the graph with these shares of its edges, drawn at random."""
_COPIES = (1, 2, 4)
"""`--scaling` times so many copies of the graph side by side."""


def add_arguments(sub: argparse.ArgumentParser) -> None:
    sub.set_defaults(run=run, epochs=1)
    add_training(sub)
    add = sub.add_argument
    add("--steps", type=positive_int, default=10, help="timed steps of each way (default: %(default)s)")
    add("--tune", type=positive, nargs="?", const=_BUDGET, metavar="SECONDS", help="also the fastest choices that "
        f"measuring finds in so many seconds a graph ({_BUDGET:.0f} if left out), kept for similar graphs")  # fmt: skip
    add("--scaling", action="store_true", help="also time the graph with fewer edges, and copies of it side by side")
    add_outputs(sub)


def run(args: argparse.Namespace) -> int:
    """Prints a table of the first step, which compiles and tunes, and of the median of the steps after it."""
    check_outputs(args)
    with told_after("bench"):
        model, job, data = asked(args)
    ways = ["graphweave", "eager"]
    if args.tune is not None:
        job = dataclasses.replace(job, budget=args.tune)
        ways.insert(1, "tuned")
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(described(model, data), highlight=False)
    trainings = [start(way, job, data) for way in ways]
    if args.scaling and not isinstance(trainings[0], NodeTraining):
        raise DataError(
            f"--scaling is for one graph whose nodes are classified all at once (got {data.name}). Leave it out."
        )
    with console.status("compiling" if args.tune is None else "compiling and tuning"), collect() as report:
        first = {training.way: _seconds(training.step) for training in trainings}
    rest = _in_turns(trainings, args.steps)
    table = Table("", *ways)
    table.add_row("median step", *ratios([statistics.median(times) for times in rest.values()], duration))
    table.add_row("first step", *ratios(list(first.values()), duration))
    console.print(table)
    scaled = list(_scaled(console, job, data, args.steps)) if args.scaling and isinstance(data, NodeData) else []
    done = BenchRun(model, data, first, rest, scaled, report.tunings)
    if args.plot is not None:
        save_picture(args.plot, [chart for drawn in bench_charts(done).values() for chart in drawn])
        console.print(f"plot: {args.plot}", highlight=False)
    if args.report is not None:
        args.report.write_text(bench_page(done), encoding="utf-8")
        console.print(f"report: {args.report}", highlight=False)
    return 0


def _in_turns(trainings: Sequence[TrainingWay], steps: int) -> dict[str, list[float]]:
    """The seconds of each step of each way. Another way begins each turn."""
    found: dict[str, list[float]] = {training.way: [] for training in trainings}
    for turn in range(steps):
        for i in range(len(trainings)):
            training = trainings[(turn + i) % len(trainings)]
            found[training.way].append(_seconds(training.step))
    return found


def _scaled(console: Console, job: TrainingJob, data: NodeData, steps: int) -> Iterator[ScaledTimes]:
    """Times by the number of edges of a node, and by the size of the graph. Each way first runs a step of each graph
    untimed, since it may compile for it."""
    runners = [NodeTraining(way, job, data) for way in ("graphweave", "eager")]
    series: tuple[tuple[str, Callable[[NodeData, float], NodeData], tuple[float, ...]], ...] = (
        ("edges of a node", _with_fewer_edges, _SHARES), ("edges", _copied, _COPIES),
    )  # fmt: skip
    for unit, change, amounts in series:
        times: dict[str, list[tuple[float, float]]] = {runner.way: [] for runner in runners}
        for amount in amounts:
            other = change(data, amount)
            at = other.num_edges / (data.num_nodes if change is _with_fewer_edges else 1)
            for runner in runners:
                runner.use(other)
                runner.step()
            for way, seconds in _in_turns(runners, steps).items():
                times[way].append((at, statistics.median(seconds)))
        table = Table(
            f"{unit}: median step", *(f"{at:,.3g}" if at < 1000 else f"{at:,.0f}" for at, _ in times["eager"])
        )
        for way, points in times.items():
            table.add_row(way, *(duration(seconds) for _, seconds in points))
        console.print(table)
        yield ScaledTimes(unit, times)


def _with_fewer_edges(data: NodeData, share: float) -> NodeData:
    """The graph with a share of its edges, drawn at random."""
    generator = torch.Generator().manual_seed(0)
    kept = torch.randperm(data.num_edges, generator=generator)[: max(1, round(share * data.num_edges))].sort().values
    return dataclasses.replace(data, edge_index=data.edge_index[:, kept].contiguous())


def _copied(data: NodeData, count: float) -> NodeData:
    """Copies of the graph side by side."""
    times = int(count)
    shifts = torch.arange(times).repeat_interleave(data.num_edges) * data.num_nodes
    masks = {f"{part}_mask": getattr(data, f"{part}_mask").repeat(times) for part in ("train", "val", "test")}
    return dataclasses.replace(
        data, x=data.x.repeat(times, 1), edge_index=data.edge_index.repeat(1, times) + shifts, y=data.y.repeat(times),
        **masks,
    )  # fmt: skip


def _seconds(step: Callable[[], float]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin
