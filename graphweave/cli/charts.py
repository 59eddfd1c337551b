"""The charts of a training and of its data, each for one pair of matplotlib's axes. `plot.py` puts them into files."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphweave.cli.durations import duration
from graphweave.compiler.report import RacedCandidate
from graphweave.core.break_even import BreakEven
from graphweave.examples.training import Predictions, TrainingWay

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, SOFT = "#1a1c20", "#545b66"
FIRST, SECOND, THIRD, FOURTH = "#0b57d0", "#b4490c", "#176b2c", "#7b3fb5"
"""The colours of a light page (`graphweave/pages/page.css`)."""
_COLOURS = {"graphweave": FIRST, "eager": SOFT, "inductor": SECOND, "tuned": FOURTH}
NAMES = {"graphweave": "graphweave", "eager": "eager PyTorch", "inductor": "torch.compile", "tuned": "tuned"}
"""Way of training -> its name in charts."""

_MOST_NUMBERED_CLASSES = 12
"""Confusion matrices of more classes show shares as shades alone, without numbers."""
_MOST_POINTS = 5000
"""A parity chart shows at most this many points, evenly chosen."""
_FEW_EDGES = 50
"""Degrees up to this are drawn on a plain scale, larger ones on a logarithmic one."""
_WIDE = 20
"""Times of epochs that differ by more than this factor are drawn on a logarithmic scale."""
_FARTHEST = 20
"""Times are drawn up to the break-even point if it comes within so many times the epochs that were run."""


@dataclass(frozen=True, slots=True)
class Chart:
    """`draw` draws it into axes. `alt` says in words what it shows, for those who do not see it; `note` says how to
    read it."""

    title: str
    alt: str
    draw: Callable[[Any], None]
    note: str = ""
    height: float = 1.0
    """In terms of the other charts' height."""


def learning(runners: Sequence[TrainingWay]) -> list[Chart]:
    """The loss and the measure of validation by epoch, of all ways in the same axes."""
    measure, histories = runners[0].measure, {runner.way: runner.history for runner in runners}
    train = _measured(histories[runners[0].way].train)

    def loss(axes: Axes) -> None:
        for (way, history), style in zip(histories.items(), itertools.cycle(_STYLES), strict=False):
            axes.plot(*_measured(history.loss), style, color=_COLOURS[way], label=NAMES[way])
        axes.set(xlabel="epoch", ylabel="loss")
        axes.locator_params(axis="x", integer=True)
        axes.legend()

    def quality(axes: Axes) -> None:
        for (way, history), style in zip(histories.items(), itertools.cycle(_STYLES), strict=False):
            axes.plot(*_measured(history.val), style, color=_COLOURS[way], label=f"{NAMES[way]}, validation")
        if train[0]:
            axes.plot(*train, ":", color=THIRD, label=f"{NAMES[runners[0].way]}, training")
        axes.set(xlabel="epoch", ylabel=measure)
        axes.locator_params(axis="x", integer=True)
        axes.legend()

    ends = {NAMES[way]: history.loss[-1] for way, history in histories.items()}
    last = {NAMES[way]: history.last_val for way, history in histories.items() if not math.isnan(history.last_val)}
    charts = [Chart("Loss", f"Loss by epoch. At the end: {_listed(ends, _short)}.", loss)]
    if last:
        alt = f"{measure} of the validation data by epoch. At the end: {_listed(last, _short)}."
        charts.append(Chart(f"Validation: {measure}", alt, quality))
    return charts


