"""Measures all cells of the papers that have no number yet, the cheapest first: `python -m bench.papers fill`.

A run of `python -m bench.papers PAPER` measures each group of cells, and saves it. So the work may be interrupted at
any time, and the next call goes on with what is missing then.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.papers.session import Paper, Planned, What
from bench.within import Ended, run_within

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Group:
    """Cells that one run measures: `rows` by `columns` of a table. `seconds` is an estimate."""

    paper: str
    table: str
    what: What
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    seconds: float

    @property
    def name(self) -> str:
        return f"{self.paper} {self.table} {self.what}: {', '.join(self.rows)} x {', '.join(self.columns)}"

    def command(self, options: Namespace) -> list[str]:
        command = [sys.executable, "-m", "bench.papers", self.paper, "--only", self.table, "--measure", self.what]
        command += ["--rows", *self.rows, "--columns", *self.columns, "--move", "--seconds", "1e9"]
        command += ["--quick"] * bool(options.quick)
        for name in ("threads", "repeats", "timeout", "data_dir", "dgl_python", "out"):
            if (value := getattr(options, name)) is not None:
                command += [f"--{name.replace('_', '-')}", str(value)]
        return command


def groups_of(planned: Mapping[str, Sequence[Planned]]) -> list[Group]:
    """The groups of what is missing, paper -> its cells; the cheapest first."""
    found: dict[tuple[str, str, What, str], list[Planned]] = {}
    for paper, cells in planned.items():
        for cell in cells:
            found.setdefault((paper, cell.table, cell.what, cell.together), []).append(cell)
    groups = [
        Group(
            paper, table, what, tuple(dict.fromkeys(cell.row for cell in cells)),
            tuple(dict.fromkeys(cell.column for cell in cells)), sum(cell.seconds for cell in cells),
        )
        for (paper, table, what, _), cells in found.items()
    ]  # fmt: skip
    return sorted(groups, key=lambda group: group.seconds)


Plan = Callable[[Paper, Namespace], list[Planned]]


def missing_of(papers: Iterable[Paper], options: Namespace, plan: Plan) -> list[Group]:
    groups = groups_of({paper.name: plan(paper, options) for paper in papers})
    return [group for group in groups if group.what in options.measure]


def fill(papers: Sequence[Paper], options: Namespace, plan: Plan) -> int:
    """Measures until nothing is missing, or until `--minutes` have passed; no group is begun that would end later.

    Estimates are corrected by what the groups of this call took. 1 is returned if a group failed.
    """
    end = time.monotonic() + 60 * options.minutes
    tried: set[str] = set()
    estimated = taken = 0.0
    failed = 0
    while groups := [group for group in missing_of(papers, options, plan) if group.name not in tried]:
        pace = taken / estimated if estimated else 1.0
        group = groups[0]
        if time.monotonic() + pace * group.seconds > end:
            break
        tried.add(group.name)
        ended = run_within(group.command(options), int(options.memory * GIB))
        print(_line(group, ended), flush=True)
        estimated, taken, failed = estimated + group.seconds, taken + ended.seconds, failed + bool(ended.code)
    left = missing_of(papers, options, plan)
    hours = sum(group.seconds for group in left) / 3600 * (taken / estimated if estimated else 1.0)
    print(f"{len(left)} groups of cells are missing, about {hours:.1f} hours" + f"; {failed} failed" * bool(failed))
    return int(failed > 0)


def _line(group: Group, ended: Ended) -> str:
    killed = f", {ended.killed} killed for memory" if ended.killed else ""
    status = "" if ended.code == 0 else f", exit {ended.code}: {ended.last}"
    return f"{group.name}: {ended.seconds:.0f} s, {ended.peak / GIB:.1f} GiB{killed}{status}"


def listed(groups: Sequence[Group]) -> Iterable[str]:
    """A line for each group, and the sum."""
    for group in groups:
        yield f"{group.seconds:8.0f} s  {group.name}"
    by_what = {what: sum(group.seconds for group in groups if group.what == what) for what in ("time", "memory")}
    yield f"{len(groups)} groups; " + ", ".join(
        f"{what}: {seconds / 3600:.1f} hours" for what, seconds in by_what.items()
    )
