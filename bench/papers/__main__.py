"""The papers' tables and figures, measured here: `python -m bench.papers PAPER [options]`, or `fill`, or `page`.

    python -m bench.papers {featgraph,dgl,graphiler,zhang,hector,today} [--quick] [--only PANEL ...] [--rows NAME ...]
                           [--columns NAME ...] [--measure time memory] [--seconds 3600] [--again] [--move]
                           [--dgl-python PYTHON] [--threads 2] [--repeats 10] [--relational FILE]
                           [--data-dir DIR] [--out FILE] [--figures FOLDER]
    python -m bench.papers fill [--minutes 60] [--memory 20] [--measure time memory] [--only PAPER ...] [--plan]
    python -m bench.papers page

The first form prints the panels that are asked for, and writes --out after each cell (by default
bench/results/papers_PAPER.json; with --quick nothing, unless --out is given). A file is continued: cells that it has
are not measured again without --again, so a long table can be measured in pieces. --rows and --columns keep to cells of
these names, and after --seconds no cell is begun. Memory, and bytes that are counted, can be measured on a machine that
is not quiet (--measure). A row of lines, or a heat map, has cells of one machine only: --move drops those of another.
--figures draws the panels into a folder. --quick measures a few small cells, to see that all works.

`fill` measures what is missing of all papers, the cheapest cells first, within --memory GiB for all processes together.
It begins no cell that would end after --minutes, by an estimate that it corrects as it goes, and may be interrupted at
any time; the next call goes on. --plan only lists the cells with their estimates. `page` draws the figures anew and
writes docs/papers.md and a page for each paper, from the files. Results are checked before they are timed, and systems
take turns.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import torch

from bench.common import save
from bench.graphs import data_dir
from bench.options import COMMON, Among, parser_of
from bench.papers import dgl, featgraph, graphiler, hector, today, zhang
from bench.papers.cells import Panel, panel_of
from bench.papers.draw import draw
from bench.papers.fill import fill, listed, missing_of
from bench.papers.page import FIGURES, draw_all, file, pages
from bench.papers.session import Paper, Planned, Session, What
from bench.papers.show import print_panel

PAPERS: Mapping[str, Paper] = {
    paper.name: paper for paper in (featgraph.PAPER, dgl.PAPER, graphiler.PAPER, zhang.PAPER, hector.PAPER, today.PAPER)
}


OPTIONS: dict[str, Any] = {
    **COMMON, "quick": False, "only": (), "rows": (), "columns": (), "measure": Among(get_args(What)),
    "seconds": 3600.0, "again": False, "move": False, "repeats": 10, "timeout": 600.0, "dgl_python": Path,
    "relational": Path, "data_dir": data_dir(), "figures": Path, "minutes": 60.0, "memory": 20.0, "plan": False,
}  # fmt: skip


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, OPTIONS)
    parser.add_argument("paper", choices=(*PAPERS, "fill", "page"))
    options = parser.parse_args(argv)
    known = PAPERS[options.paper].panels if options.paper in PAPERS else PAPERS
    if unknown := [name for name in options.only if name not in known]:
        parser.error(f"{options.paper} has no {', '.join(unknown)}; expected {', '.join(known)}")
    return options


def run(paper: Paper, options: argparse.Namespace) -> dict[str, Panel]:
    """Measures and prints the panels that are asked for, and saves after each cell. The others are left as they are."""
    out = _out(paper, options)
    session = Session(options, _saved(out), lambda panels: save(out, _record(paper, panels, options)))
    for name, make in paper.panels.items():
        torch.set_num_threads(options.threads)
        session.table, session.open = name, not options.only or name in options.only
        made = make(session)
        for panel in made:
            session.sort(panel)
        if session.open:
            for panel in made:
                print_panel(panel)
                if options.figures is not None:
                    draw(paper.name, panel, options.figures)
    save(out, _record(paper, session.panels, options))
    return session.panels


def plan(paper: Paper, options: argparse.Namespace) -> list[Planned]:
    """The cells of a paper that its file does not have."""
    chosen = argparse.Namespace(**{**vars(options), "rows": (), "columns": ()})
    session = Session(chosen, _saved(_out(paper, options)), lambda panels: None)
    session.open = False
    for name, make in paper.panels.items():
        session.table = name
        make(session)
    return session.planned


def _out(paper: Paper, options: argparse.Namespace) -> Path | None:
    """The file of a paper: `--out`, which may be a folder, or the one in the repository."""
    if options.out is None:
        return None if options.quick else file(paper.name)
    out: Path = options.out
    return out / file(paper.name).name if out.is_dir() else out


def _saved(path: Path | None) -> dict[str, Panel]:
    if path is None or not path.is_file():
        return {}
    return {name: panel_of(one) for name, one in json.loads(path.read_text())["panels"].items()}


def _record(paper: Paper, panels: Mapping[str, Panel], options: argparse.Namespace) -> dict[str, Any]:
    return {
        "benchmark": f"papers_{paper.name}", "threads": options.threads,
        "paper": {"title": paper.title, "machine": paper.machine},
        "panels": {name: panel.as_json() for name, panel in panels.items()},
    }  # fmt: skip


def write_pages() -> None:
    draw_all(list(PAPERS), FIGURES)
    for path, text in pages(list(PAPERS.values())).items():
        path.write_text(text)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    if options.paper == "page":
        write_pages()
        return 0
    if options.paper in PAPERS:
        run(PAPERS[options.paper], options)
        return 0
    papers = [paper for name, paper in PAPERS.items() if not options.only or name in options.only]
    if options.plan:
        print("\n".join(listed(missing_of(papers, options, plan))))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends what it started, as Ctrl-C does
    return fill(papers, options, plan)


if __name__ == "__main__":
    raise SystemExit(main())
