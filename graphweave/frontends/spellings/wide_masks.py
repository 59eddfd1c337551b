"""Turns masks of several dims into masks of rows: x[mask] = x.reshape(-1, ...)[mask.reshape(-1)].

Dense batches, [graphs, places, ...], are read and written by masks of graphs and places. Graphs times places are rows
of one space, so that the numbers of nodes move between it and the nodes along a map (`masks.py`). One number that is
written to single elements, x[x == 0] = 1e-6, is chosen for each element instead.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from graphweave.frontends.calls.call_facts import is_listed
from graphweave.frontends.calls.captured_graph import call, rewrite_calls
from graphweave.frontends.calls.captured_sizes import argument, fixed, is_tensor, rank, same, shape, val
from graphweave.frontends.spellings.masks import row_by_row

aten = torch.ops.aten


def wide_masks_to_rows(gm: fx.GraphModule) -> fx.GraphModule:
    """`gm`, or a copy in which each mask of the first dims of a tensor is a mask of as many rows, or of elements."""
    return rewrite_calls(gm, _mask_of, _rewrite)


def _mask_of(node: fx.Node) -> fx.Node | None:
    """The mask of two or more dims by which `node` reads rows, or writes one number or as many rows as it picks; None
    for others."""
    writes = is_listed(node.target, pushes=True)
    if not writes and not is_listed(node.target, pushes=False):
        return None
    x, indices = node.args[:2]
    mask: Any = indices[0] if isinstance(indices, list | tuple) and len(indices) == 1 else None
    if not is_tensor(mask) or not is_tensor(x) or val(mask).dtype is not torch.bool or rank(mask) < 2:
        return None
    if writes:
        values: Any = node.args[2]
        if _is_number(node) and rank(mask) == rank(x):  # type: ignore[arg-type]
            return mask if all(map(same, shape(mask), shape(x))) else None  # type: ignore[arg-type]
        rows = is_tensor(values) and rank(values) == rank(x) - rank(mask) + 1  # type: ignore[arg-type]
        if not rows or not row_by_row(values):
            return None
    whole = all(same(m, n) for m, n in zip(shape(mask), shape(x), strict=False))  # type: ignore[arg-type]
    rest = [fixed(n) for n in shape(x)[rank(mask) :]]  # type: ignore[arg-type]
    return mask if whole and all(rest) else None


def _is_number(node: fx.Node) -> bool:
    """Whether a write takes one number."""
    values: Any = node.args[2]
    return is_tensor(values) and rank(values) == 0 and not argument(node, "accumulate", False)


def _rewrite(graph: fx.Graph, node: fx.Node, mask: fx.Node) -> None:
    x: Any = node.args[0]
    writes = is_listed(node.target, pushes=True)
    with graph.inserting_before(node):
        if writes and _is_number(node):
            new = call(graph, node, aten.where.self, (mask, node.args[2], x), val(node))
        else:
            new = _by_rows(graph, node, mask, writes=writes)
    node.replace_all_uses_with(new)
    graph.erase_node(node)


def _by_rows(graph: fx.Graph, node: fx.Node, mask: fx.Node, *, writes: bool) -> fx.Node:
    """The read or write by a mask of as many rows as `mask` has elements."""
    x: Any = node.args[0]
    rest, rows = list(shape(x)[rank(mask) :]), math.prod(shape(mask))
    flat = call(graph, node, aten.reshape.default, (x, [-1, *rest]), val(x).new_empty([rows, *rest]))
    picks = call(graph, node, aten.reshape.default, (mask, [-1]), val(mask).new_empty([rows]))
    if not writes:
        return call(graph, node, aten.index.Tensor, (flat, [picks]), val(node))
    args = (flat, [picks], node.args[2], bool(argument(node, "accumulate", False)))
    written = call(graph, node, aten.index_put.default, args, val(flat))
    sizes = [call(graph, node, aten.sym_size.int, (mask, d), n) for d, n in enumerate(shape(mask))]
    whole = [n if fixed(s) is None else fixed(s) for n, s in zip(sizes, shape(mask), strict=True)]
    return call(graph, node, aten.reshape.default, (written, [*whole, *rest]), val(node))
