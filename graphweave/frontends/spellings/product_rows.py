"""Brings tensors with rows in several dims, [batch, nodes, features], to one dim of rows in front of features.

Weather and traffic models, PyG's `node_dim=-2`, tables of neighbours [nodes, k] and batches of these move rows along an
index within a batch. In the algebra, the product of two spaces is a space: rows (b, n) of it are numbered b * N + n,
and an index of nodes is a map between such products. Everything that is computed row by row from or for such moves is
written on flat forms (`product_shape.py`, `product_calls.py`); and so is what is computed for or from products of rows
in a later dim with shared matrices (`product_weights.py`). The numbers of rows depend on sizes and indices alone,
so they are computed once for each graph.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.fx.node import Argument, Target

from graphweave.core.calls import Elements
from graphweave.core.log import logger
from graphweave.frontends.calls.call_facts import facts
from graphweave.frontends.calls.captured_graph import copy_of, is_tangent
from graphweave.frontends.calls.captured_sizes import Size, fixed, is_tensor, rank, shape, unbacked, val
from graphweave.frontends.calls.dim_classes import picked
from graphweave.frontends.spellings.product_calls import flat_call
from graphweave.frontends.spellings.product_moves import FlatCall
from graphweave.frontends.spellings.product_shape import ProductShape, multiplied_rows

aten = torch.ops.aten
_log = logger(__name__)


class UnknownSize(Exception):
    """A size of which no node of the graph is known."""


def products_to_rows(gm: fx.GraphModule) -> fx.GraphModule:
    """`gm`, or a copy in which moves of rows in several dims along an index, and their products with shared matrices,
    work on flat rows."""
    return on_flat_rows(gm, dense=False) if any(_may_move(n) or _multiplies(n) for n in gm.graph.nodes) else gm


def on_flat_rows(gm: fx.GraphModule, *, dense: bool) -> fx.GraphModule:
    """`gm`, or a copy that works on flat rows: around moves of rows along an index, or for a `dense` batch."""
    copy = copy_of(gm)
    region = _Region(copy.graph, dense=dense)
    if not region.calls:
        return gm
    try:
        region.write()
    except UnknownSize as size:
        _log.info("rows in several dims stay as they are: no node has the size %s", size)
        return gm
    return copy


def _may_move(node: fx.Node) -> bool:
    """Whether the call moves rows that may have several dims, or a later one, along an index."""
    how = facts(node.target).index if node.op == "call_function" and is_tensor(node) else None
    if how is None or not _is_float(node):
        return False
    found = picked(node, how)
    tensors = (node, *(x for x in node.all_input_nodes if is_tensor(x)))
    return (found is not None and any(found.at)) or any(rank(x) > (2 if _is_float(x) else 1) for x in tensors)


def _multiplies(node: fx.Node) -> bool:
    """Whether the call multiplies rows, which are not its first dim, by shared matrices."""
    return any(True for _ in multiplied_rows(node))


def _is_float(node: fx.Node) -> bool:
    return bool(val(node).is_floating_point())


def _computes(node: fx.Node) -> bool:
    """Whether the call computes other numbers than those of its operands."""
    return facts(node.target).elements is Elements.computed and _is_float(node)


class _Region:
    """`calls[node]` makes the flat form of `node`, and `flats[node]` is the node that holds it."""

    def __init__(self, graph: fx.Graph, *, dense: bool) -> None:
        self.graph = graph
        self.shapes = ProductShape(graph, multiplied=dense)
        self.calls: dict[fx.Node, FlatCall] = {}
        self.flats: dict[fx.Node, fx.Node] = {}
        self.own: dict[fx.Node, fx.Node] = {}
        self.sizes: dict[str, fx.Node] = {}
        self.like: fx.Node | None = None
        found = {n: call for n in graph.nodes if (call := flat_call(n, self.shapes)) is not None}
        if dense:
            found = {n: call for n, call in found.items() if not call.numbered and self._are_views(n, call)}
            self._find(found, [n for n in found if _computes(n) and not self.shapes.is_flat(n)])
        else:
            moves = (n for n in found if facts(n.target).index is not None and _is_float(n))
            self._find(found, [*moves, *filter(_multiplies, found)])

    def _are_views(self, node: fx.Node, call: FlatCall) -> bool:
        """Whether the flat forms of a call's result and operands are views of them."""
        return all(map(self.shapes.leads, (node, *call.operands)))

    def _find(self, found: dict[fx.Node, FlatCall], todo: list[fx.Node]) -> None:
        """Find, among the calls that can be written on flat rows, what is computed from or for those in `todo`, or for
        as many of such rows.

        The latter is what lies behind a layer of weights, whose products have their rows in one dim.
        """
        of_rows: dict[tuple[int, ...], list[fx.Node]] = {}
        for node, call in found.items():
            for x in (node, *call.operands):
                if _is_float(node) and not self.shapes.is_flat(x):
                    of_rows.setdefault(self.shapes.names(x), []).append(node)
        while todo:
            node = todo.pop()
            if node in self.calls or node not in found:
                continue
            self.calls[node] = found[node]
            todo += [x for x in found[node].operands if not self.shapes.is_flat(x)]
            if not self.shapes.is_flat(node):
                todo += [u for u in node.users if u in found and node in found[u].operands]
                todo += of_rows.pop(self.shapes.names(node), ())

    # -------------------------------------------------------- writing the new graph

    def write(self) -> None:
        nodes = list(self.graph.nodes)
        for node in nodes:
            self.like = node
            if node in self.calls:
                with self.graph.inserting_before(node):
                    self.flats[node] = self.calls[node].write(self)
                if self.shapes.is_flat(node):
                    # calls of the region still read what their rules were made for
                    node.replace_all_uses_with(self.flats[node], delete_user_cb=lambda user: user not in self.calls)
            else:
                self._leave(node)
            self._note_sizes(node)
        for node in reversed(nodes):
            if node in self.calls and not node.users:
                self.graph.erase_node(node)
        self.graph.eliminate_dead_code()

    def _leave(self, node: fx.Node) -> None:
        """A call that stays reads its operands in their own form."""
        with self.graph.inserting_before(node):
            for x in node.all_input_nodes:
                if x in self.calls and not self.shapes.is_flat(x):
                    if node.target is aten.sym_size.int:
                        continue
                    node.replace_input_with(x, self._back(x))
            if node.target is aten.sym_size.int and node.args[0] in self.calls:
                size = self.size(val(node))
                if isinstance(size, fx.Node):
                    node.replace_all_uses_with(size)

    def _back(self, x: fx.Node) -> fx.Node:
        """`x` in its own form."""
        if x not in self.own:
            rows, features = self.shapes.rows(x), self.shapes.features(x)
            sizes = [*(self.size(shape(x)[d]) for d in rows), *self.shapes.feature_sizes(x)]
            apart = self.call(aten.reshape.default, self.flats[x], sizes)
            order = [*rows, *features]
            back = [order.index(d) for d in range(rank(x))]
            own = apart if back == sorted(back) else self.call(aten.permute.default, apart, back)
            own.meta["val"] = val(x)  # a result lies in memory as it was captured
            self.own[x] = own
        return self.own[x]

    def flat(self, x: fx.Node) -> fx.Node:
        """The flat form of `x`."""
        if self.shapes.is_flat(x):
            return self.flats.get(x, x)
        if x not in self.flats:
            order = [*self.shapes.rows(x), *self.shapes.features(x)]
            permuted = x if order == sorted(order) else self.call(aten.permute.default, x, order)
            self.flats[x] = self.call(aten.reshape.default, permuted, [-1, *self.shapes.feature_sizes(x)])
        return self.flats[x]

    def call(self, target: Target, *args: Any, **kwargs: Argument) -> fx.Node:
        """A call with its value, from the user's line of the call that is being written."""
        assert self.like is not None and callable(target)
        values, named = fx.map_arg((args, kwargs), lambda n: n.meta["val"])
        if target is aten.reshape.default and isinstance(args[0], fx.Node) and _is_shaped(args[0], args[1]):
            return args[0]
        node = self.graph.call_function(target, args, kwargs)
        node.meta.update(self.like.meta)
        node.meta["val"] = target(*values, **named)
        return node

    def size(self, size: Size) -> int | fx.Node:
        """A size as a number, or as the node that computes it. Raises UnknownSize."""
        known = fixed(size)
        if known is not None:
            return known
        assert isinstance(size, torch.SymInt)
        expr = size.node.expr
        if str(expr) not in self.sizes:
            factors = [int(f) if f.is_Integer else self.sizes.get(str(f)) for f in expr.args] if expr.is_Mul else [None]
            if None in factors:
                raise UnknownSize(str(expr))
            total: Any = factors[0]
            for factor in factors[1:]:
                total = self.call(operator.mul, total, factor)
            self.sizes[str(expr)] = total
        return self.sizes[str(expr)]

    def _note_sizes(self, node: fx.Node) -> None:
        """Note the sizes that are known behind `node`, each with a node that computes it. A forward cannot read them of
        the gradients of its results, which stand in front of it."""
        if is_tangent(node):
            return
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            self._note(value, node)
        stays = node.op == "placeholder" or bool(unbacked(value))
        if isinstance(value, torch.Tensor) and stays and node not in self.calls:
            for d, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt) and str(size.node.expr) not in self.sizes:
                    with self.graph.inserting_after(node):
                        read = self.graph.call_function(aten.sym_size.int, (node, d))
                    read.meta.update(node.meta)
                    read.meta["val"] = size
                    self._note(size, read)

    def _note(self, size: torch.SymInt, node: fx.Node) -> None:
        if fixed(size) is None:
            self.sizes.setdefault(str(size.node.expr), node)


def _is_shaped(x: fx.Node, sizes: list[fx.Node | int]) -> bool:
    """Whether `x` has these sizes already, of which the first may be -1."""
    known = shape(x)
    if len(known) != len(sizes):
        return False
    return all(
        (fixed(n) is not None and fixed(n) == s) or (d == 0 and s == -1)
        for d, (n, s) in enumerate(zip(known, sizes, strict=True))
    )
