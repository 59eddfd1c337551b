"""Splits stacks of relations' values, [relations, rows, ...] or [rows, relations, ...], into the stacked values.

PyG adds up what relations send to one type of nodes by `torch.stack(outs).sum(0)`; DGL stacks behind the rows. In a
stack in front of the rows, rows are the second dim, which cannot be on a space; a stack behind the rows is wider than
its items. So the sum of a stack becomes a sum of its items, and row-wise work on a stack is done on each item.

Heads that a transpose brings in front of the rows are a stack too, and so are rows that a view cuts into equal blocks:
`front_dims.py` says what their items are. All rows of a stack, one item's after the other's, are the rows of its items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from graphweave.frontends.calls.call_facts import is_reshape
from graphweave.frontends.calls.captured_graph import call, copied
from graphweave.frontends.calls.captured_sizes import Size, argument, dim_of, fixed, is_tensor, rank, same, shape, val
from graphweave.frontends.calls.front_dims import flattens, in_front, items_of, replaced, swaps, varies

aten = torch.ops.aten

_STEP_OF_REDUCTION: dict[Any, Any] = {
    aten.sum.dim_IntList: aten.add.Tensor, aten.mean.dim: aten.add.Tensor, aten.amax.default: aten.maximum.default,
    aten.amin.default: aten.minimum.default,
}  # fmt: skip
"""Reduction -> the call on two operands that computes it when chained."""

_TAKE_DTYPE = frozenset({aten.sum.dim_IntList, aten.mean.dim})
"""Reductions with an argument `dtype`."""


def without_stacks(gm: fx.GraphModule) -> fx.GraphModule:
    """`gm`, or a copy in which reductions of stacks over their items are chains, and items are the stacked values.

    A stack with any other user stays as it is, and so does all row-wise work on it: a number that is computed in two
    ways may differ in the last bit, and may be compared.
    """
    if not _plan(gm.graph):
        return gm
    graph, _ = copied(gm)
    return _Unstacker(fx.GraphModule(gm, graph)).run()


# ---------------------------------------------------------------- which stacks can be split


def _plan(graph: fx.Graph) -> dict[fx.Node, int]:
    """The stacks, repeated values, and row-wise work on them that can be split, each with the dim of its items."""
    dims: dict[fx.Node, int] = {}
    for node in graph.nodes:
        dim = _new_dim(node)
        if dim is None and _row_wise(node):
            dim = _common_dim(node, dims)
        if dim is not None:
            dims[node] = dim
    todo = list(dims)
    while todo:
        node = todo.pop()
        if node in dims and not _can_go(node, dims):
            del dims[node]
            todo.extend(x for x in (*node.all_input_nodes, *node.users) if x in dims)
    return dims


def _new_dim(node: fx.Node) -> int | None:
    """The dim along which `node` stacks computed values or repeats one; None for other nodes."""
    if node.target is aten.stack.default and rank(node) > 1:
        xs: Any = node.args[0]
        return dim_of(argument(node, "dim", 0), rank(node)) if all(x.op == "call_function" for x in xs) else None
    x = node.args[0] if node.args else None
    if node.target is not aten.expand.default or not isinstance(x, fx.Node) or x.target is not aten.unsqueeze.default:
        return 0 if in_front(node) else None
    dim = dim_of(x.args[1], rank(x))  # type: ignore[arg-type]
    if rank(x) != rank(node) or rank(node) < 2 or (fixed(shape(node)[dim]) or 0) < 2:
        return 0 if in_front(node) else None
    alike = all(d == dim or same(a, b) for d, (a, b) in enumerate(zip(shape(x), shape(node), strict=True)))
    return dim if alike else 0 if in_front(node) else None


def _row_wise(node: fx.Node) -> bool:
    op = node.target
    if _expands_nothing(node):
        return True
    if op is aten.cat.default:
        return is_tensor(node) and dim_of(argument(node, "dim", 0), rank(node)) == 1
    pointwise = isinstance(op, torch._ops.OpOverload) and torch.Tag.pointwise in op.tags
    return is_tensor(node) and (pointwise or op in _COPIES) and not any(isinstance(a, list | tuple) for a in node.args)


def _expands_nothing(node: fx.Node) -> bool:
    """Whether `node` is an expand to the sizes that its operand has, as those of a stack of one item are."""
    x = node.args[0] if node.args else None
    return node.target is aten.expand.default and isinstance(x, fx.Node) and _same_sizes(shape(x), shape(node))


_COPIES = frozenset({
    aten._to_copy.default, aten.clone.default, aten.detach.default, aten.alias.default,
    torch.ops.prims.convert_element_type.default,
})  # fmt: skip


def _common_dim(node: fx.Node, dims: Mapping[fx.Node, int]) -> int | None:
    """The dim of the items of row-wise work on stacks; None if it is not clear which number is item k of an operand."""
    found = {dims[x] for x in node.all_input_nodes if x in dims}
    if len(found) != 1:
        return None
    (dim,), n = found, rank(node)
    if node.target is aten.cat.default and (dim != 0 or any(x not in dims for x in node.all_input_nodes)):
        return None
    for x in node.all_input_nodes:
        if not is_tensor(x):
            continue
        if x in dims:
            if rank(x) != n or not same(shape(x)[dim], shape(node)[dim]):
                return None
        elif rank(x) >= n - dim and not (rank(x) == n and fixed(shape(x)[dim]) in (1, fixed(shape(node)[dim]))):
            return None
    return dim


def _can_go(node: fx.Node, dims: Mapping[fx.Node, int]) -> bool:
    """Whether all operands and users of `node` can be split too."""
    dim = dims[node]
    if _new_dim(node) is None and _common_dim(node, dims) != dim:
        return False
    return bool(node.users) and all(
        (u in dims and _works_on_items(u)) or _takes_items(u, node, dim) for u in node.users
    )


def _works_on_items(user: fx.Node) -> bool:
    """Whether a node whose result can be split computes its items from those of a stack, instead of making a stack."""
    return _new_dim(user) is None or replaced(user) is not None


def _takes_items(user: fx.Node, x: fx.Node, dim: int) -> bool:
    if user.target is aten.select.int:
        return dim_of(user.args[1], rank(x)) == dim and isinstance(user.args[2], int)  # type: ignore[arg-type]
    if user.target in _STEP_OF_REDUCTION and (dim in _dims(user) or (dim == 0 and varies(x))):
        return True
    if user.target is aten.sym_size.int:
        return dim_of(user.args[1], rank(x)) != dim  # type: ignore[arg-type]
    return dim == 0 and (flattens(user, x) or swaps(user))


# ---------------------------------------------------------------- how they are split


class _Unstacker:
    """Splits stacks: `node` is the stack of the values `items[node]` along `dims[node]`."""

    def __init__(self, gm: fx.GraphModule) -> None:
        self.gm = gm
        self.dims = _plan(gm.graph)
        self.items: dict[fx.Node, list[fx.Node]] = {}

    def run(self) -> fx.GraphModule:
        for node in list(self.gm.graph.nodes):
            x = node.args[0] if node.args else None
            if node in self.dims:
                self.items[node] = self._items_of(node)
            elif isinstance(x, fx.Node) and x in self.items:
                with self.gm.graph.inserting_before(node):
                    new = self._item_or_chain(node, x)
                node.replace_all_uses_with(new)
                self.gm.graph.erase_node(node)
        for node in reversed(list(self.items)):
            self.gm.graph.erase_node(node)
        return self.gm

    def _items_of(self, node: fx.Node) -> list[fx.Node]:
        dim = self.dims[node]
        if node.target is aten.stack.default:
            return list(node.args[0])  # type: ignore[arg-type]
        count = _count(node, dim)
        at, x = replaced(node), node.args[0]
        if at is not None and x in self.items:
            return [*self.items[x][:at], node.args[1], *self.items[x][at + 1 :]]  # type: ignore[index, list-item]
        if in_front(node):
            with self.gm.graph.inserting_before(node):
                return items_of(self.gm.graph, node, count)
        if _expands_nothing(node) and x in self.items:
            return self.items[x]  # type: ignore[index]
        if _new_dim(node) is not None:
            return [node.args[0].args[0]] * count  # type: ignore[union-attr, list-item]
        out = []
        with self.gm.graph.inserting_before(node):
            for k in range(count):
                item = {x: self._item(node, x, dim, k) for x in node.all_input_nodes}
                args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), item.__getitem__)
                if node.target is aten.cat.default:
                    args, kwargs = (args[0], 0), {}
                out.append(call(self.gm.graph, node, node.target, args, val(node).select(dim, k), kwargs))
        return out

    def _item(self, node: fx.Node, x: fx.Node, dim: int, k: int) -> fx.Node:
        if x in self.items:
            return self.items[x][k]
        if not is_tensor(x) or rank(x) < rank(node):
            return x
        before, without = x.args[0] if x.args else None, [n for d, n in enumerate(shape(x)) if d != dim]
        if is_reshape(x.target) and is_tensor(before) and _same_sizes(shape(before), without):  # type: ignore[arg-type]
            return before  # type: ignore[return-value]
        if fixed(shape(x)[dim]) != 1:
            return call(self.gm.graph, node, aten.select.int, (x, dim, k), val(x).select(dim, k))
        return call(self.gm.graph, node, aten.squeeze.dim, (x, dim), val(x).squeeze(dim))

    def _item_or_chain(self, node: fx.Node, x: fx.Node) -> fx.Node:
        if node.target is aten.select.int:
            return self.items[x][node.args[2]]  # type: ignore[index]
        if node.target is aten.sym_size.int:
            d: int = node.args[1]  # type: ignore[assignment]
            return call(self.gm.graph, node, node.target, (self.items[x][0], d - (d > self.dims[x])), val(node))
        if node.target not in _STEP_OF_REDUCTION:
            return self._behind_each_other(node, x)
        if self.dims[x] not in _dims(node):
            return self._reduced_items(node, x)
        dim, keepdim, dtype = self.dims[x], bool(argument(node, "keepdim", False)), val(node).dtype
        items = self.items[x]
        if val(items[0]).dtype != dtype:
            items = [
                call(self.gm.graph, node, aten._to_copy.default, (i,), val(i).to(dtype), {"dtype": dtype})
                for i in items
            ]
        out = items[0]
        for item in items[1:]:
            out = call(self.gm.graph, node, _STEP_OF_REDUCTION[node.target], (out, item), val(out))
        if node.target is aten.mean.dim:
            out = call(self.gm.graph, node, aten.div.Tensor, (out, len(items)), val(out))
        rest = [d - (d > dim) for d in _dims(node) if d != dim]
        if rest:
            out = call(self.gm.graph, node, node.target, (out, rest, keepdim), node.target(val(out), rest, keepdim))  # type: ignore[operator]
        return call(self.gm.graph, node, aten.unsqueeze.default, (out, dim), val(node)) if keepdim else out

    def _behind_each_other(self, node: fx.Node, x: fx.Node) -> fx.Node:
        """All rows of a stack, as the rows of its items; or its items concatenated, behind the rows."""
        items = self.items[x]
        if swaps(node):
            return call(self.gm.graph, node, aten.stack.default, (items, 1), val(node))
        return items[0] if len(items) == 1 else call(self.gm.graph, node, aten.cat.default, (items, 0), val(node))

    def _reduced_items(self, node: fx.Node, x: fx.Node) -> fx.Node:
        """A reduction within each item, as a stack of reduced items."""
        dims, rest = [d - 1 for d in _dims(node)], {"dtype": val(node).dtype} if node.target in _TAKE_DTYPE else {}
        keepdim, value = bool(argument(node, "keepdim", False)), val(node).select(0, 0)
        out = [call(self.gm.graph, node, node.target, (item, dims, keepdim), value, rest) for item in self.items[x]]
        return call(self.gm.graph, node, aten.stack.default, (out, 0), val(node))


def _count(node: fx.Node, dim: int) -> int:
    n = fixed(shape(node)[dim])
    assert n is not None
    return n


def _dims(node: fx.Node) -> list[int]:
    """The dims of a reduction; all dims if none is given."""
    n, dims = rank(node.args[0]), argument(node, "dim", None)  # type: ignore[arg-type]
    given = dims if isinstance(dims, list | tuple) else [] if dims is None else [dims]
    return [dim_of(d, n) for d in given] or list(range(n))


def _same_sizes(a: Sequence[Size], b: Sequence[Size]) -> bool:
    return len(a) == len(b) and all(same(m, n) for m, n in zip(a, b, strict=True))
