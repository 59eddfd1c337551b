"""What a paper's table or figure holds: cells of (row, column, system)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

OURS = "graphweave"
"""The system whose numbers are this package's."""

Kind = Literal["table", "heat map", "lines", "bars"]
"""How a panel is drawn. A table is printed only."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One number of one system. `value` is None if there is none, and `status` says why. `paper`: the paper printed it.

    `q1` and `q3` are quartiles of what was measured here, on the panel's machine number `machine`.
    """

    row: str
    column: str
    system: str
    value: float | None
    paper: bool = False
    status: str = "ok"
    q1: float | None = None
    q3: float | None = None
    machine: int | None = None


ONE_MACHINE: dict[Kind, Callable[[Cell], str]] = {"lines": lambda cell: cell.row, "heat map": lambda cell: ""}
"""The kinds whose numbers are read along a line or over a map. Cells for which the function gives the same must be of
one machine: those of a row of lines, and all of a heat map."""


@dataclass(slots=True)
class Panel:
    """One table or figure. `about` says what was measured here and at which scale. `unit` is s, ms, MiB or another.

    Ratios to graphweave are shown for times and memory (`compares`).
    """

    name: str
    title: str
    unit: str
    about: str
    kind: Kind = "table"
    rows: str = ""
    columns: str = ""
    cells: list[Cell] = field(default_factory=list)
    machines: list[dict[str, Any]] = field(default_factory=list)
    """What `bench.common.machine` said where it was measured, for each machine. A row of lines, or a heat map, has one
    only. The systems of one cell, which are compared, are always measured on one."""

    missing: list[str] = field(default_factory=list)
    """The "row column" of cells that were not measured yet."""

    def of_others(self, place: int | None, cells: Iterable[Cell]) -> list[Cell]:
        """The measured cells of other machines than number `place` that must be of the one that `cells` are of."""
        together = ONE_MACHINE.get(self.kind)
        if together is None:
            return []
        found = {together(cell) for cell in cells}
        return [c for c in self.cells if c.machine not in (None, place) and not c.paper and together(c) in found]

    def printed(self, system: str, row: str, numbers: Mapping[str, float | str]) -> None:
        """Adds a row of the paper's own numbers, column by column. A text such as "OOM" is a status."""
        for column, number in numbers.items():
            known = not isinstance(number, str)
            value, status = (float(number), "ok") if known else (None, str(number))
            self.cells.append(Cell(row, column, system, value, paper=True, status=status))

    def measured(self, system: str, row: str, column: str, answer: Mapping[str, Any], scale: float = 1.0) -> None:
        """Adds what `take_turns` found for a system, times `scale`; without a median its status is the reason."""
        if "median" not in answer:
            self.cells.append(Cell(row, column, system, None, status=str(answer.get("status", "was not measured"))))
            return
        value, q1, q3 = (scale * answer[name] for name in ("median", "q1", "q3"))
        self.cells.append(Cell(row, column, system, value, q1=q1, q3=q3))

    def value(self, system: str, row: str, column: str, number: float | None, status: str = "ok") -> None:
        """Adds a single number without quartiles, such as bytes."""
        self.cells.append(Cell(row, column, system, number, status=status))

    def peak(self, system: str, row: str, column: str, peak: int | str) -> None:
        """Adds a peak of memory in MiB, from bytes or the reason why there is none."""
        if isinstance(peak, str):
            self.value(system, row, column, None, peak)
        else:
            self.value(system, row, column, peak / 2**20)

    def find(self, row: str, column: str, system: str, *, paper: bool) -> Cell | None:
        wanted = (row, column, system, paper)
        return next((c for c in self.cells if (c.row, c.column, c.system, c.paper) == wanted), None)

    def number(self, system: str, row: str, column: str) -> float | None:
        """The number that was measured here, if there is one."""
        cell = self.find(row, column, system, paper=False)
        return None if cell is None else cell.value

    @property
    def compares(self) -> bool:
        """Whether a number divided by graphweave's says how much better graphweave is."""
        return self.unit in ("s", "ms", "MiB")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def panel_of(record: Mapping[str, Any]) -> Panel:
    return Panel(**{**record, "cells": [Cell(**cell) for cell in record["cells"]]})
