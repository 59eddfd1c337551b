"""The headlines of the papers, and what was measured here in their place: beaten, met, missed, or not measured yet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from statistics import geometric_mean

from bench.papers.cells import OURS, Panel

Panels = Mapping[str, Panel]
"""The panels of a paper by name."""

MARGIN = 1.05
"""Two numbers count as equal if they differ by less than this factor, which is what a rerun moves them by."""


@dataclass(frozen=True, slots=True)
class Found:
    """A number that was measured here in a headline's place, and what it is over."""

    value: float
    over: str


@dataclass(frozen=True, slots=True)
class Headline:
    """A paper's claim that its system is `printed` times as good as another, and how it is asked here.

    `find` gives the number from the paper's panels, or None where no cell of them has been measured.
    """

    claim: str
    printed: float
    find: Callable[[Panels], Found | None]

    def row(self, panels: Panels) -> tuple[str, str, str, str, str]:
        """Claim, the paper's number, ours, what ours is over, and the verdict."""
        found = self.find(panels)
        printed = f"{self.printed:.3g}x"
        if found is None:
            return self.claim, printed, "-", "-", "not measured yet"
        return self.claim, printed, f"{found.value:.3g}x", found.over, verdict(found.value, self.printed)


def verdict(ours: float, printed: float) -> str:
    if ours >= MARGIN * printed:
        return "beaten"
    return "met" if ours * MARGIN >= printed else "missed"


def ratios(
    panels: Panels, name: str, peers: Collection[str], rows: Collection[str] = (), columns: Collection[str] = (),
    own: str = OURS,
) -> dict[str, float]:  # fmt: skip
    """Cell -> the number of the best of `peers` over that of the system `own`, where both have one."""
    panel = panels.get(name)
    found: dict[str, float] = {}
    for row, column in dict.fromkeys((c.row, c.column) for c in panel.cells) if panel is not None else ():
        if (rows and row not in rows) or (columns and column not in columns):
            continue
        assert panel is not None
        ours = panel.number(own, row, column)
        theirs = [number for peer in peers if (number := panel.number(peer, row, column))]
        if ours and theirs:
            found[f"{row} {column} ({name})"] = min(theirs) / ours
    return found


Asked = Callable[[Panels], dict[str, float]]


def over(name: str, *peers: str, rows: Collection[str] = (), columns: Collection[str] = (), own: str = OURS) -> Asked:
    """The ratios of a panel."""
    return lambda panels: ratios(panels, name, peers, rows, columns, own)


def both(*asked: Asked) -> Asked:
    """The ratios of several panels."""

    def every(panels: Panels) -> dict[str, float]:
        return {name: value for one in asked for name, value in one(panels).items()}

    return every


def _cells(found: Collection[str]) -> str:
    return "one cell" if len(found) == 1 else f"{len(found)} cells"


def highest(asked: Asked) -> Callable[[Panels], Found | None]:
    def find(panels: Panels) -> Found | None:
        found = asked(panels)
        name = max(found, key=lambda one: found[one], default=None)
        return None if name is None else Found(found[name], f"the highest of {_cells(found)}: {name}")

    return find


def mean(asked: Asked) -> Callable[[Panels], Found | None]:
    def find(panels: Panels) -> Found | None:
        found = asked(panels)
        if not found:
            return None
        what = "one cell" if len(found) == 1 else f"the geometric mean of {len(found)} cells"
        return Found(geometric_mean(found.values()), what)

    return find


def lowest(asked: Asked) -> Callable[[Panels], Found | None]:
    def find(panels: Panels) -> Found | None:
        found = asked(panels)
        return Found(min(found.values()), f"the lowest of {_cells(found)}") if found else None

    return find
