"""What is known of a graph when its program is compiled: how many rows each space has, about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphweave.core.types import UNIT, Space


@dataclass(frozen=True, slots=True)
class Statistics:
    """Row counts of one example of the graphs that the program will run on, as plain numbers: no tensor is read.

    Spaces that are not counted (their size depends on data) have `default` rows.
    """

    counted: tuple[tuple[Space, int], ...] = ()
    default: int = 10_000

    def rows(self, space: Space) -> int:
        if space == UNIT:
            return 1
        return dict(self.counted).get(space, self.default)


def statistics_of(rows: Mapping[Space, int]) -> Statistics:
    """Statistics of known row counts; what is not counted is taken to be as large as the largest."""
    counted = tuple(sorted(rows.items(), key=lambda item: item[0].name))
    return Statistics(counted, max(rows.values(), default=10_000))
