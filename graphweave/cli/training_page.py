"""The page of a training: what was trained on what, its results, learning curves, errors, times, and the machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch

from graphweave.cli import charts
from graphweave.cli.charts import Chart
from graphweave.cli.durations import duration
from graphweave.cli.named_data import described
from graphweave.cli.plot import page_figures
from graphweave.cli.report import Measured, mebibytes, pays
from graphweave.data import AtomSet, GraphSet, Interactions, KnowledgeGraph, NodeData, TypedNodeData
from graphweave.examples.tasks import Data
from graphweave.examples.training import Predictions, TrainingJob, TrainingWay
from graphweave.pages.elements import facts, join, section, table, tag
from graphweave.pages.frame import page
from graphweave.runtime.machine_facts import NOT_INSTALLED, compiler, cpu, versions


@dataclass(frozen=True, slots=True)
class FinishedTraining:
    """A training that has ended, of one way or several, and what was measured."""

    model: str
    job: TrainingJob
    data: Data
    runners: Sequence[TrainingWay]
    measured: Measured
    predictions: Sequence[Predictions | None]


def all_charts(done: FinishedTraining) -> dict[str, list[Chart]]:
    """The charts of a training, by the heading under which they stand."""
    found = {
        "Learning": charts.learning(done.runners),
        "Time and memory" if len(done.runners) > 1 else "Time": _costs(done),
        "Where it is right and wrong": _answered(done),
        "The graph": [chart] if (chart := _degrees(done.data)) is not None else [],
    }
    return {title: drawn for title, drawn in found.items() if drawn}


def training_page(done: FinishedTraining) -> str:
    """One HTML document about the training, which loads nothing."""
    ways = [charts.NAMES[runner.way] for runner in done.runners]
    first = done.runners[0]
    compared = len(ways) > 1
    title = f"{', '.join(ways)}: {done.model} on {done.data.name}" if compared else f"{done.model} on {done.data.name}"
    caption = f"Measured on the test data; ratios are to {ways[0]}" if compared else "Measured on the test data"
    results = table(("", *ways, "baseline"), done.measured.rows, caption)
    sentences = [line.partition(": ")[2] for line in pays(done.runners)]
    body = [
        tag("p", f"{described(done.model, done.data)}. {len(first.history.loss)} epochs."),
        facts(_headline(done)),
        section(
            "Results",
            join([results, *(tag("p", f"{line[:1].upper()}{line[1:]}.") for line in sentences)]),
            "The baseline needs no training." + (" All systems begin with the same weights." if compared else ""),
        ),
        *(section(name, page_figures(drawn)) for name, drawn in all_charts(done).items()),
        section("Options", table(("option", "value"), _options(done.job), "Options of the training")),
        machine_section(),
    ]
    return page(title, body)


def machine_section() -> str:
    """The machine on which something was measured, and the versions of what ran."""
    processor, built = cpu(), compiler()
    rows = {
        "processor": f"{processor['model']}, {processor['usable']} cores usable, {processor['threads']} threads",
        "C++ compiler": built.get("version") or built["why"],
        "system": " ".join(os.uname()[i] for i in (0, 2, 4)),
        **{name: version for name, version in versions().items() if version != NOT_INSTALLED},
    }
    return section("Machine and versions", table(("what", "which"), rows.items(), "Where this was measured"))


def _headline(done: FinishedTraining) -> Mapping[str, str]:
    """The numbers that a reader wants first."""
    name, ours, *_ = done.measured.rows[0]
    history = done.runners[0].history
    shown = {name: ours, "median epoch": duration(history.median), "first epoch": duration(history.seconds[0])}
    for runner in done.runners[1:]:
        ratio = runner.history.median / history.median
        shown[f"against {charts.NAMES[runner.way]}"] = f"{ratio:.2f} times as fast"
    return shown


def _costs(done: FinishedTraining) -> list[Chart]:
    """Times and memory. Of a single way, bars would have nothing to be compared with."""
    histories = {runner.way: runner.history for runner in done.runners}
    times = charts.epoch_times(done.runners)
    if len(histories) == 1:
        return [times]
    found = [
        charts.bars("Median epoch", {way: history.median for way, history in histories.items()}, duration),
        charts.bars(
            "First epoch", {way: history.seconds[0] for way, history in histories.items()}, duration,
            "It includes compiling, for those who compile.",
        ),
    ]  # fmt: skip
    peaks = {way: float(peak) for way, peak in zip(histories, done.measured.peaks, strict=True) if peak is not None}
    if peaks:
        title = done.measured.peaks_mean.capitalize()
        found.append(charts.bars(title, peaks, mebibytes, "Beyond data and weights, in a process of its own."))
    paid = charts.breaks_even(done.runners)
    return [*found, *([] if paid is None else [paid]), times]


def _answered(done: FinishedTraining) -> list[Chart]:
    pairs = zip(done.runners, done.predictions, strict=True)
    found = (charts.predictions(runner.way, said) for runner, said in pairs if said is not None)
    return [chart for chart in found if chart is not None]


def _degrees(data: Data) -> Chart | None:
    """Incoming edges of the nodes of a graph, as the data have it."""
    match data:
        case NodeData() | TypedNodeData():
            return charts.degrees(data.edge_index[1], data.num_nodes)
        case GraphSet():
            return charts.degrees(data.edge_index[1], data.x.size(0))
        case AtomSet():
            return charts.degrees(data.edge_index[1], len(data.pos))
        case KnowledgeGraph():
            return charts.degrees(data.train[:, [0, 2]].flatten(), data.num_nodes)
        case Interactions():
            return charts.degrees(
                torch.cat([data.train[0], data.train[1] + data.num_users]), data.num_users + data.num_items
            )
    return None


def _options(job: TrainingJob) -> list[tuple[str, str]]:
    """The options that have a value, as text."""
    given = {name: value for name, value in asdict(job).items() if name not in ("links", "budget")}
    return [(name.replace("_", " "), str(value)) for name, value in given.items() if value not in (None, ())]
