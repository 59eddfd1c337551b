"""The space of unique pairs of two maps' rows: (source, relation) above all (Hector, section 3.2.2).

Of two maps m: E -> V and t: E -> R it has one row for each (v, r) that some edge has, ordered by r, then v. What edges
compute from m and t alone, they compute once for each pair.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphweave.core.types import DType, Space
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import Aten, MapOf, Operand, Program, Ref, Type
from graphweave.ir.message.pairs import pair_space, pairs_of, pairs_type

UNIQUE_PAIRS = "builtin._unique_pairs"
"""(rows of a, rows of b) -> the pair of each, the a of each pair, the b of each pair."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """`pair: E -> P`, `first: P -> V` and `second: P -> R`, with m = first . pair and t = second . pair."""

    pair: Ref
    first: Ref
    second: Ref


def pair_maps(build: Builder, m: Ref, t: Ref) -> Pairs:
    """The three maps of the pairs of `m` and `t`, whose index tensors a call makes once a graph."""
    a, b = build.nodes[m], build.nodes[t]
    assert isinstance(a, MapOf) and isinstance(b, MapOf)
    space, loc = pair_space(build.nodes, m, t), build.locs[m]
    return Pairs(
        pair_of(build, a.index, b.index, loc),
        build.add(MapOf(_item(build, a.index, b.index, 1, space, loc), a.cod, a.wrap), loc),
        build.add(MapOf(_item(build, a.index, b.index, 2, space, loc), b.cod, b.wrap), loc),
    )


def pair_of(build: Builder, a: Ref, b: Ref, loc: str) -> Ref:
    """The map of each row to its pair of `a` and `b`, one integer a row each."""
    t = build.types[a]
    assert isinstance(t, Type)
    return build.add(MapOf(_item(build, a, b, 0, t.space, loc), pairs_of(build.nodes, a, b)), loc)


def _item(build: Builder, a: Ref, b: Ref, i: int, of: Space, loc: str) -> Ref:
    call = build.add(Aten(UNIQUE_PAIRS, (Operand(a), Operand(b)), (), pairs_type(pairs_of(build.nodes, a, b))), loc)
    return build.add(Aten("builtin.getitem", (Operand(call), i), (), Type(of, (), DType.i64)), loc)


def pair_call(program: Program, space: Space) -> Ref | None:
    """The call that finds the pairs of `space`, if it is there; its second and third item have a row for each."""
    made = pairs_type(space)
    return next((r for r, t in enumerate(program.types) if t == made), None)
