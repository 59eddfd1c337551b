"""What integers of a program number, and which spaces have rows of other ranks beside a rank's own.

A space whose halo rows are read has a twin: own rows, then halo rows. The twin of a union of such spaces is the union
of their twins. Own rows have the same numbers in a space and in its twin, but for unions, whose later segments begin
elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from graphweave.core.types import Space
from graphweave.ir.message.nodes import Ref


@dataclass(frozen=True, slots=True)
class NumberedSegments:
    """The spaces of a union, and the node type of each whose rows of other ranks are named."""

    of: tuple[Space, ...]
    node_types: tuple[tuple[Space, str], ...]


@dataclass(frozen=True, slots=True)
class Numbers:
    """The value holds numbers of a rank's own rows, or with `leaves` of own and halo rows; of nodes of a type, of the
    rows of several types behind each other (`segments`), or of other rows."""

    node_type: str | None = None
    leaves: bool = False
    segments: NumberedSegments | None = None


@dataclass(frozen=True, slots=True)
class PairOfNumbers:
    """A tensor [2, n] of two indices, as `edge_index` is."""

    first: Numbers | None
    second: Numbers | None


Held: TypeAlias = Numbers | PairOfNumbers | None


@dataclass(frozen=True, slots=True)
class HaloRows:
    """`leaving` are the maps that lead to rows of other ranks, `node_types` the spaces that have such rows, each with
    the type of these nodes, and `unions` the spaces of several types behind each other, each with its segments."""

    leaving: frozenset[Ref] = frozenset()
    node_types: Mapping[Space, str] = field(default_factory=dict)
    unions: Mapping[Space, tuple[Space, ...]] = field(default_factory=dict)

    def of(self, space: Space) -> tuple[str, ...]:
        """The node types whose halo rows stand beside the own rows of `space`, once for each segment that has them."""
        found = (self.node_types.get(s) for s in self.unions.get(space, (space,)))
        return tuple(t for t in found if t is not None)

    def twin(self, space: Space) -> Space:
        """The space of own and halo rows; `space` itself if no halo rows of it are read."""
        return Space(f"{space.name}_all") if space in self.unions or space in self.node_types else space


def halo_of(space: Space) -> Space:
    """The space of a rank's halo rows of `space`."""
    return Space(f"{space.name}_halo")
