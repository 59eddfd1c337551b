"""Writes charts by matplotlib: as one picture, or as drawings within a page that follow its colours."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from graphweave.cli.charts import FIRST, FOURTH, INK, SECOND, SOFT, THIRD, Chart
from graphweave.core.errors import DataError, GraphweaveError
from graphweave.pages.elements import figure, join, tag

_PICTURES = (".png", ".pdf", ".svg")
_PAGES = (".html",)
_COLUMNS = 3
_WIDTH, _HEIGHT = 4.4, 3.3
"""Inches of a chart."""
_VARIABLES = {INK: "--ink", SOFT: "--soft", FIRST: "--one", SECOND: "--two", THIRD: "--three", FOURTH: "--four"}
"""Colour of a chart -> the variable of the page that has it on light pages, and another one on dark pages."""
_STYLE = {
    "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "axes.edgecolor": SOFT,
    "legend.labelcolor": INK, "legend.frameon": False, "axes.spines.top": False, "axes.spines.right": False,
    "axes.titlesize": "medium", "axes.titlelocation": "left", "font.size": 9, "svg.hashsalt": "graphweave",
}  # fmt: skip


def check_picture(path: Path) -> None:
    """Raise if no picture can be written to `path`, so that this shows before the training and not after it."""
    _check("--plot", path, _PICTURES)


def check_page(path: Path) -> None:
    """Raise if no page can be written to `path`."""
    _check("--report", path, _PAGES)


def _check(option: str, path: Path, endings: Sequence[str]) -> None:
    _matplotlib()
    if path.suffix.lower() not in endings:
        raise DataError(f"{option} must end in {', '.join(endings)} (got {str(path)!r}). Name such a file.")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise DataError(f"{option} cannot be written: {path}. Name another file.")


def _matplotlib() -> tuple[Any, Any]:
    """Matplotlib's figures, and its function that changes settings for a while."""
    try:
        # Imported here, since it is an optional dependency that takes a second to load.
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise GraphweaveError("matplotlib is missing. Run: pip install 'graphweave[plot]'") from error
    return Figure, rc_context


def save_picture(path: Path, charts: Sequence[Chart]) -> None:
    """Write the charts next to each other into one picture."""
    new_figure, settings = _matplotlib()
    rows, columns = -(-len(charts) // _COLUMNS), min(len(charts), _COLUMNS)
    with settings(_STYLE):
        picture = new_figure(figsize=(columns * _WIDTH, rows * _HEIGHT), layout="constrained")
        places = picture.subplots(rows, columns, squeeze=False).flatten()
        for axes, chart in zip(places, charts, strict=False):
            axes.set_title(chart.title)
            chart.draw(axes)
        for axes in places[len(charts) :]:
            axes.set_axis_off()
        picture.savefig(path)


def page_figures(charts: Sequence[Chart]) -> str:
    """Charts as a part of a page, next to each other where there is room."""
    return tag("div", *map(_figure, charts), class_="figures")


def _figure(chart: Chart) -> str:
    """A chart within a page: its colours are those of the page, its text is text."""
    new_figure, settings = _matplotlib()
    with settings(_STYLE | {"svg.fonttype": "none", "font.family": "sans-serif"}):
        drawing = new_figure(figsize=(_WIDTH, chart.height * _HEIGHT), layout="constrained")
        chart.draw(drawing.subplots())
        written = StringIO()
        drawing.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    caption = join([tag("strong", f"{chart.title}."), *([chart.note] if chart.note else [])], " ")
    return figure(_within_a_page(written.getvalue()), caption, chart.alt)


def _within_a_page(text: str) -> str:
    """The element of an SVG file. Names within it that nothing refers to are dropped, since those of two drawings on a
    page would be the same; the others name equal things wherever they occur."""
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    return text
