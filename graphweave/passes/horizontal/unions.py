"""Disjoint unions of spaces and the maps between them. Each union is made once, when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from graphweave.core.lines import Location
from graphweave.core.sizes import Size, total
from graphweave.core.types import UNIT, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder

Segments: TypeAlias = tuple[Space, ...]
"""The spaces of a union, in order; a segment of shared data is one row."""


@dataclass(frozen=True, slots=True)
class Picked:
    """Where the rows of several segments lie: of segment k in segment `at[k]` of the value `ref` on the union `of`."""

    ref: ir.Ref
    of: Segments
    at: tuple[int, ...]


class Unions:
    """`space(segments)` is the union of the segments. The union of one segment is its own space.

    `moved(ref)` says where a node of the original `program` is in the one that `build` builds.
    """

    def __init__(self, program: ir.Program, build: Builder, moved: Callable[[ir.Ref], ir.Ref]) -> None:
        self.build = build
        self.made: dict[Segments, Space] = {}
        self._program, self._moved = program, moved
        self._rows = dict(program.spaces)
        self._taken = {s.name for s in self._rows}
        self.made.update(_unions_of(program))

    def declared(self) -> tuple[tuple[Space, Size | None], ...]:
        """All unions that the program does not have, with their row counts."""
        return tuple(
            (s, _total(1 if m == UNIT else self._rows[m] for m in of))
            for of, s in self.made.items()
            if s not in self._rows
        )

    def space(self, of: Segments) -> Space:
        if len(of) == 1:
            return of[0]
        if of not in self.made:
            self.made[of] = self._fresh("R" if of[0] == UNIT else "U")
        return self.made[of]

    def _fresh(self, letter: str) -> Space:
        n = 0
        while f"{letter}{n}" in self._taken:
            n += 1
        self._taken.add(f"{letter}{n}")
        return Space(f"{letter}{n}")

    # -------------------------------------------------------- maps

    def joined(self, maps: Sequence[ir.Ref], of: Segments, at: Sequence[int], loc: Location) -> ir.Ref:
        """Maps of the original as one: from the union of their domains to that of `of`, map k to segment at[k]."""
        nodes = [self._program.nodes[m] for m in maps]
        assert all(isinstance(n, ir.MapOf) for n in nodes)
        indices = [n.index for n in nodes if isinstance(n, ir.MapOf)]
        wraps = tuple(n.wrap for n in nodes if isinstance(n, ir.MapOf))
        doms = tuple(_value(self._program, r).space for r in indices)
        if len(maps) == 1 and len(of) == 1:
            return self.build.add(ir.MapOf(self._moved(indices[0]), of[0], wraps[0]), loc)
        index = ir.JoinIndices(tuple(map(self._moved, indices)), of, tuple(at), wraps, self.space(doms))
        made = self.build.add(index, self._program.locs[maps[0]] or loc)
        return self.build.add(ir.MapOf(made, self.space(of)), loc)

    def rows(self, to: Segments, picked: Picked, loc: Location) -> ir.Ref | None:
        """The map from the union `to` to the picked rows of each of its segments; None if they lie there in order."""
        if to == picked.of and picked.at == tuple(range(len(to))):
            return None
        return self._map(ir.RowsOfSegments(picked.of, picked.at, self.space(to)), picked.of, loc)

    def types(self, of: Segments, number: Sequence[int], count: int, loc: Location) -> ir.Ref:
        """The map from the union `of` to `count` rows: all rows of segment k go to row number[k]."""
        if count == 1:
            return self.build.add(ir.ToUnit(self.space(of)), loc)
        return self._map(ir.NumbersOfSegments(of, tuple(number), self.space(of)), (UNIT,) * count, loc)

    def fold(self, of: Segments, to: Segments, at: Sequence[int], loc: Location) -> ir.Ref:
        """The map from the union `of` to that of `to` that sends segment k to segment at[k], row by row."""
        if len(to) == 1 and to[0] == UNIT:
            return self.build.add(ir.ToUnit(self.space(of)), loc)
        return self._map(ir.RowsOfSegments(to, tuple(at), self.space(of)), to, loc)

    def _map(self, index: ir.RowsOfSegments | ir.NumbersOfSegments, cod: Segments, loc: Location) -> ir.Ref:
        return self.build.add(ir.MapOf(self.build.add(index, loc), self.space(cod)), loc)


def _unions_of(program: ir.Program) -> dict[Segments, Space]:
    """The unions that a program has already, by their segments."""
    made: dict[Segments, Space] = {}
    for ref, node in enumerate(program.nodes):
        if isinstance(node, ir.Join):
            made.setdefault(tuple(_value(program, x).space for x in node.xs), _value(program, ref).space)
        elif isinstance(node, ir.Part):
            made.setdefault(node.of, _value(program, node.x).space)
    return {of: space for of, space in made.items() if set(of) != {UNIT}}


def _value(program: ir.Program, ref: ir.Ref) -> ir.Type:
    t = program.types[ref]
    assert isinstance(t, ir.Type)
    return t


def _total(rows: Iterable[Size | None]) -> Size | None:
    """The sum of row counts; None if one of them is None."""
    known = list(rows)
    counted = [n for n in known if n is not None]
    return total(*counted) if len(counted) == len(known) else None
