"""Functions on captured graphs of ATen calls that several passes share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import fx
from torch.fx.node import Argument, Target

T = TypeVar("T")


def ancestors(roots: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes `roots` and all nodes from which they are computed."""
    seen: set[fx.Node] = set()
    todo = list(roots)
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo.extend(node.all_input_nodes)
    return seen


def is_random(node: fx.Node) -> bool:
    """Whether the call takes numbers from PyTorch's random generator."""
    op = node.target
    return isinstance(op, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in op.tags


def is_tangent(node: fx.Node) -> bool:
    """Whether a node of a joint graph is the gradient of a result, which only the backward has."""
    return node.op == "placeholder" and "tangents" in str(node.target)


def copied(gm: fx.GraphModule) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """A copy of the graph of `gm` whose nodes have the names of their originals, and the copy of each node."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(gm.graph, copies)).meta.update(gm.graph.output_node().meta)
    for old, new in copies.items():
        new.name = old.name
    return graph, copies


def copy_of(gm: fx.GraphModule) -> fx.GraphModule:
    """`gm` with a graph of its own, whose nodes have the same names."""
    return fx.GraphModule(gm, copied(gm)[0])


def call(
    graph: fx.Graph,
    like: fx.Node,
    target: Target,
    args: tuple[Argument, ...],
    value: object,
    kwargs: dict[str, Argument] | None = None,
) -> fx.Node:
    """A call in `graph` with the fake value `value`, from the user's line of `like`."""
    node = graph.create_node("call_function", target, args, kwargs)
    node.meta.update(like.meta)
    node.meta["val"] = value
    return node


def rewrite_calls(
    gm: fx.GraphModule, find: Callable[[fx.Node], T | None], rewrite: Callable[[fx.Graph, fx.Node, T], None]
) -> fx.GraphModule:
    """`gm`, or a copy in which `rewrite` has replaced each call in which `find` finds something."""
    if not any(find(node) is not None for node in gm.graph.nodes):
        return gm
    copy = copy_of(gm)
    for node in list(copy.graph.nodes):
        found = find(node)
        if found is not None:
            rewrite(copy.graph, node, found)
    return copy
