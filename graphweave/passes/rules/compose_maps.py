"""pull(pull(x, m), n) -> pull(x, m . n), and push(push(x, n), m) -> push(x, m . n).

Legal for all pulls, and for pushes that both sum and give 0 to rows without edges. The index of the composed map is the
index of m pulled along n, which depends on the graph alone. It pays where values on the space between are not needed.
"""

from __future__ import annotations

from graphweave.core.lines import Location
from graphweave.core.types import Fold
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.passes.composed_maps import composed
from graphweave.passes.rules.rule import Rule


def compose_maps(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """pull(pull(x, m), n) -> pull(x, m . n); push(push(x, n), m) -> push(x, m . n)"""
    loc, node = build.locs[ref], build.nodes[ref]
    match node:
        case ir.Pull(x, n) if isinstance(inner := build.nodes[x], ir.Pull):
            both = _composed(build, inner.map, n, loc)
            return None if both is None else build.add(ir.Pull(inner.x, both), loc)
        case ir.Push(x, m, Fold.sum, 0) if isinstance(inner := build.nodes[x], ir.Push):
            if not inner.is_plain_sum:
                return None
            both = _composed(build, m, inner.map, loc)
            return None if both is None else build.add(ir.Push(inner.x, both, Fold.sum), loc)
        case _:
            return None


def _composed(build: Builder, m: ir.Ref, n: ir.Ref, loc: Location) -> ir.Ref | None:
    both = isinstance(build.nodes[m], ir.MapOf) and isinstance(build.nodes[n], ir.MapOf)
    return composed(build, m, n, loc) if both else None


RULE = Rule("compose-maps", "pull(pull(x, m), n)", "pull(x, m . n)", compose_maps)
