"""Prints a panel: rows by columns, the paper's systems first, then those measured here, and ratios to graphweave."""

from __future__ import annotations

from collections.abc import Iterator

from bench.common import ratio_table
from bench.papers.cells import OURS, Cell, Panel
from bench.runner import short


def names(values: Iterator[str]) -> list[str]:
    """The values in order, each once."""
    return list(dict.fromkeys(values))


def number(value: float) -> str:
    """Three significant digits, in plain notation."""
    if value == 0:
        return "0"
    digits = max(0, 2 - int(f"{abs(value):e}".partition("e")[2]))
    return f"{value:.{digits}f}"


def text_of(cell: Cell | None, *, whole: bool) -> str:
    """`whole`: numbers are counts, which are printed without a point."""
    if cell is None:
        return "-"
    if cell.value is None:
        return short(cell.status)
    return f"{cell.value:.0f}" if whole else number(cell.value)


def headings(panel: Panel) -> list[tuple[str, bool]]:
    """(system, whether the paper printed it): the paper's systems, then graphweave, then its peers here."""
    seen = {(c.system, c.paper): None for c in panel.cells}
    return sorted(seen, key=lambda one: (not one[1], one[0] != OURS))


def lines(panel: Panel) -> tuple[list[str], list[list[str]]]:
    """The headings and rows of a panel. Each (row, column) that any system has is one line."""
    systems = headings(panel)
    peers = [system for system, paper in systems if not paper and system != OURS]
    ours = panel.compares and (OURS, False) in systems
    table = []
    for row, column in dict.fromkeys((c.row, c.column) for c in panel.cells):
        found = [panel.find(row, column, system, paper=paper) for system, paper in systems]
        own = panel.find(row, column, OURS, paper=False)
        line = [row, column, *(text_of(cell, whole=panel.unit == "lines") for cell in found)]
        if ours:
            line += [_ratio(panel.find(row, column, peer, paper=False), own) for peer in peers]
        if len(panel.machines) > 1:
            line.append(next((letter(c.machine) for c in found if c is not None and c.machine is not None), "-"))
        table.append(line)
    head = [panel.rows or "row", panel.columns or "column"]
    head += [f"paper: {system}" if paper else f"here: {system}" for system, paper in systems]
    head += [f"{peer} / {OURS}" for peer in peers] if ours else []
    return head + (["machine"] if len(panel.machines) > 1 else []), table


def letter(machine: int) -> str:
    """The name of a panel's machine: A, B, ..."""
    return chr(ord("A") + machine)


def _ratio(peer: Cell | None, own: Cell | None) -> str:
    if peer is None or own is None or not peer.value or not own.value:
        return "-"
    return f"{peer.value / own.value:.2f}x"


def print_panel(panel: Panel) -> None:
    head, table = lines(panel)
    ratio_table(f"{panel.name}: {panel.title} [{panel.unit}]\n{panel.about}", head, table)
