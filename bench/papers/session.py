"""One run of a paper's panels: what was measured before is kept, and each cell is saved when it is measured.

So a long table can be measured in pieces (`--seconds`, `--rows`, `--columns`), each of them on a machine that nothing
else uses.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from bench import common
from bench.papers.cells import Kind, Panel

What = Literal["time", "memory"]

QUICK = "Quick run on small graphs. "


class Session:
    """The panels of a run. `held` are those of the file, `save` writes all panels to it.

    `open` is whether the panels that are being made are asked for. If not, no cell of them is measured, and they show
    what the file has.
    """

    def __init__(
        self, options: argparse.Namespace, held: Mapping[str, Panel], save: Callable[[Mapping[str, Panel]], None]
    ) -> None:
        self.options = options
        self.panels: dict[str, Panel] = {}
        self.open = True
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

    def wants(self, row: str, column: str, *panels: Panel, what: What = "time") -> bool:
        """Whether a cell is to be measured now. A cell that has no number and is not measured now is noted as missing.

        A cell that the file has is measured only with `--again`. Its old numbers are dropped from all `panels`. `what`
        is what they show: "memory", also bytes moved, does not need a quiet machine (`--measure`).
        """
        for panel in panels:
            self._asked.setdefault(panel.name, []).append((row, column))
        held = any((c.row, c.column) == (row, column) and not c.paper for c in panels[0].cells)
        options = self.options
        chosen = row in (options.rows or [row]) and column in (options.columns or [column])
        chosen = chosen and what in options.measure
        if not (self.open and chosen and time.monotonic() < self._end) or (held and not options.again):
            if not held:
                for panel in panels:
                    panel.missing.append(f"{row} {column}")
            return False
        for panel in panels:
            panel.cells = [c for c in panel.cells if c.paper or (c.row, c.column) != (row, column)]
        return True

    def measured(self, *panels: Panel, machine: Mapping[str, Any] | None = None) -> None:
        """Notes the machine of the new cells, by default this one now, and writes the file. Call it after each cell.

        RuntimeError if lines or a heat map would have cells of two machines.
        """
        found = dict(machine or common.machine())
        for panel in panels:
            place = _place(panel, found)
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


def _place(panel: Panel, machine: dict[str, Any]) -> int:
    """The number of a machine among those of a panel, which gets it if it is new. The last description stays."""
    processors = [one["cpu"] for one in panel.machines]
    if machine["cpu"] in processors:
        panel.machines[place := processors.index(machine["cpu"])] = machine
        return place
    if panel.machines and panel.kind in ("lines", "heat map"):
        raise RuntimeError(
            f"the cells of {panel.name} must be of one machine, as it draws them together: the file has those of "
            f"{', '.join(processors)}, and these are of {machine['cpu']}. Give another --out, or leave it out (--only)."
        )
    panel.machines.append(machine)
    return len(panel.machines) - 1


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper: its title and venue, and the machine behind its numbers.

    `panels` makes each table and figure that a CPU can show; a function may make several. `left_out` names the others
    with the reason.
    """

    name: str
    title: str
    machine: str
    panels: Mapping[str, Callable[[Session], list[Panel]]]
    left_out: Mapping[str, str]
