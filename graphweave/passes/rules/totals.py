"""push(x, E -> unit) -> push(push(x, m), V -> unit) where push(x, m) is needed anyway.

Legal for sums. It always pays: the sum over all edges is that over the rows' sums, of which there are fewer. Gradients
of biases are of this form.
"""

from __future__ import annotations

from graphweave.core.types import Fold
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import MapOf, MapType, Push, Ref, ToUnit
from graphweave.passes.rules.rule import Rule


def totals(build: Builder, ref: Ref) -> Ref | None:
    """push(x, E -> unit) -> push(push(x, m), V -> unit)"""
    node = build.nodes[ref]
    if not isinstance(node, Push) or not node.is_plain_sum:
        return None
    if not isinstance(build.nodes[node.map], ToUnit):
        return None
    for r, other in enumerate(build.nodes):
        if isinstance(other, Push) and other.x == node.x and other.is_plain_sum:
            mt = build.types[other.map]
            if isinstance(build.nodes[other.map], MapOf) and isinstance(mt, MapType):
                unit = build.add(ToUnit(mt.cod), build.locs[ref])
                return build.add(Push(r, unit, Fold.sum), build.locs[ref])
    return None


RULE = Rule("totals", "push(x, E -> unit)", "push(push(x, m), V -> unit)", totals)
