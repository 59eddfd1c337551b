"""docs/papers.md, a page for each paper, and their figures: `python -m bench.papers page` writes them from the records.

A test compares the pages with what this makes from the files, so that neither changes without the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.papers.cells import Panel, panel_of
from bench.papers.draw import draw, file_of
from bench.papers.session import Paper
from bench.papers.show import letter, lines
from bench.papers.verdicts import compared, summary, unexplained
from bench.turns import ROOT

RESULTS = ROOT / "bench" / "results"
FIGURES = RESULTS / "figures"
PAGE = ROOT / "docs" / "papers.md"
FOLDER = ROOT / "docs" / "papers"

HEAD = """# The papers' tables and figures

This page has the headlines of five papers, and leads to a page for each, which compares its tables and figures with
what was measured here, as far as a CPU of two cores can show them; the last page has what a user would pick today.
`python -m bench.papers fill` measures what is missing, with the peers of this machine, and
`python -m bench.papers page` makes the pages and their figures from the records.

The table below has the papers' headlines: what they say of their own system, the same of graphweave here, and whether
this is beaten (by 5 % or more), met or missed. The papers had other machines, often GPUs, and other versions of the
systems that they compare with; each page says which.

Results are checked before they are timed: outputs and gradients equal those of PyG, or are as close to a result in
float64 as PyG's are. Gradients of EdgeConv's maxima on large batches of points depend on which of two nearly equal
messages is the larger. There they may differ from the result in float64 by as much as rounding the inputs and weights
to float32 moves it, within the same factor of four."""

LEGEND = """A column `paper:` is what the paper printed, on the paper's machine; a column `here:` was measured on the
machine named below each title. If there are several, the last column says on which one; the systems of a row are always
measured on one, and only numbers of one machine can be compared. `-` means that a number was not measured or not
printed. [All papers](../papers.md) are on one page with their headlines."""


def file(paper: str) -> Path:
    return RESULTS / f"papers_{paper}.json"


def panels_of(paper: str) -> dict[str, Panel]:
    """The panels that a paper's file has; none if there is no file."""
    path = file(paper)
    if not path.is_file():
        return {}
    return {name: panel_of(one) for name, one in json.loads(path.read_text())["panels"].items()}


def draw_all(names: Sequence[str], folder: Path) -> list[Path]:
    """Draws the figures of these papers, from the files that exist, and returns their paths."""
    drawn = (draw(name, panel, folder) for name in names for panel in panels_of(name).values())
    return [path for path in drawn if path is not None]


def pages(papers: Sequence[Paper]) -> dict[Path, str]:
    """File -> its text: the overview and a page for each paper."""
    measured = {paper.name: panels_of(paper.name) for paper in papers}
    own = {FOLDER / f"{paper.name}.md": "\n\n".join(_page(paper, measured[paper.name])) + "\n" for paper in papers}
    return {PAGE: "\n\n".join(_overview(papers, measured)) + "\n", **own}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def _overview(papers: Sequence[Paper], measured: Mapping[str, Mapping[str, Panel]]) -> Iterator[str]:
    yield HEAD
    rows = [
        [f"[{paper.short}](papers/{paper.name}.md)", *headline.row(measured[paper.name])]
        for paper in papers for headline in paper.headlines
    ]  # fmt: skip
    verdicts = [row[-1] for row in rows]
    counts = [f"{verdicts.count(word)} {word}" for word in ("beaten", "met", "missed", "not measured yet")]
    yield f"Of {len(rows)} headlines, " + ", ".join(counts) + "."
    yield table(["paper", "headline", "printed", "here", "over", ""], rows)
    yield "## The pages"
    yield table(
        ["paper", "panels", "cells measured", "cells missing", "left out"],
        [
            [
                f"[{paper.title}](papers/{paper.name}.md)", str(len(measured[paper.name])),
                *map(str, _counts(measured[paper.name])), str(len(paper.left_out)),
            ]
            for paper in papers
        ],
    )  # fmt: skip


def _counts(panels: Mapping[str, Panel]) -> tuple[int, int]:
    """Rows and columns that were measured, and that are missing."""
    cells = {(panel.name, cell.row, cell.column) for panel in panels.values() for cell in panel.cells if not cell.paper}
    return len(cells), sum(len(panel.missing) for panel in panels.values())


def _page(paper: Paper, panels: Mapping[str, Panel]) -> Iterator[str]:
    yield f"# {paper.title}"
    yield f"The paper's machine: {paper.machine}."
    yield LEGEND
    if paper.headlines:
        yield "## Headlines"
        yield table(["headline", "printed", "here", "over", ""], [headline.row(panels) for headline in paper.headlines])
    if rows := list(compared(panels)):
        yield "## Better, equal, worse"
        yield summary(panels)
        yield (
            "A cell is better if graphweave takes less time or memory by 5 % or more, worse if it takes as much more. "
            "Means are geometric, and `cannot run` counts cells where the other system has no number."
        )
        yield table(["panel", "against", "better", "equal", "worse", "cannot run", "mean", "worst"], rows)
    if paper.reasons:
        yield "Why:"
        yield "\n".join(f"- {what}: {why}" for what, why in paper.reasons.items())
    if without := unexplained(panels, paper.reasons):
        yield f"Worse, and not explained yet: {'; '.join(without)}."
    for panel in panels.values():
        yield from _panel(paper.name, panel)
    if paper.left_out:
        yield "## Left out"
        yield table(["what", "needs", "why"], [[gap.what, gap.needs, gap.why] for gap in paper.left_out])


def _here(machine: Mapping[str, Any], name: str) -> str:
    versions = ", ".join(f"{package} {number}" for package, number in machine["versions"].items() if number)
    return (
        f"Here{name}: {machine['cpu']}; {machine['cores']} cores, {machine['threads']} threads at most; {versions}; "
        f"{machine['date'][:10]}."
    )


def _panel(paper: str, panel: Panel) -> Iterator[str]:
    yield f"## {panel.name}: {panel.title}"
    yield f"{panel.about} Unit: {panel.unit}."
    for i, machine in enumerate(panel.machines):
        yield _here(machine, f", machine {letter(i)}" if len(panel.machines) > 1 else "")
    head, rows = lines(panel)
    if rows:
        yield table(head, rows)
    if panel.missing:
        yield f"Not measured yet: {', '.join(panel.missing)}."
    if (FIGURES / file_of(paper, panel)).is_file():
        yield f"![{panel.name}](../../bench/results/figures/{file_of(paper, panel)})"
