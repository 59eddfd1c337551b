"""Draws a panel as PNG by matplotlib: a heat map for each system, lines, bars or dots. Only what was measured here.

Lines need three values of x. Bars begin at 0, so a panel whose numbers differ by more than `WIDE` has dots on a
logarithmic axis instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from bench.papers.cells import Cell, Panel
from bench.papers.show import letter, names, number

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

DPI = 90
WIDE = 20.0
"""The largest number over the smallest above which an axis is logarithmic."""
MARKS = "os^Dv<>PX*"
"""Shapes of markers, one for each series."""


def file_of(paper: str, panel: Panel) -> str:
    """`hector_figure_8.png` for the panel "Figure 8" of hector."""
    kept = "".join(c if c.isalnum() else "_" for c in panel.name.lower())
    return f"{paper}_{kept}.png"


def draw(paper: str, panel: Panel, folder: Path) -> Path | None:
    """Writes the figure and returns its path. None for a table, and if nothing was measured."""
    figure = figure_of(panel)
    if figure is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_of(paper, panel)
    figure.savefig(path, dpi=DPI, metadata={"Software": None})
    plt.close(figure)
    return path


def figure_of(panel: Panel) -> Figure | None:
    """The figure of a panel. None for a table, and if nothing was measured."""
    here = [c for c in panel.cells if not c.paper and c.value is not None]
    if panel.kind == "table" or not here:
        return None
    if panel.kind == "heat map":
        figure = _heat_maps(panel, names(c.system for c in here))
    elif panel.kind == "lines" and len({c.column for c in here}) > 2:
        figure = _lines(panel, here)
    else:
        figure = _categories(panel, here)
    figure.suptitle(f"{panel.name}: {panel.title}", fontsize=9)
    if isinstance(layout := figure.get_layout_engine(), ConstrainedLayoutEngine):
        layout.set(w_pad=0.12)  # inches: room for the last number of an axis
    return figure


def _heat_maps(panel: Panel, systems: list[str]) -> Figure:
    figure, axes = plt.subplots(1, len(systems), figsize=(4.2 * len(systems), 3.4), squeeze=False, layout="tight")
    for axis, system in zip(axes[0], systems, strict=True):
        rows, columns, grid = _grid(panel, system)
        shown = axis.imshow(grid, cmap="viridis_r", aspect="auto")
        for (i, j), value in np.ndenumerate(grid):
            if not np.isnan(value):
                axis.text(j, i, number(value), ha="center", va="center", fontsize=7, color="white")
        axis.set(xticks=range(len(columns)), yticks=range(len(rows)), xlabel=panel.columns, ylabel=panel.rows)
        axis.set_xticklabels(columns, fontsize=7)
        axis.set_yticklabels(rows, fontsize=7)
        axis.set_title(system, fontsize=8)
        figure.colorbar(shown, ax=axis, label=panel.unit)
    return figure


def _grid(panel: Panel, system: str) -> tuple[list[str], list[str], Any]:
    """Rows, columns and the values [rows, columns]; NaN where there is none."""
    mine = [c for c in panel.cells if c.system == system and not c.paper]
    rows = names(c.row for c in panel.cells if not c.paper)
    columns = names(c.column for c in panel.cells if not c.paper)
    grid = np.full((len(rows), len(columns)), np.nan)
    for cell in mine:
        if cell.value is not None:
            grid[rows.index(cell.row), columns.index(cell.column)] = cell.value
    return rows, columns, grid


def _lines(panel: Panel, here: Sequence[Cell]) -> Figure:
    """A line over the columns for each system and row. Columns that are numbers stand at their place on the axis."""
    figure, axis = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
    columns, rows = names(c.column for c in here), names(c.row for c in here)
    numeric = all(column.replace(".", "", 1).isdigit() and float(column) > 0 for column in columns)
    places = [float(column) for column in columns] if numeric else list(range(len(columns)))
    for k, (system, row) in enumerate(dict.fromkeys((c.system, c.row) for c in here)):
        values = {c.column: c.value for c in here if (c.system, c.row) == (system, row)}
        line = [values.get(column, np.nan) for column in columns]
        name = f"{system}, {row}" if len(rows) > 1 else system
        place = next(c.machine for c in here if (c.system, c.row) == (system, row))
        if place is not None and len(panel.machines) > 1:
            name += f" ({letter(place)})"
        axis.plot(places, line, marker=MARKS[k % len(MARKS)], markersize=5, label=name)
    if numeric and max(places) / min(places) > WIDE:
        axis.set_xscale("log")
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xticks(places, columns, fontsize=8)
    axis.set(xlabel=panel.columns)
    axis.set_ylabel(panel.unit)
    _number_axis(axis, "y", [c.value or 0.0 for c in here])
    figure.legend(fontsize=7, loc="outside right upper")
    return figure


def _categories(panel: Panel, here: Sequence[Cell]) -> Figure:
    """Bars from 0, or dots if the numbers differ much. Categories go down the page, where long names have room.

    What all numbers have in common is said once, at the axis. Of the rest (row, column, system) the last is told apart
    by colour, and the others name the categories.
    """
    shared, varying = _words(panel, here)
    grouped = len(varying) > 1
    drawn: dict[str, dict[str, float]] = {}
    for cell in here:
        parts = [str(getattr(cell, part)) for part in varying]
        category = ", ".join(parts[:-1] if grouped else parts)
        drawn.setdefault(category, {})[parts[-1] if grouped else ""] = cell.value or 0.0
    series = names(name for one in drawn.values() for name in one)
    values = [value for one in drawn.values() for value in one.values()]
    thickness = 0.045 if _is_wide(values) else 0.11
    height = max(1.1 + (thickness * len(series) + 0.13) * len(drawn), 1.9)
    figure, axis = plt.subplots(figsize=(9, height), layout="constrained")
    for i in range(0, len(drawn), 2):  # bands, so that an eye finds the row
        axis.axhspan(i - 0.5, i + 0.5, color="0.95", zorder=0)
    for k, name in enumerate(series):
        share = 0.8 / len(series)
        own = {
            i + (k - (len(series) - 1) / 2) * share: one[name] for i, one in enumerate(drawn.values()) if name in one
        }
        if _is_wide(values):
            axis.plot(list(own.values()), list(own), MARKS[k % len(MARKS)], markersize=4.5, label=name)
        else:
            axis.barh(list(own), list(own.values()), share, label=name)
    if panel.unit == "times":
        axis.axvline(1, color="black", linewidth=0.8)
    axis.set_yticks(range(len(drawn)), list(drawn), fontsize=8)
    axis.set_ylim(len(drawn) - 0.5, -0.5)
    axis.set_xlabel(f"{panel.unit} ({', '.join(shared)})" if shared else panel.unit)
    _number_axis(axis, "x", values)
    if grouped:
        figure.legend(fontsize=7, loc="outside right upper")
    return figure


def _words(panel: Panel, here: Sequence[Cell]) -> tuple[list[str], list[str]]:
    """The properties that all cells share, in words, and which of "row", "column" and "system" differ."""
    parts = {part: names(getattr(cell, part) for cell in here) for part in ("row", "column", "system")}
    headings = {"row": panel.rows, "column": panel.columns, "system": ""}
    shared = [f"{headings[part]} {found[0]}".strip() for part, found in parts.items() if len(found) == 1]
    return shared, [part for part, found in parts.items() if len(found) > 1] or ["system"]


def _is_wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) > WIDE


def _number_axis(axis: Axes, which: str, values: Sequence[float]) -> None:
    """Makes an axis begin at 0; or if numbers differ much logarithmic, between powers of ten that are written out."""
    limits = axis.set_xlim if which == "x" else axis.set_ylim
    if not _is_wide(values):
        limits(0, 1.05 * max(values))
        return
    (axis.set_xscale if which == "x" else axis.set_yscale)("log")
    limits(10 ** np.floor(np.log10(0.9 * min(values))), 10 ** np.ceil(np.log10(1.1 * max(values))))
    own = axis.xaxis if which == "x" else axis.yaxis
    own.set_major_locator(LogLocator(10))
    own.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}" if value < 1 else f"{value:,.0f}"))
    own.set_minor_formatter(NullFormatter())
    axis.grid(axis="x" if which == "x" else "y", which="major", color="0.85", linewidth=0.6)
