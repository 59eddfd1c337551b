"""Brings rows that are a later dim of a tensor to the front of it: [H, rows, F] becomes [rows, H, F].

PyG's ARMAConv keeps its stacks in front of the nodes, and so do einsum and bmm with the blocks of a product; matmul
may put rows last. On a space, rows come first and everything else is a feature. So the operands and results of each
product of such rows, and of each move of them along an index, are exchanged for tensors with their rows in front, and
so is what is computed for them or from them (`later_rows.py` says how each call is done on these). Where values enter
or leave, a transpose of the captured program disappears, or one is added.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from graphweave.frontends.calls.captured_graph import copy_of
from graphweave.frontends.calls.captured_sizes import rank, val
from graphweave.frontends.spellings.later_rows import Front, FrontCall, is_seed, leaves, moved, order_of_rows

aten = torch.ops.aten


def rows_to_front(gm: fx.GraphModule) -> fx.GraphModule:
    """`gm`, or a copy in which products of rows in a later dim, and moves of such rows, work on rows in front."""
    if not any(is_seed(node) for node in gm.graph.nodes):
        return gm
    copy = copy_of(gm)
    _RowsFirst(copy.graph).run()
    return copy


def _operands(call: Any) -> Iterator[fx.Node]:
    """The tensors that `call` takes with their rows in front."""
    match call:
        case Front(x, order):
            if order == order_of_rows(x):
                yield x
        case FrontCall(_, args, kwargs):
            for arg in (*args, *kwargs.values()):
                yield from _operands(arg)
        case list() | tuple():
            for arg in call:
                yield from _operands(arg)


class _RowsFirst:
    """`calls[node]` computes `node` with its rows in front, and `front[node]` is the node that holds the result.

    `exits[node]` computes a node without rows in a later dim, which is then `left[node]`.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.calls: dict[fx.Node, FrontCall] = {}
        self.exits: dict[fx.Node, FrontCall] = {}
        self.front: dict[fx.Node, fx.Node] = {}
        self.left: dict[fx.Node, fx.Node] = {}
        self.behind: dict[fx.Node, fx.Node] = {}

    def run(self) -> None:
        nodes = list(self.graph.nodes)
        self._find(nodes)
        for node in nodes:
            with self.graph.inserting_before(node):
                if node in self.calls:
                    self.front[node] = self._made(self.calls[node], node, val(node).permute(order_of_rows(node)))
                elif node in self.exits:
                    self.left[node] = self._made(self.exits[node], node, val(node))
                    node.replace_all_uses_with(self.left[node])
                else:
                    for x in node.all_input_nodes:
                        if x in self.front:
                            node.replace_input_with(x, self._back(x))
        for node in reversed(nodes):
            if node in self.calls or node in self.exits:
                self.graph.erase_node(node)

    def _find(self, nodes: list[fx.Node]) -> None:
        """Find what is computed row by row from or for products and moves of rows in a later dim."""
        todo = [x for node in nodes if is_seed(node) for x in (node, *_operands(leaves(node)))]
        while todo:
            node = todo.pop()
            call = None if node in self.calls else moved(node)
            if call is None:
                continue
            self.calls[node] = call
            todo.extend(_operands(call))
            todo.extend(u for u in node.users if node in _operands(moved(u)))
        for node in nodes:
            call = None if node in self.calls else leaves(node)
            if call is not None and any(x in self.calls for x in _operands(call)):
                self.exits[node] = call

    # -------------------------------------------------------- writing the new graph

    def _back(self, node: fx.Node) -> fx.Node:
        """`node` in its own order of dims."""
        if node not in self.behind:
            front, order = self.front[node], order_of_rows(node)
            back = [order.index(d) for d in range(rank(node))]
            with self.graph.inserting_after(front):
                self.behind[node] = self._call(node, aten.permute.default, (front, back), val(node))
        return self.behind[node]

    def _made(self, call: FrontCall, like: fx.Node, value: Any) -> fx.Node:
        args, kwargs = self._argument(call.args, like), self._argument(call.kwargs, like)
        return self._call(like, call.target, args, value, kwargs)

    def _argument(self, arg: Any, like: fx.Node) -> Any:
        match arg:
            case Front(x, order) if x in self.front and order == order_of_rows(x):
                return self.front[x]
            case Front(x, order):
                x = self._argument(x, like)
                return self._call(like, aten.permute.default, (x, list(order)), val(x).permute(order))
            case FrontCall(target, args, kwargs):
                made, named = self._argument(args, like), self._argument(kwargs, like)
                values, more = fx.map_arg((made, named), lambda n: n.meta["val"])
                return self._call(like, target, made, target(*values, **more), named)
            case fx.Node():
                return self._back(arg) if arg in self.front else self.left.get(arg, arg)
            case tuple():
                return tuple(self._argument(a, like) for a in arg)
            case list():
                return [self._argument(a, like) for a in arg]
            case dict():
                return {name: self._argument(a, like) for name, a in arg.items()}
            case _:
                return arg

    def _call(self, like: fx.Node, target: Any, args: Any, value: Any, kwargs: Any = None) -> fx.Node:
        node = self.graph.call_function(target, tuple(args), kwargs or {})
        node.meta.update(like.meta)
        node.meta["val"] = value
        return node
