"""The space of unique pairs of two maps' rows, such as (source, relation) (Hector, section 3.2.2).

For maps m: E -> V and t: E -> R it has one row for each pair (v, r) that some edge has, ordered by r, then v. Work on
edges that depends on m and t alone is done once for each pair.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphweave.core.lines import Location
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.pairs import pairs_of


@dataclass(frozen=True, slots=True)
class PairMaps:
    """`pair: E -> P`, `first: P -> V` and `second: P -> R`, with m = first . pair and t = second . pair."""

    pair: ir.Ref
    first: ir.Ref
    second: ir.Ref


def pair_maps(build: Builder, m: ir.Ref, t: ir.Ref) -> PairMaps:
    """The three maps of the pairs of `m` and `t`. One node, hoisted, makes the index tensors of all three."""
    a, b = build.nodes[m], build.nodes[t]
    assert isinstance(a, ir.MapOf) and isinstance(b, ir.MapOf)
    loc = build.locs[m]
    pairs = _pairs(build, a.index, b.index, loc)
    return PairMaps(
        pair_of(build, a.index, b.index, loc),
        build.add(ir.MapOf(build.add(ir.DistinctKey(pairs, 1), loc), a.cod, a.wrap), loc),
        build.add(ir.MapOf(build.add(ir.DistinctKey(pairs, 0), loc), b.cod, b.wrap), loc),
    )


def pair_of(build: Builder, a: ir.Ref, b: ir.Ref, loc: Location) -> ir.Ref:
    """The map from each row to its pair; `a` and `b` are the two index tensors, one integer a row each."""
    rows = build.add(ir.DistinctRow(_pairs(build, a, b, loc)), loc)
    return build.add(ir.MapOf(rows, pairs_of(build.nodes, a, b)), loc)


def _pairs(build: Builder, a: ir.Ref, b: ir.Ref, loc: Location) -> ir.Ref:
    return build.add(ir.Distinct((b, a), pairs_of(build.nodes, a, b)), loc)
