"""Starts for rewriting a program with typed products: weights first or not, pairs or edges (Hector, section 3.2).

Sometimes only both together pay, and sometimes a later move undoes the gain of either. So the program is rewritten from
each start to the end, and the cheapest result is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from graphweave.analysis.facts import Facts
from graphweave.analysis.statistics import Statistics
from graphweave.core.types import Space
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import MapOf, Program, Ref
from graphweave.ir.message.pairs import pair_space
from graphweave.passes.moves import Moves, bases, compactions, pairs_in, reorderings, typed_pushes
from graphweave.passes.pair_space import pair_maps
from graphweave.passes.pass_facts import Measure


@dataclass(frozen=True, slots=True)
class Start:
    """The change that is made before all other moves, whether or not it gains.

    `reorder`: products of weights come first. `compact`: work on pairs such as (source, relation) is done once a pair.
    """

    reorder: bool
    compact: bool

    @property
    def name(self) -> str:
        said = [word for word, done in (("compact", self.compact), ("reorder", self.reorder)) if done]
        return " and ".join(said) or "neither compact nor reorder"


@dataclass(frozen=True, slots=True)
class Relational:
    """The user's choices: True always does it, False never does it, None leaves it to the cost model."""

    compact: bool | None = None
    reorder: bool | None = None

    def decided(self) -> Relational:
        """The choices without the cost model, which does what it is left to decide no more."""
        return Relational(self.compact is True, self.reorder is True)

    def starts(self) -> tuple[Start, ...]:
        return tuple(Start(r, c) for r, c in product(_either(self.reorder), _either(self.compact)))

    def moves(self) -> tuple[Moves, ...]:
        """Moves that may follow, each if it gains.

        Fused pushes come before compaction, which leaves nothing to fuse; the start that compacts tries that order.
        Other moves make grams that no start can compact, since they were parts of sums.
        """
        reorders, compacts = self.reorder is None, self.compact is not False
        free = ((reorders, reorderings), (True, bases), (True, typed_pushes), (compacts, compactions))
        return tuple(make for may, make in free if may)


def _either(decided: bool | None) -> tuple[bool, ...]:
    return (False, True) if decided is None else (decided,)


def with_pairs(program: Program, statistics: Statistics, measure: Measure | None) -> Statistics:
    """`statistics` with the number of pairs of every two maps that meet in a typed product."""
    pairs = () if measure is None else pairs_in(program)
    if measure is None or not pairs:
        return statistics
    counted, build, indices = dict(statistics.counted), Builder.of(program), dict[Space, Ref]()
    for m, t in pairs:
        space = pair_space(build.nodes, m, t)
        if space not in counted:
            first = build.nodes[pair_maps(build, m, t).first]
            assert isinstance(first, MapOf)
            indices[space] = first.index
    facts = Facts(build.program(indices.values(), [*program.spaces, *((space, None) for space in indices)]))
    for space, index in indices.items():
        rows = measure(facts, index)
        if rows is not None:
            counted[space] = rows
    return replace(statistics, counted=tuple(counted.items()))
