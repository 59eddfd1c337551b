"""push(x, E -> unit) -> push(push(x, m), V -> unit) where push(x, m) is needed anyway.

Legal for sums. It always pays: the sum over all edges is that over the rows' sums, of which there are fewer. Gradients
of biases are of this form.
"""

from __future__ import annotations

from graphweave.core.types import Fold
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.passes.rules.rule import Rule


def totals(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """push(x, E -> unit) -> push(push(x, m), V -> unit)"""
    node = build.nodes[ref]
    if not isinstance(node, ir.Push) or not node.is_plain_sum:
        return None
    if not isinstance(build.nodes[node.map], ir.ToUnit):
        return None
    for r, other in enumerate(build.nodes):
        if isinstance(other, ir.Push) and other.x == node.x and other.is_plain_sum:
            mt = build.types[other.map]
            if isinstance(build.nodes[other.map], ir.MapOf) and isinstance(mt, ir.MapType):
                unit = build.add(ir.ToUnit(mt.cod), build.locs[ref])
                return build.add(ir.Push(r, unit, Fold.sum), build.locs[ref])
    return None


RULE = Rule("totals", "push(x, E -> unit)", "push(push(x, m), V -> unit)", totals)
