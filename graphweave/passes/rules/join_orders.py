"""pull(order(k), order(pull(g, order(k)))) -> order(g, k): a sort by one key and then by another is one sort by both.

Legal because orders are stable. What was pulled along the first order, or some rows of the second, is pulled along
that one, and the two sorts are needed no more. Segment-wise sorts, and the choice of the largest rows of each segment,
are written like this in PyTorch, which has no sort by two keys.
"""

from __future__ import annotations

from graphweave.core.lines import Location
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.passes.factors import value_type
from graphweave.passes.rules.rule import Rule


def join_orders(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """pull(order(k), o) -> order(g, k) and pull(pull(x, order(k)), o) -> pull(x, order(g, k)), for
    o = order(pull(g, order(k))), or some rows of o"""
    loc, node = build.locs[ref], build.nodes[ref]
    index = _index(build, node.map) if isinstance(node, ir.Pull) else None
    if index is None or not isinstance(node, ir.Pull):
        return None
    some = build.nodes[index]
    second = some.x if isinstance(some, ir.Pull) else index
    first = _sorted_before(build, second)
    if first is None:
        return None
    both = _sorted_by_both(build, first, second, loc)
    x = build.nodes[node.x]
    if node.x == first:
        out = both
    elif isinstance(x, ir.Pull) and _index(build, x.map) == first:
        out = build.add(ir.Pull(x.x, _map_like(build, x.map, both, loc)), loc)
    else:
        return None
    return build.add(ir.Pull(out, some.map), loc) if isinstance(some, ir.Pull) else out


def _index(build: Builder, m: ir.Ref) -> ir.Ref | None:
    """The index of a map that has one."""
    node = build.nodes[m]
    return node.index if isinstance(node, ir.MapOf) else None


def _map_like(build: Builder, m: ir.Ref, index: ir.Ref, loc: Location) -> ir.Ref:
    """The map to the rows to which `m` leads, with another index."""
    node = build.nodes[m]
    assert isinstance(node, ir.MapOf)
    return build.add(ir.MapOf(index, node.cod), loc)


def _sorted_before(build: Builder, second: ir.Ref) -> ir.Ref | None:
    """The order in which rows stood that the order `second` sorts; None if they stood in none, or in several."""
    node = build.nodes[second]
    if not isinstance(node, ir.Order):
        return None
    found = {_index(build, key.map) if isinstance(key := build.nodes[k], ir.Pull) else None for k in node.keys}
    first = found.pop()
    if found or first is None or not isinstance(build.nodes[first], ir.Order):
        return None
    stood = {build.types[key.x] for k in node.keys if isinstance(key := build.nodes[k], ir.Pull)}
    space = value_type(build, first).space  # the order may lead to the first rows of a longer tensor
    return first if all(isinstance(t, ir.Type) and t.space == space for t in stood) else None


def _sorted_by_both(build: Builder, first: ir.Ref, second: ir.Ref, loc: Location) -> ir.Ref:
    """The order by the keys of `second`, as they stood before `first`, and then by those of `first`."""
    one, other = build.nodes[first], build.nodes[second]
    assert isinstance(one, ir.Order) and isinstance(other, ir.Order)
    keys = tuple(key.x for k in other.keys if isinstance(key := build.nodes[k], ir.Pull))
    return build.add(ir.Order((*keys, *one.keys), (*other.descending, *one.descending)), loc)


RULE = Rule("join-orders", "pull(order(k), order(pull(g, order(k))))", "order(g, k)", join_orders)