def epoch_times(runners: Sequence[TrainingWay]) -> Chart:
    """The seconds of each epoch. The first one compiles."""
    times = {runner.way: runner.history.seconds for runner in runners}
    every = list(itertools.chain(*times.values()))
    wide = max(every) > _WIDE * min(every)

    def draw(axes: Axes) -> None:
        for (way, seconds), style in zip(times.items(), itertools.cycle(_STYLES), strict=False):
            line = f"{style}" if len(seconds) > 1 else "o"
            axes.plot(range(1, len(seconds) + 1), seconds, line, color=_COLOURS[way], label=NAMES[way])
        axes.set(xlabel="epoch", ylabel="seconds", yscale="log" if wide else "linear")
        axes.locator_params(axis="x", integer=True)
        axes.yaxis.set_major_formatter("{x:g}")
        if not wide:
            axes.set_ylim(bottom=0)
        axes.legend()

    medians = {NAMES[runner.way]: runner.history.median for runner in runners}
    alt = f"Seconds of each epoch. Medians: {_listed(medians, duration)}."
    note = "The scale is logarithmic. " if wide else ""
    return Chart("Time of each epoch", alt, draw, f"{note}The first epoch of a compiled model includes compiling.")


def bars(title: str, values: Mapping[str, float], show: Callable[[float], str], note: str = "") -> Chart:
    """A bar for each way, with its value as `show` writes it."""

    def draw(axes: Axes) -> None:
        for row, (way, value) in enumerate(values.items()):
            axes.barh(row, value, 0.6, color=_COLOURS[way])
            axes.annotate(show(value), (value, row), xytext=(4, 0), textcoords="offset points", va="center")
        axes.set_yticks(range(len(values)), [NAMES[way] for way in values])
        axes.set(xticks=[], xlim=(0, 1.35 * max(values.values(), default=1) or 1))
        axes.spines["bottom"].set_visible(False)
        axes.invert_yaxis()

    named = {NAMES[way]: value for way, value in values.items()}
    return Chart(title, f"{title}: {_listed(named, show)}.", draw, note, height=0.25 + 0.13 * len(values))


def breaks_even(runners: Sequence[TrainingWay]) -> Chart | None:
    """The time that has passed after each epoch, of all ways, with the epoch after which compiling has paid. None if
    no eager epochs were timed, or if there was one epoch alone."""
    histories = {runner.way: runner.history for runner in runners}
    compiled, eager = histories.get("graphweave"), histories.get("eager")
    if compiled is None or eager is None or len(compiled.seconds) < 2:
        return None
    ran = len(compiled.seconds)
    paid = BreakEven(compiled.seconds[0], eager.median, compiled.median).steps
    end = max(ran, math.ceil(1.25 * paid)) if paid is not None and paid <= _FARTHEST * ran else ran

    def draw(axes: Axes) -> None:
        for way, history in histories.items():
            first = history.median if way == "eager" else history.seconds[0]
            axes.plot([1, end], [first, first + (end - 1) * history.median], color=_COLOURS[way], label=NAMES[way])
        if paid is not None and paid <= end:
            axes.plot([paid], [eager.median * paid], "o", color=THIRD, label=f"paid after {_epochs(paid)}")
        axes.set(xlabel="epochs", ylabel="seconds since the start")
        axes.set_ylim(bottom=0)
        axes.legend()

    said = "Compiling does not pay here." if paid is None else f"Compiling has paid after {_epochs(paid)}."
    note = "Time by the first epoch and the median of the later ones."
    return Chart("When compiling has paid", f"Seconds since the start by epoch. {said}", draw, note)


def predictions(way: str, found: Predictions) -> Chart | None:
    """How what was predicted of the test data fits the truth: a confusion matrix, or a parity chart of numbers. None if
    there are no test data."""
    if not found.true.numel():
        return None
    return _confusion(way, found) if found.classes else _parity(way, found)


