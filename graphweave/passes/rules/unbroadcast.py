"""f(broadcast(x), y) -> f(x, y) if the result keeps its type: a pointwise node broadcasts by itself."""

from __future__ import annotations

from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import infer
from graphweave.ir.message.nodes import Broadcast, Pointwise, Ref
from graphweave.passes.rules.rule import Rule


def unbroadcast(build: Builder, ref: Ref) -> Ref | None:
    """f(broadcast(x), y) -> f(x, y)"""
    node = build.nodes[ref]
    if not isinstance(node, Pointwise):
        return None
    for i, a in enumerate(node.args):
        if isinstance(wide := build.nodes[a], Broadcast):
            narrow = Pointwise(node.op, (*node.args[:i], wide.x, *node.args[i + 1 :]))
            if infer(narrow, build.types) == build.types[ref]:
                return build.add(narrow, build.locs[ref])
    return None


RULE = Rule("unbroadcast", "f(broadcast(x), y)", "f(x, y)", unbroadcast)
