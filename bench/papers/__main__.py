"""The papers' tables and figures, measured here: `python -m bench.papers PAPER [options]`, or `page`.

    python -m bench.papers {featgraph,dgl,graphiler,zhang,hector} [--quick] [--only PANEL ...] [--rows NAME ...]
                           [--columns NAME ...] [--measure time memory] [--seconds 3600] [--again]
                           [--dgl-python PYTHON] [--threads 2] [--repeats 10] [--relational FILE]
                           [--data-dir DIR] [--out FILE] [--figures FOLDER]
    python -m bench.papers page

The first form prints the panels that are asked for, draws their figures, and writes --out after each cell (by default
bench/results/papers_PAPER.json; with --quick nothing, unless --out is given). A file is continued: cells that it has
are not measured again without --again, so a long table can be measured in pieces. --rows and --columns keep to cells of
these names, and after --seconds no cell is begun. Memory, and bytes that are counted, can be measured on a machine that
is not quiet (--measure). --quick measures a few small cells, to see that all works. `page` draws the figures anew and
writes docs/papers.md, both from the files. Results are checked before they are timed, and systems take turns.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import torch

from bench.common import save
from bench.graphs import data_dir
from bench.options import COMMON, Among, parser_of
from bench.papers import dgl, featgraph, graphiler, hector, zhang
from bench.papers.cells import Panel, panel_of
from bench.papers.draw import draw
from bench.papers.page import FIGURES, PAGE, draw_all, file, page
from bench.papers.session import Paper, Session, What
from bench.papers.show import print_panel

PAPERS: Mapping[str, Paper] = {
    paper.name: paper for paper in (featgraph.PAPER, dgl.PAPER, graphiler.PAPER, zhang.PAPER, hector.PAPER)
}


OPTIONS: dict[str, Any] = {
    **COMMON, "quick": False, "only": (), "rows": (), "columns": (), "measure": Among(get_args(What)),
    "seconds": 3600.0, "again": False, "repeats": 10, "timeout": 600.0, "dgl_python": Path, "relational": Path,
    "data_dir": data_dir(), "figures": Path,
}  # fmt: skip


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, OPTIONS)
    parser.add_argument("paper", choices=(*PAPERS, "page"))
    options = parser.parse_args(argv)
    if options.paper != "page":
        known = PAPERS[options.paper].panels
        unknown = [name for name in options.only if name not in known]
        if unknown:
            parser.error(f"{options.paper} has no {', '.join(unknown)}; expected {', '.join(known)}")
        if not options.quick:
            options.out = options.out or file(options.paper)
            options.figures = options.figures or FIGURES
    return options


def run(paper: Paper, options: argparse.Namespace) -> dict[str, Panel]:
    """Measures and prints the panels that are asked for, and saves after each cell. The others are left as they are."""
    session = Session(options, _saved(options.out), lambda panels: save(options.out, _record(paper, panels, options)))
    for name, make in paper.panels.items():
        torch.set_num_threads(options.threads)
        session.open = not options.only or name in options.only
        made = make(session)
        for panel in made:
            session.sort(panel)
        if session.open:
            for panel in made:
                print_panel(panel)
                if options.figures is not None:
                    draw(paper.name, panel, options.figures)
    save(options.out, _record(paper, session.panels, options))
    return session.panels


def _saved(path: Path | None) -> dict[str, Panel]:
    if path is None or not path.is_file():
        return {}
    return {name: panel_of(one) for name, one in json.loads(path.read_text())["panels"].items()}


def _record(paper: Paper, panels: Mapping[str, Panel], options: argparse.Namespace) -> dict[str, Any]:
    return {
        "benchmark": f"papers_{paper.name}", "threads": options.threads,
        "paper": {"title": paper.title, "machine": paper.machine},
        "left_out": dict(paper.left_out), "panels": {name: panel.as_json() for name, panel in panels.items()},
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    if options.paper == "page":
        draw_all(list(PAPERS), options.figures or FIGURES)
        PAGE.write_text(page(list(PAPERS)))
    else:
        run(PAPERS[options.paper], options)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
