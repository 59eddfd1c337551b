"""Turns masks of rows into indices, so that they are maps: x[mask] = x[mask.nonzero()]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from graphweave.frontends.calls.call_facts import is_listed
from graphweave.frontends.calls.captured_graph import call, rewrite_calls
from graphweave.frontends.calls.captured_sizes import Size, argument, is_tensor, rank, same, shape, unbacked, val

aten = torch.ops.aten


def masks_to_indices(gm: fx.GraphModule) -> fx.GraphModule:
    """`gm`, or a copy in which each mask of whole rows is an index: nonzero picks each row once, in order.

    x[mask] reads along the index. For a write x[mask] = values, the values are added along the index to zeros, and
    taken where the mask is set; this is right since no row is written twice. Masks of single numbers stay masks.
    """
    return rewrite_calls(gm, mask_of, _rewrite)


def mask_of(node: fx.Node) -> fx.Node | None:
    """The mask of rows that `node` reads or writes by; None for any other call."""
    if node.target is aten.masked_select.default:
        x, mask = node.args
        return mask if is_tensor(x) and rank(x) == 1 and _masks_rows(mask, x) else None  # type: ignore[arg-type, return-value]
    if is_listed(node.target, pushes=False):
        mask = _only(node.args[1])
        return mask if _masks_rows(mask, node.args[0]) else None
    if is_listed(node.target, pushes=True):
        mask, values = _only(node.args[1]), node.args[2]
        if _masks_rows(mask, node) and is_tensor(values) and rank(values) == rank(node) and row_by_row(values):  # type: ignore[arg-type]
            return mask
    return None


def row_by_row(values: fx.Node) -> bool:
    """Whether `values` that a mask writes have a row for each that it picks, not one row that broadcasts: data decide
    their number, or it is not 1."""
    rows = shape(values)[0]
    return bool(unbacked(rows)) or statically_known_true(rows != 1)


def _only(indices: object) -> fx.Node | None:
    return indices[0] if isinstance(indices, Sequence) and len(indices) == 1 else None


def _masks_rows(mask: Any, x: Any) -> bool:
    if not is_tensor(mask) or not is_tensor(x) or rank(mask) != 1 or rank(x) == 0 or val(mask).dtype is not torch.bool:
        return False
    return same(shape(mask)[0], shape(x)[0])


def _rewrite(graph: fx.Graph, node: fx.Node, mask: fx.Node) -> None:
    with graph.inserting_before(node):
        if not is_listed(node.target, pushes=True):
            index = _index(graph, node, mask, shape(node)[0])
            new = call(graph, node, aten.index.Tensor, (node.args[0], [index]), val(node))
            for user in list(node.users):
                if user.target is aten.sym_size.int and user.args[1] == 0:
                    user.args = (index, 0)  # then nothing has to be gathered only to be counted
        else:
            base, _, values = node.args[:3]
            rows = shape(values)[0]  # type: ignore[arg-type]
            indices = [_index(graph, node, mask, rows)]
            if argument(node, "accumulate", False):
                new = call(graph, node, node.target, (base, indices, values, True), val(node))
            else:
                zeros = call(graph, node, aten.zeros_like.default, (base,), val(node))
                there = call(graph, node, aten.index_put.default, (zeros, indices, values, True), val(node))
                ones = [1 for _ in shape(node)[1:]]
                column = val(mask).new_empty([shape(mask)[0], *ones])
                picked = call(graph, node, aten.reshape.default, (mask, [-1, *ones]), column)
                new = call(graph, node, aten.where.self, (picked, there, base), val(node))
    node.replace_all_uses_with(new)
    graph.erase_node(node)


def _index(graph: fx.Graph, like: fx.Node, mask: fx.Node, rows: Size) -> fx.Node:
    """The rows that `mask` picks. Equal masks become one index when the graph is numbered."""
    empty = val(mask).new_empty
    found = call(graph, like, aten.nonzero.default, (mask,), empty((rows, 1), dtype=torch.int64))
    return call(graph, like, aten.squeeze.dim, (found, 1), empty((rows,), dtype=torch.int64))
