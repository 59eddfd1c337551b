"""Gradients of the items of a tensor, added up as tensors of zeros with one item each, become one stack of them.

Attention takes its queries, keys and values as the items of one projection, [3, batch, rows, features]. PyTorch makes a
gradient of that size for each of the three and adds these.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from graphweave.frontends.calls.captured_graph import rewrite_calls
from graphweave.frontends.calls.captured_sizes import argument, dim_of, fixed, rank, shape, val
from graphweave.frontends.spellings.masks import call

aten = torch.ops.aten


def gradients_to_stacks(gm: fx.GraphModule) -> fx.GraphModule:
    """`gm`, or a copy in which sums of the gradients of all items along the first dim are stacks."""
    return rewrite_calls(gm, _items, _rewrite)


def _items(node: fx.Node) -> list[fx.Node] | None:
    """The gradients of the items, in order, if `node` adds up all of them; else None."""
    if not _is_sum(node) or fixed(shape(node)[0]) is None:
        return None
    found: dict[int, fx.Node] = {}
    todo: list[Any] = list(node.args[:2])
    while todo:
        part = todo.pop()
        if not isinstance(part, fx.Node) or len(part.users) != 1:
            return None
        if _is_sum(part):
            todo += part.args[:2]
            continue
        if part.target is not aten.select_backward.default or dim_of(part.args[2], rank(part)) != 0:  # type: ignore[arg-type]
            return None
        if not isinstance(part.args[3], int) or part.args[3] in found:
            return None
        found[part.args[3]] = part.args[0]  # type: ignore[assignment]
    count = fixed(shape(node)[0])
    return [found[k] for k in range(len(found))] if sorted(found) == list(range(count or 0)) else None


def _is_sum(node: fx.Node) -> bool:
    return node.target is aten.add.Tensor and argument(node, "alpha", 1) == 1 and rank(node) > 1


def _rewrite(graph: fx.Graph, node: fx.Node, items: list[fx.Node]) -> None:
    with graph.inserting_before(node):
        new = call(graph, node, aten.stack.default, (items,), torch.stack([val(x) for x in items]))
    node.replace_all_uses_with(new)
    graph.erase_node(node)
