"""Draws a panel as PNG by matplotlib: a heat map for each system, lines, or bars. Only what was measured here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from bench.papers.cells import Panel
from bench.papers.show import names, number

matplotlib.use("Agg")

from matplotlib import pyplot as plt

DPI = 90


def file_of(paper: str, panel: Panel) -> str:
    """`hector_figure_8.png` for the panel "Figure 8" of hector."""
    kept = "".join(c if c.isalnum() else "_" for c in panel.name.lower())
    return f"{paper}_{kept}.png"


def draw(paper: str, panel: Panel, folder: Path) -> Path | None:
    """Writes the figure and returns its path. None for a table, and if nothing was measured."""
    here = [c for c in panel.cells if not c.paper and c.value is not None]
    if panel.kind == "table" or not here:
        return None
    drawing = {"heat map": _heat_maps, "lines": _lines, "bars": _bars}[panel.kind]
    figure = drawing(panel, names(c.system for c in here))
    figure.suptitle(f"{panel.name}: {panel.title}", fontsize=9)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_of(paper, panel)
    figure.savefig(path, dpi=DPI, metadata={"Software": None})
    plt.close(figure)
    return path


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


def _heat_maps(panel: Panel, systems: list[str]) -> Any:
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


def _lines(panel: Panel, systems: list[str]) -> Any:
    figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for system in systems:
        rows, columns, grid = _grid(panel, system)
        for row, values in zip(rows, grid, strict=True):
            if not np.isnan(values).all():
                axis.plot(columns, values, marker="o", label=f"{system}, {row}" if len(rows) > 1 else system)
    axis.set(xlabel=panel.columns, ylabel=panel.unit)
    axis.set_ylim(bottom=0)
    figure.legend(fontsize=6, loc="outside right upper")
    return figure


def _bars(panel: Panel, systems: list[str]) -> Any:
    """Bars of all systems for each row and column that has any."""
    figure, axis = plt.subplots(figsize=(9, 3.6), layout="constrained")
    width = 0.8 / len(systems)
    grids = [_grid(panel, system) for system in systems]
    rows, columns, _ = grids[0]
    heights = np.stack([grid.reshape(-1) for _, _, grid in grids])
    kept = ~np.isnan(heights).all(0)
    ticks = [f"{row}\n{column}" for row in rows for column in columns]
    for k, system in enumerate(systems):
        axis.bar(np.arange(kept.sum()) + k * width, heights[k, kept], width, label=system)
    shown = [tick for tick, keep in zip(ticks, kept, strict=True) if keep]
    axis.set_xticks(np.arange(kept.sum()) + 0.4 - width / 2, shown, fontsize=6, rotation=30)
    axis.set_yscale("log")
    axis.set_ylabel(panel.unit)
    figure.legend(fontsize=6, loc="outside right upper")
    return figure
