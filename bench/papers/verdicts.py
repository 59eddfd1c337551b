"""Counts the cells of a paper's panels in which graphweave is better than each peer, equal, and worse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import geometric_mean

from bench.papers.cells import OURS, Panel
from bench.papers.headlines import MARGIN


def _peers(panel: Panel) -> list[str]:
    """The other systems of a panel that were measured here. Forms of graphweave are no peers."""
    names = dict.fromkeys(cell.system for cell in panel.cells if not cell.paper)
    return [name for name in names if not name.startswith(OURS)]


def _ratios(panel: Panel, peer: str) -> tuple[dict[str, float], int]:
    """Cell -> the peer's number over graphweave's, and the number of cells where only graphweave has one."""
    found, alone = {}, 0
    for row, column in dict.fromkeys((cell.row, cell.column) for cell in panel.cells):
        own, theirs = panel.number(OURS, row, column), panel.find(row, column, peer, paper=False)
        if not own or theirs is None:
            continue
        if theirs.value:
            found[f"{row} {column}"] = theirs.value / own
        else:
            alone += 1
    return found, alone


def compared(panels: Mapping[str, Panel]) -> Iterator[list[str]]:
    """Rows: panel, peer, cells that are better, equal, worse, that the peer cannot run, the mean ratio, the worst."""
    for panel in panels.values():
        for peer in _peers(panel) if panel.compares else ():
            ratios, alone = _ratios(panel, peer)
            if not ratios and not alone:
                continue
            better = sum(ratio >= MARGIN for ratio in ratios.values())
            worse = sum(ratio * MARGIN <= 1 for ratio in ratios.values())
            counts = [better, len(ratios) - better - worse, worse, alone]
            mean = f"{geometric_mean(ratios.values()):.2f}x" if ratios else "-"
            worst = min(ratios, key=lambda name: ratios[name], default=None)
            last = f"{ratios[worst]:.2f}x ({worst})" if worst is not None else "-"
            yield [panel.name, peer, *map(str, counts), mean, last]


def summary(panels: Mapping[str, Panel]) -> str:
    """How many cells are better, equal and worse than each of the peers, together, in a sentence."""
    rows = list(compared(panels))
    better, equal, worse, alone = (sum(int(row[i]) for row in rows) for i in (2, 3, 4, 5))
    return (
        f"Of {better + equal + worse} comparisons with a system that runs here, graphweave is better in {better}, "
        f"equal in {equal} and worse in {worse}; in {alone} more the other system needs more memory or time than there "
        "is, or has no such layer."
    )


def unexplained(panels: Mapping[str, Panel], reasons: Mapping[str, str]) -> list[str]:
    """The panels and peers that have a cell where graphweave is worse, if no reason names the panel or both."""
    found = []
    for panel in panels.values():
        for peer in _peers(panel) if panel.compares else ():
            worse = sum(ratio * MARGIN <= 1 for ratio in _ratios(panel, peer)[0].values())
            if worse and not {panel.name, f"{panel.name}, {peer}"} & reasons.keys():
                found.append(f"{panel.name} against {peer} ({worse} cells)")
    return found
