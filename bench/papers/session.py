"""One run of a paper's panels: what was measured before is kept, and each cell is saved when it is measured.

So a long table can be measured in pieces (`--seconds`, `--rows`, `--columns`), each of them on a machine that nothing
else uses. `bench.papers.fill` does so for all cells that are missing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from bench import common
from bench.papers.cells import Cell, Kind, Panel
from bench.papers.headlines import Headline

What = Literal["time", "memory"]

Need = Literal[
    "a GPU", "more than two cores", "data that nobody may redistribute", "a system that does not run here",
    "another kind of kernel",
]  # fmt: skip
"""The reason why a panel of a paper cannot be shown here."""

QUICK = "Quick run on small graphs. "


@dataclass(frozen=True, slots=True)
class Planned:
    """A cell that has no number yet, and the estimated seconds that it takes to measure.

    Cells of one `table` with the same `together` are measured in turns, so they are measured by one run.
    """

    table: str
    row: str
    column: str
    what: What
    seconds: float
    together: str


class Session:
    """The panels of a run. `held` are those of the file, `save` writes all panels to it.

    `open` is whether the panels that are being made are asked for. If not, no cell of them is measured, and they show
    what the file has. `table` is their name among those of the paper, and `planned` has all cells without a number that
    are not measured in this run.
    """

    def __init__(
        self, options: argparse.Namespace, held: Mapping[str, Panel], save: Callable[[Mapping[str, Panel]], None]
    ) -> None:
        self.options = options
        self.panels: dict[str, Panel] = {}
        self.open, self.table = True, ""
        self.planned: list[Planned] = []
        self._held, self._save = held, save
        self._asked: dict[str, list[tuple[str, str]]] = {}
        self._end = time.monotonic() + options.seconds

    def panel(
        self, name: str, title: str, unit: str, about: str, kind: Kind = "table", *, rows: str = "row",
        columns: str = "column", source: Panel | None = None,
    ) -> Panel:  # fmt: skip
        """A panel with the cells that the file has; the paper's own are for the caller to add.

        A panel with a `source` is computed from that one, so it starts empty and has its machines.
        """
        panel = Panel(name, title, unit, QUICK * bool(self.options.quick) + about, kind, rows, columns)
        held = self._held.get(name)
        if source is not None:
            panel.machines = source.machines
        elif held is not None:
            panel.cells = [cell for cell in held.cells if not cell.paper]
            panel.machines = held.machines
        self.panels[name] = panel
        return panel

    def wants(
        self, row: str, column: str, *panels: Panel, seconds: float, what: What = "time", together: str = ""
    ) -> bool:
        """Whether a cell is to be measured now. A cell that has no number and is not measured now is noted as missing.

        A cell that the file has is measured only with `--again`. Its old numbers are dropped from all `panels`. `what`
        is what they show: "memory", also bytes moved, does not need a quiet machine (`--measure`). `seconds` is what
        the cell will take, by an estimate, and `together` a name of the cells that are measured in turns with it.
        """
        for panel in panels:
            self._asked.setdefault(panel.name, []).append((row, column))
        held = any((c.row, c.column) == (row, column) and not c.paper for c in panels[0].cells)
        options = self.options
        chosen = row in (options.rows or [row]) and column in (options.columns or [column])
        chosen = chosen and what in options.measure
        if not (self.open and chosen and time.monotonic() < self._end) or (held and not options.again):
            if not held:
                self.planned.append(Planned(self.table, row, column, what, seconds, together or f"{row} {column}"))
                for panel in panels:
                    panel.missing.append(f"{row} {column}")
            return False
        for panel in panels:
            if options.move:
                others = panel.of_others(_known(panel, self._processor), [Cell(row, column, "", None)])
                panel.cells = [cell for cell in panel.cells if cell not in others]
                if others and all(cell.machine is None for cell in panel.cells):
                    panel.machines.clear()
            panel.cells = [c for c in panel.cells if c.paper or (c.row, c.column) != (row, column)]
        return True

    @cached_property
    def _processor(self) -> str:
        return str(common.machine()["cpu"])

    def measured(self, *panels: Panel, machine: Mapping[str, Any] | None = None) -> None:
        """Notes the machine of the new cells, by default this one now, and writes the file. Call it after each cell.

        RuntimeError if a row of lines, or a heat map, would have cells of two machines.
        """
        found = dict(machine or common.machine())
        for panel in panels:
            place = _place(panel, found)
            new = [cell for cell in panel.cells if not cell.paper and cell.machine is None]
            if others := panel.of_others(place, new):
                raise RuntimeError(_of_two_machines(panel, others[0], found["cpu"]))
            panel.cells = [c if c.paper or c.machine is not None else replace(c, machine=place) for c in panel.cells]
        self.save()

    def sort(self, panel: Panel) -> None:
        """Puts the cells into the order in which they were wanted, rows first; others follow as they are."""
        pairs = [*self._asked.get(panel.name, ()), *((cell.row, cell.column) for cell in panel.cells)]
        rows, columns = (list(dict.fromkeys(names)) for names in zip(*pairs, strict=True)) if pairs else ([], [])
        panel.cells.sort(key=lambda cell: (rows.index(cell.row), columns.index(cell.column)))

    def save(self) -> None:
        """Panels that the run has not come to yet are written as the file had them."""
        self._save({**self._held, **self.panels})


def _known(panel: Panel, processor: str) -> int | None:
    """The number of the panel's machine with this processor."""
    return next((i for i, one in enumerate(panel.machines) if one["cpu"] == processor), None)


def _place(panel: Panel, machine: dict[str, Any]) -> int:
    """The number of a machine among those of a panel, which gets it if it is new. The last description stays."""
    place = _known(panel, machine["cpu"])
    if place is None:
        panel.machines.append(machine)
        return len(panel.machines) - 1
    panel.machines[place] = machine
    return place


def _of_two_machines(panel: Panel, other: Cell, processor: str) -> str:
    assert other.machine is not None
    return (
        f"the cells of {panel.name}{f', {other.row}' if panel.kind == 'lines' else ''} must be of one machine, as they "
        f"are read together: the file has those of {panel.machines[other.machine]['cpu']}, and these are of "
        f"{processor}. Give another --out, leave it out (--only, --rows), or drop the others (--move)."
    )


@dataclass(frozen=True, slots=True)
class Gap:
    """A panel of a paper, or a peer in it, that is not shown: what it `needs`, and a sentence that says why."""

    what: str
    needs: Need
    why: str


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper: its title and venue, and the machine behind its numbers.

    `panels` makes each table and figure that a CPU can show; a function may make several. `left_out` names the others.
    `reasons` says for a "panel", or for a "panel, peer", why graphweave is worse there.
    """

    name: str
    title: str
    machine: str
    panels: Mapping[str, Callable[[Session], list[Panel]]]
    left_out: tuple[Gap, ...]
    headlines: tuple[Headline, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def short(self) -> str:
        """The title up to a colon."""
        return self.title.partition(":")[0]
