"""pull(push(x, m), m) -> x for a map that sends no two rows to one, whatever the fold.

Legal where the map is known to be injective (`analysis/maps.py`): every row then gets one value at most, and gives it
back. For the other order, push(pull(x, m), m), see `factor`: it is x times the degree, for any map.
"""

from __future__ import annotations

from graphweave.analysis.maps import is_injective
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import Pull, Push, Ref
from graphweave.passes.rules.rule import Rule


def injective_maps(build: Builder, ref: Ref) -> Ref | None:
    """pull(push(x, m), m) -> x"""
    node = build.nodes[ref]
    if isinstance(node, Pull) and isinstance(inner := build.nodes[node.x], Push) and inner.map == node.map:
        return inner.x if is_injective(build.nodes, node.map) else None
    return None


RULE = Rule("injective-maps", "pull(push(x, m), m), m injective", "x", injective_maps)
