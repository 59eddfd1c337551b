"""Facts about a graph that are known when a program is compiled: about how many rows each space has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from graphweave.core.types import UNIT, Space


@dataclass(frozen=True, slots=True)
class Statistics:
    """Row counts of one example of the graphs that the program will run on, as plain numbers: no tensor is read.

    Spaces that are not counted (their size depends on data) are taken to have `default` rows.
    """

    counted: tuple[tuple[Space, int], ...] = ()
    default: int = 10_000
    _rows: dict[Space, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rows", {**dict(self.counted), UNIT: 1})

    def rows(self, space: Space) -> int:
        return self._rows.get(space, self.default)


def statistics_of(rows: Mapping[Space, int]) -> Statistics:
    """Statistics of known row counts; spaces that are not counted are taken to be as large as the largest."""
    counted = tuple(sorted(rows.items(), key=lambda item: item[0].name))
    return Statistics(counted, max(rows.values(), default=10_000))


def with_unions(
    statistics: Statistics, unions: Iterable[tuple[Space, tuple[Space, ...]]], counted: Iterable[tuple[Space, int]] = ()
) -> Statistics:
    """`statistics` with the rows of other spaces that were `counted`, and of disjoint unions of its spaces."""
    unions, counted = tuple(unions), tuple(counted)
    if counted:
        statistics = Statistics((*statistics.counted, *counted), statistics.default)
    if not unions:
        return statistics
    known = dict(statistics.counted)
    sums = tuple((u, sum(1 if s == UNIT else known.get(s, statistics.default) for s in of)) for u, of in unions)
    return Statistics((*statistics.counted, *sums), statistics.default)
