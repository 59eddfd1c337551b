"""The space of unique pairs of two maps' rows, such as (source, relation) (Hector, section 3.2.2).

For maps m: E -> V and t: E -> R it has one row for each pair (v, r) that some edge has, ordered by r, then v. Work on
edges that depends on m and t alone is done once for each pair.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphweave.core.lines import Location
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import Distinct, DistinctKey, DistinctRow, MapOf, Ref
from graphweave.ir.message.pairs import pairs_of


@dataclass(frozen=True, slots=True)
class PairMaps:
    """`pair: E -> P`, `first: P -> V` and `second: P -> R`, with m = first . pair and t = second . pair."""

    pair: Ref
    first: Ref
    second: Ref


def pair_maps(build: Builder, m: Ref, t: Ref) -> PairMaps:
    """The three maps of the pairs of `m` and `t`. One node, hoisted, makes the index tensors of all three."""
    a, b = build.nodes[m], build.nodes[t]
    assert isinstance(a, MapOf) and isinstance(b, MapOf)
    loc = build.locs[m]
    pairs = _pairs(build, a.index, b.index, loc)
    return PairMaps(
        pair_of(build, a.index, b.index, loc),
        build.add(MapOf(build.add(DistinctKey(pairs, 1), loc), a.cod, a.wrap), loc),
        build.add(MapOf(build.add(DistinctKey(pairs, 0), loc), b.cod, b.wrap), loc),
    )


def pair_of(build: Builder, a: Ref, b: Ref, loc: Location) -> Ref:
    """The map from each row to its pair; `a` and `b` are the two index tensors, one integer a row each."""
    rows = build.add(DistinctRow(_pairs(build, a, b, loc)), loc)
    return build.add(MapOf(rows, pairs_of(build.nodes, a, b)), loc)


def _pairs(build: Builder, a: Ref, b: Ref, loc: Location) -> Ref:
    return build.add(Distinct((b, a), pairs_of(build.nodes, a, b)), loc)
