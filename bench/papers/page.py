"""docs/papers.md and its figures from the JSON of the papers' measurements: `python -m bench.papers page` writes them.

A test compares the page with what this makes from the files, so that neither changes without the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.papers.cells import Panel, panel_of
from bench.papers.draw import draw, file_of
from bench.papers.show import letter, lines
from bench.turns import ROOT

RESULTS = ROOT / "bench" / "results"
FIGURES = RESULTS / "figures"
PAGE = ROOT / "docs" / "papers.md"

HEAD = """# The papers' tables and figures

This page compares what was measured here with the tables and figures of five papers, as far as a CPU can show them.
`python -m bench.papers {featgraph,dgl,graphiler,zhang,hector}` measures, with the peers of this machine, and writes the
JSON and the figures that `python -m bench.papers page` makes the page from. A column `paper:` is what the paper
printed, on the paper's machine; a column `here:` was measured on the machine named below each title. If there are
several, the last column says on which one; the systems of a row are always measured on one, and only numbers of one
machine can be compared. `-` means that a number was not measured or not printed."""


def files(names: Iterator[str]) -> Iterator[Path]:
    return (path for name in names if (path := file(name)).is_file())


def file(paper: str) -> Path:
    return RESULTS / f"papers_{paper}.json"


def draw_all(names: list[str], folder: Path) -> list[Path]:
    """Draws the figures of these papers, from the files that exist, and returns their paths."""
    records = [json.loads(path.read_text()) for path in files(iter(names))]
    drawn = (
        draw(record["benchmark"].removeprefix("papers_"), panel_of(one), folder)
        for record in records
        for one in record["panels"].values()
    )
    return [path for path in drawn if path is not None]


def page(names: list[str]) -> str:
    """The text of docs/papers.md, from the files of these papers that exist."""
    parts = [HEAD]
    for path in files(iter(names)):
        parts += _section(json.loads(path.read_text()))
    return "\n\n".join(parts) + "\n"


def _section(record: Mapping[str, Any]) -> Iterator[str]:
    paper = record["paper"]
    name = record["benchmark"].removeprefix("papers_")
    yield f"## {paper['title']}"
    yield f"The paper's machine: {paper['machine']}."
    for one in record["panels"].values():
        yield from _panel(name, panel_of(one))
    if record["left_out"]:
        yield "Left out:"
        yield "\n".join(f"- {what}: {why}" for what, why in record["left_out"].items())


def _here(machine: Mapping[str, Any], name: str) -> str:
    versions = ", ".join(f"{package} {number}" for package, number in machine["versions"].items() if number)
    return (
        f"Here{name}: {machine['cpu']}; {machine['cores']} cores, {machine['threads']} threads at most; {versions}; "
        f"{machine['date'][:10]}."
    )


def _panel(paper: str, panel: Panel) -> Iterator[str]:
    yield f"### {panel.name}: {panel.title}"
    yield f"{panel.about} Unit: {panel.unit}."
    for i, machine in enumerate(panel.machines):
        yield _here(machine, f", machine {letter(i)}" if len(panel.machines) > 1 else "")
    head, table = lines(panel)
    if table:
        yield "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *table))
    if panel.missing:
        yield f"Not measured yet: {', '.join(panel.missing)}."
    if (FIGURES / file_of(paper, panel)).is_file():
        yield f"![{panel.name}](../bench/results/figures/{file_of(paper, panel)})"
