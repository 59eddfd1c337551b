"""Limits on the rows and edges that a kernel computes (`analysis/row_limits.py` finds them)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from graphweave.core.types import Space
from graphweave.ir.message.types import Ref
from graphweave.ir.tape.types import TAPE, Mapped

limit, part = TAPE.union("Limit"), TAPE.union("part of a limit")


@limit("rows of {space}")
@dataclass(frozen=True, slots=True)
class RowsOf:
    """The limit is the number of rows of `space`."""

    space: Space


@limit("reach({walked}, {to}, {below})")
@dataclass(frozen=True, slots=True)
class Reach:
    """One more than the largest row to which `to` sends an edge that `walked` sends to a row below `below`; 0 if there
    is no such edge. `walked` and `to` are maps of the same edges."""

    walked: Mapped
    to: Mapped
    below: Limit


@limit("most({of})")
@dataclass(frozen=True, slots=True)
class Most:
    """The largest of some limits; 0 if there are none."""

    of: frozenset[Limit]


@limit("least({of})")
@dataclass(frozen=True, slots=True)
class Least:
    """The smallest of some limits, at least one."""

    of: frozenset[Limit]


Limit: TypeAlias = RowsOf | Reach | Most | Least


@part("{map} below {below}")
@dataclass(frozen=True, slots=True)
class Behind:
    """The edges that `map` sends to a row below `below`."""

    map: Mapped
    below: Limit


def maps_in(limit: Limit) -> Iterator[Ref]:
    match limit:
        case Reach(walked, to, below):
            yield from (walked, to, *maps_in(below))
        case Most(of) | Least(of):
            for one in of:
                yield from maps_in(one)


def spaces_in(limit: Limit) -> Iterator[Space]:
    match limit:
        case RowsOf(space):
            yield space
        case Reach(below=below):
            yield from spaces_in(below)
        case Most(of) | Least(of):
            for one in of:
                yield from spaces_in(one)


@part("to| {rows}|| edges {edges}|| zeros [{zeros}]|")
@dataclass(frozen=True, slots=True)
class StepLimit:
    """Limits on what one kernel computes."""

    rows: Limit | None
    """Only rows below it are computed; None for all."""

    edges: Behind | None
    """Only these edges are walked; None for all. The others would add zeros."""

    zeros: tuple[tuple[Ref, Limit | None], ...]
    """Values that the kernel writes, and the limit up to which rows that are not computed are set to zero; None for all
    rows."""

    @property
    def limits(self) -> tuple[Limit, ...]:
        every = self.rows, None if self.edges is None else self.edges.below, *(upto for _, upto in self.zeros)
        return tuple(x for x in every if x is not None)

    @property
    def maps(self) -> frozenset[Ref]:
        own = () if self.edges is None else (self.edges.map,)
        return frozenset((*own, *(m for limit in self.limits for m in maps_in(limit))))

    @property
    def spaces(self) -> frozenset[Space]:
        return frozenset(s for limit in self.limits for s in spaces_in(limit))
