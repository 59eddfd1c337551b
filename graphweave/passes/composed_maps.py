"""Compositions of maps. None stands for the map to unit, as it does in products."""

from __future__ import annotations

from graphweave.core.lines import Location
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import MapOf, Pull, Ref


def composed(build: Builder, m: Ref | None, n: Ref, loc: Location) -> Ref | None:
    """The map r -> m(n(r)): pulling along m, then n, is pulling along it. None where m leads to unit."""
    if m is None:
        return None
    outer = build.nodes[m]
    assert isinstance(outer, MapOf)
    return build.add(MapOf(build.add(Pull(outer.index, n), loc), outer.cod, outer.wrap), loc)


def follows(build: Builder, t: Ref | None, m: Ref) -> bool:
    """Whether `t` is a composition with `m`, so that all rows that m sends to one row have the same t."""
    if t is None:
        return True
    node = build.nodes[t]
    index = build.nodes[node.index] if isinstance(node, MapOf) else None
    return isinstance(index, Pull) and index.map == m


def above(build: Builder, t: Ref | None, m: Ref, loc: Location) -> Ref | None:
    """The map a with t = a . m, for a `t` that follows `m`."""
    if t is None:
        return None
    node = build.nodes[t]
    assert isinstance(node, MapOf)
    index = build.nodes[node.index]
    assert isinstance(index, Pull) and index.map == m
    return build.add(MapOf(index.x, node.cod, node.wrap), loc)
