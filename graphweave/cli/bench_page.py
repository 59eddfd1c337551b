"""The page of `graphweave bench`: times of steps, how they grow with the graph, and what the tuner raced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from graphweave.cli import charts
from graphweave.cli.charts import Chart, ScaledTimes
from graphweave.cli.durations import duration
from graphweave.cli.named_data import described
from graphweave.cli.plot import page_figures
from graphweave.cli.training_page import machine_section
from graphweave.compiler.report import RacedCandidate, TuningNote
from graphweave.examples.tasks import Data
from graphweave.pages.elements import facts, section, table, tag
from graphweave.pages.frame import page

_MOST_RACED = 15
"""A chart shows at most so many candidates, the fastest ones."""


@dataclass(frozen=True, slots=True)
class BenchRun:
    """The measurements: seconds of the first step and of the others of each way, times of other sizes of the graph,
    and what tuning found."""

    model: str
    data: Data
    first: Mapping[str, float]
    rest: Mapping[str, Sequence[float]]
    scaled: Sequence[ScaledTimes]
    tunings: Sequence[TuningNote]


def bench_charts(done: BenchRun) -> dict[str, list[Chart]]:
    """The charts of a benchmark, by the heading under which they stand."""
    found = {
        "A training step": [
            charts.spread("Steps after the first", done.rest),
            charts.bars("First step", done.first, duration, "It includes compiling and tuning, for those who do so."),
        ],
        "How time grows with the graph": [charts.growth(times) for times in done.scaled],
        "What the tuner raced": [chart for note in done.tunings for chart in _races(note)],
    }
    return {title: drawn for title, drawn in found.items() if drawn}


def bench_page(done: BenchRun) -> str:
    """One HTML document about the benchmark, which loads nothing."""
    medians = {way: median(seconds) for way, seconds in done.rest.items()}
    rows = [(charts.NAMES[way], duration(medians[way]), duration(done.first[way])) for way in medians]
    shown = {f"a step, {charts.NAMES[way]}": duration(seconds) for way, seconds in medians.items()}
    ratio = medians["eager"] / medians["graphweave"]
    body = [
        tag("p", f"{described(done.model, done.data)}."),
        facts(shown | {"against eager PyTorch": f"{ratio:.2f} times as fast"}),
        section("Results", table(("", "median step", "first step"), rows, "Seconds of training steps")),
        *(section(name, page_figures(drawn)) for name, drawn in bench_charts(done).items()),
        *([section("What tuning found", _found(done.tunings))] if done.tunings else []),
        machine_section(),
    ]
    return page(f"Training steps: {done.model} on {done.data.name}", body)


def _races(note: TuningNote) -> list[Chart]:
    """A chart for each choice of which candidates were measured."""
    found = []
    for choice in dict.fromkeys(one.choice for one in note.raced):
        raced = _best_of_each(one for one in note.raced if one.choice == choice)
        if len(raced) > 1:
            shown = sorted(raced, key=lambda one: one.measured)[:_MOST_RACED]
            untuned = next(one for one in raced if one.name == "untuned")
            found.append(charts.race(choice, shown, untuned))
    return found


def _best_of_each(raced: Iterable[RacedCandidate]) -> list[RacedCandidate]:
    """One entry for each candidate, its fastest, since some are raced again in combinations."""
    best: dict[str, RacedCandidate] = {}
    for one in raced:
        if one.name not in best or one.measured < best[one.name].measured:
            best[one.name] = one
    return list(best.values())


def _found(tunings: Sequence[TuningNote]) -> str:
    rows = [
        (note.choice, None if note.measured is None else duration(note.measured),
         None if note.untuned_measured is None else duration(note.untuned_measured), note.tried,
         "an earlier search" if note.stored else f"{note.seconds:.0f} s")
        for note in tunings
    ]  # fmt: skip
    header = ("choice", "forward and backward", "untuned", "candidates measured", "search")
    return table(header, rows, "A row for each captured graph")