def _confusion(way: str, found: Predictions) -> Chart:
    count = len(found.classes)
    counts = torch.bincount(found.true * count + found.predicted, minlength=count * count).view(count, count)
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    size = max(5.0, min(9.0, 90 / count))

    def draw(axes: Axes) -> None:
        for true, predicted in counts.nonzero().tolist():
            shade = 0.08 + 0.42 * float(shares[true, predicted])
            axes.bar(predicted, 1, 1, true - 0.5, color=FIRST, alpha=shade, linewidth=0)
            if count <= _MOST_NUMBERED_CLASSES:
                words = f"{int(counts[true, predicted]):,}"
                axes.text(predicted, true, words, ha="center", va="center", size=size)
        axes.set(xlabel="predicted class", ylabel="true class", xlim=(-0.5, count - 0.5), ylim=(count - 0.5, -0.5))
        axes.set_aspect("equal")
        if count <= _MOST_NUMBERED_CLASSES:
            turn = 0 if max(map(len, found.classes)) < 4 else 45
            axes.set_xticks(range(count), found.classes, rotation=turn, ha="right" if turn else "center")
            axes.set_yticks(range(count), found.classes)

    right = float(counts.diagonal().sum() / counts.sum())
    wrong = counts - counts.diagonal().diag()
    alt = f"Counts of the test data by true and predicted class of {count}; {100 * right:.1f}% lie on the diagonal."
    if int(wrong.sum()):
        true, predicted = divmod(int(wrong.argmax()), count)
        alt += f" Most often, {found.classes[true]} is taken for {found.classes[predicted]}."
    note = "A row is a true class. The stronger a cell's colour, the larger its share of the row."
    return Chart(f"Confusion on the test data ({NAMES[way]})", alt, draw, note)


