"""A dim of fixed size in front of the rows, [H, rows, ...]: which calls bring it there, and which take it away.

Heads are brought to the front by a transpose of [rows, H, ...], blocks of rows by a view of [H * rows, ...], and a
column [H, 1, ...] by repeating it for all rows. None of them can be on a space while its rows are the second dim.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

from graphweave.core.calls import Lead
from graphweave.frontends.calls.call_facts import facts, is_reshape
from graphweave.frontends.calls.captured_graph import call
from graphweave.frontends.calls.captured_sizes import dim_of, fixed, is_tensor, rank, same, shape, val
from graphweave.frontends.calls.row_rules import permutation

aten = torch.ops.aten

MAX_ITEMS = 64
"""Limit on the size of a dim in front of rows, each item of which is a value of its own."""

_REPEATS = frozenset({aten.expand.default, aten.repeat.default})


def varies(x: fx.Node) -> bool:
    """Whether `x` is [H, rows, ...] with a fixed H and a number of rows that varies from call to call."""
    if not is_tensor(x) or rank(x) < 2:
        return False
    return 1 <= (fixed(shape(x)[0]) or 0) <= MAX_ITEMS and fixed(shape(x)[1]) is None


def in_front(node: fx.Node) -> bool:
    """Whether `node` makes [H, rows, ...] from what has its rows in front, or no rows."""
    x = node.args[0] if node.args else None
    if not isinstance(x, fx.Node) or not is_tensor(x) or not varies(node):
        return False
    return swaps(node) or _splits(node, x) or _repeats(node, x) or replaced(node) is not None


def swaps(node: fx.Node) -> bool:
    """Whether `node` exchanges the first two dims and keeps the others in place."""
    if facts(node.target).rows is not Lead.permuted or rank(node) < 2:
        return False
    return permutation(node) == (1, 0, *range(2, rank(node)))


def flattens(node: fx.Node, x: fx.Node) -> bool:
    """Whether `node` is a view of `x` [H, rows, ...] as [H * rows, ...]."""
    return is_reshape(node.target) and rank(node) == rank(x) - 1 and _alike(node, x) and varies(x)


def _splits(node: fx.Node, x: fx.Node) -> bool:
    return is_reshape(node.target) and rank(x) == rank(node) - 1 and _alike(x, node)


def replaced(node: fx.Node) -> int | None:
    """k if `node` is [H, rows] with item k replaced, as in `edge_index[k] += 1`; None for other calls."""
    if node.target is not aten.select_scatter.default or rank(node) != 2 or not varies(node):
        return None
    dim, index = node.args[2:4]
    return int(index) if isinstance(index, int) and index >= 0 and dim_of(dim, rank(node)) == 0 else None  # type: ignore[arg-type]


def _alike(flat: fx.Node, apart: fx.Node) -> bool:
    return all(same(a, b) for a, b in zip(shape(flat)[1:], shape(apart)[2:], strict=True))


def _repeats(node: fx.Node, x: fx.Node) -> bool:
    if node.target not in _REPEATS or rank(x) != rank(node):
        return False
    return same(shape(x)[0], shape(node)[0]) and fixed(shape(x)[1]) == 1


def items_of(graph: fx.Graph, node: fx.Node, count: int) -> list[fx.Node]:
    """The items node[0], node[1], ... of what `in_front` recognises, each with its rows in front."""
    x: Any = node.args[0]
    value = val(node).new_empty(tuple(shape(node)[1:]))
    at = replaced(node)
    if at is not None:
        before = [call(graph, node, aten.select.int, (x, 0, k), value) for k in range(count)]
        return [*before[:at], node.args[1], *before[at + 1 :]]  # type: ignore[list-item]
    if swaps(node):
        return [call(graph, node, aten.select.int, (x, 1, k), value) for k in range(count)]
    if _splits(node, x):
        return [x] if count == 1 else _blocks(graph, node, x, count, value)
    columns = [call(graph, node, aten.select.int, (x, 0, k), val(x).select(0, k)) for k in range(count)]
    sizes: Any = node.args[1]
    return [call(graph, node, node.target, (column, list(sizes[1:])), value) for column in columns]


def _blocks(graph: fx.Graph, node: fx.Node, x: fx.Node, count: int, value: Tensor) -> list[fx.Node]:
    """`count` blocks of equally many rows of `x`."""
    every, rows = shape(x)[0], shape(node)[1]
    size = call(graph, node, aten.sym_size.int, (x, 0), every)
    each = call(graph, node, operator.floordiv, (size, count), rows)
    starts = [call(graph, node, operator.mul, (each, k), rows * k) for k in range(1, count)]
    bounds: list[Any] = [0, *starts, size]
    return [call(graph, node, aten.slice.Tensor, (x, 0, bounds[k], bounds[k + 1]), value) for k in range(count)]
