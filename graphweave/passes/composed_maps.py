"""Maps made of other maps, as products name them: None is the map to unit."""

from __future__ import annotations

from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import MapOf, Pull, Ref


def composed(build: Builder, m: Ref | None, n: Ref, loc: str) -> Ref | None:
    """The map r -> m(n(r)), along which a value is pulled that was pulled along m; None where m leads to unit."""
    if m is None:
        return None
    outer = build.nodes[m]
    assert isinstance(outer, MapOf)
    return build.add(MapOf(build.add(Pull(outer.index, n), loc), outer.cod, outer.wrap), loc)


def follows(build: Builder, t: Ref | None, m: Ref) -> bool:
    """Whether `t` is made of `m`, so that all rows that m sends to one row have the same t."""
    if t is None:
        return True
    node = build.nodes[t]
    index = build.nodes[node.index] if isinstance(node, MapOf) else None
    return isinstance(index, Pull) and index.map == m


def above(build: Builder, t: Ref | None, m: Ref, loc: str) -> Ref | None:
    """The map of which `t`, which follows `m`, is the composition with m."""
    if t is None:
        return None
    node = build.nodes[t]
    assert isinstance(node, MapOf)
    index = build.nodes[node.index]
    assert isinstance(index, Pull) and index.map == m
    return build.add(MapOf(index.x, node.cod, node.wrap), loc)