def _parity(way: str, found: Predictions) -> Chart:
    every = -(-found.true.numel() // _MOST_POINTS)
    true, predicted = found.true.double(), found.predicted.double()
    low, high = float(torch.minimum(true, predicted).min()), float(torch.maximum(true, predicted).max())

    def draw(axes: Axes) -> None:
        axes.plot([low, high], [low, high], color=SOFT, linewidth=1)
        axes.plot(true[::every].tolist(), predicted[::every].tolist(), ".", color=FIRST, alpha=0.5, markersize=5)
        axes.set(xlabel="true", ylabel="predicted")
        axes.set_aspect("equal")

    error = float((true - predicted).abs().mean())
    alt = f"Predicted numbers of the test data against the true ones; the mean absolute error is {error:.3g}."
    return Chart(f"Parity on the test data ({NAMES[way]})", alt, draw, "On the line, the prediction is right.")


def degrees(indices: Tensor, num_nodes: int) -> Chart | None:
    """How many nodes have how many incoming edges, by the edges' destinations `indices`. None for no edges."""
    if not indices.numel():
        return None
    degree = indices.bincount(minlength=num_nodes)
    counts = degree.bincount()
    mean, most, alone = float(degree.double().mean()), int(degree.max()), int(counts[0])
    lowest = 0.5 if most > _FEW_EDGES else 0.0

    def draw(axes: Axes) -> None:
        seen = counts.nonzero().flatten()
        axes.plot(seen.clamp(min=lowest).tolist(), counts[seen].tolist(), "o", color=FIRST, markersize=3)
        axes.axvline(max(mean, lowest), color=SOFT, linewidth=1, linestyle="--")
        scale = "log" if most > _FEW_EDGES else "linear"
        axes.set(xlabel="incoming edges of a node", ylabel="nodes", xscale=scale, yscale=scale)
        if not lowest:
            axes.set(xlim=(-0.5, most + 0.5), ylim=(0, 1.1 * int(counts.max())))

    alt = f"Nodes by their number of incoming edges: {mean:.1f} on average, {most:,} at most, none for {alone:,} nodes."
    note = "The dashed line is the mean."
    if lowest:
        note += " Both scales are logarithmic" + ("; nodes without edges stand at a half." if alone else ".")
    return Chart("Edges of a node", alt, draw, note)


def spread(title: str, times: Mapping[str, Sequence[float]]) -> Chart:
    """The seconds of each step of each way, as points in a row, and the median as a line across them."""

    def draw(axes: Axes) -> None:
        for row, (way, seconds) in enumerate(times.items()):
            middle = median(seconds)
            axes.plot([1e3 * s for s in seconds], [row] * len(seconds), "o", color=_COLOURS[way], alpha=0.4)
            axes.plot([1e3 * middle] * 2, [row - 0.3, row + 0.3], color=_COLOURS[way])
            axes.text(1e3 * middle, row - 0.34, duration(middle), ha="center", va="bottom")
        axes.set_yticks(range(len(times)), [NAMES[way] for way in times])
        axes.set(xlabel="milliseconds", ylim=(len(times) - 0.5, -0.7))
        axes.set_xlim(left=0)

    medians = {NAMES[way]: median(seconds) for way, seconds in times.items()}
    return Chart(title, f"{title}. Medians: {_listed(medians, duration)}.", draw, "A point is a step, a line a median.")


@dataclass(frozen=True, slots=True)
class ScaledTimes:
    """Median seconds of a step, by way, at several sizes of the graph in a `unit`."""

    unit: str
    times: Mapping[str, Sequence[tuple[float, float]]]


def growth(scaled: ScaledTimes) -> Chart:
    """The time of a step by the size of the graph."""

    def draw(axes: Axes) -> None:
        for way, points in scaled.times.items():
            sizes, seconds = zip(*points, strict=True)
            axes.plot(sizes, [1e3 * s for s in seconds], "o-", color=_COLOURS[way], label=NAMES[way], markersize=4)
        axes.set(xlabel=scaled.unit, ylabel="milliseconds of a step")
        axes.locator_params(axis="x", nbins=5)
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.legend()

    ends = {NAMES[way]: points[-1][1] for way, points in scaled.times.items()}
    last = next(iter(scaled.times.values()))[-1][0]
    title = f"Time of a step by {scaled.unit}"
    return Chart(title, f"{title}. At {last:,.3g}: {_listed(ends, duration)}.", draw)


def race(choice: str, raced: Sequence[RacedCandidate], untuned: RacedCandidate) -> Chart:
    """Measured times of candidates of one choice, in terms of the compiler's own, and the cost model's prices of
    them."""

    def draw(axes: Axes) -> None:
        for row, one in enumerate(raced):
            own = one.name == untuned.name
            axes.barh(row, one.measured / untuned.measured, 0.7, color=SOFT if own else FIRST, alpha=0.55)
            axes.plot([one.predicted / untuned.predicted], [row], "D", color=SECOND, markersize=5)
        axes.axvline(1, color=SOFT, linewidth=1, linestyle="--")
        axes.set_yticks(range(len(raced)), [_candidate(one.name) for one in raced], size=7.5)
        axes.set(xlabel="times the compiler's own choice", ylim=(len(raced) - 0.4, -0.6))
        axes.set_xlim(left=0)

    best = raced[0]
    alt = (
        f"Candidates by their time. The fastest is {_candidate(best.name)}, at"
        f" {best.measured / untuned.measured:.2f} times the time of the compiler's own choice."
    )
    note = "A bar is the measured time, a diamond the price by the cost model."
    return Chart(f"Candidates: {choice}", alt, draw, note, height=max(0.5, 0.25 + 0.075 * len(raced)))


def _candidate(name: str) -> str:
    """A schedule's fields, a form's options, or "the compiler's own"."""
    if name == "untuned":
        return "the compiler's own"
    return name.removeprefix("Schedule(").removesuffix(")").strip("{}").replace("'", "")


_STYLES = ("-", "--", "-.", ":")
"""Styles of lines that may lie on one another."""


def _listed(values: Mapping[str, float], show: Callable[[float], str]) -> str:
    return ", ".join(f"{name} {show(value)}" for name, value in values.items())


def _epochs(count: int) -> str:
    return f"{count:,} {'epoch' if count == 1 else 'epochs'}"


def _short(value: float) -> str:
    return f"{value:.3g}"


def _measured(values: Sequence[float]) -> tuple[list[int], list[float]]:
    """The epochs that have a value, counted from 1, and their values."""
    pairs = [(epoch, value) for epoch, value in enumerate(values, 1) if not math.isnan(value)]
    return [epoch for epoch, _ in pairs], [value for _, value in pairs]
