"""Products of rows with blocks (heads): a bmm of [rows * blocks, m, k] becomes a matmul of [rows, blocks, m, k].

For both einsum and matmul, PyTorch joins rows and blocks into one dim before it multiplies. No dim of the operands of
bmm then corresponds to the rows of another value.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import fx

from graphweave.core.calls import Lead
from graphweave.frontends.calls.call_facts import facts, is_identity, is_reshape
from graphweave.frontends.calls.captured_graph import call, rewrite_calls
from graphweave.frontends.calls.captured_sizes import Size, is_tensor, rank, same, same_by_guard, shape, unbacked, val

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class _Joined:
    """An operand of bmm: a view [rows * blocks, ., .] of `source` [rows, ...], perhaps transposed."""

    source: fx.Node
    blocks: Size
    view: fx.Node
    transposed: bool


def blocks_apart(gm: fx.GraphModule) -> fx.GraphModule:
    """`gm`, or a copy in which each bmm whose joined rows and blocks come from pulled values is a matmul of four dims.

    Adds guards that fix the numbers of blocks and the sizes of their matrices.
    """
    return rewrite_calls(gm, _operands, _rewrite)


def _operands(node: fx.Node) -> tuple[_Joined, _Joined] | None:
    """The operands of a bmm over joined rows and blocks; None for any other node."""
    if node.target is not aten.bmm.default or not node.users:
        return None
    a, b = (_find_joined(x) for x in node.args[:2])
    known = next(((shape(j.source)[0], j.blocks) for j in (a, b) if j is not None), None) or _told_by_users(node)
    if known is None:
        return None
    a, b = a or _find_joined_as(node.args[0], *known), b or _find_joined_as(node.args[1], *known)
    if a is None or b is None or not same(a.blocks, b.blocks) or not same(shape(a.source)[0], shape(b.source)[0]):
        return None
    rows = known[0]
    apart = all(is_reshape(u.target) and rank(u) > 1 and same(shape(u)[0], rows) for u in node.users)
    return (a, b) if apart and (_is_pulled(a.source) or _is_pulled(b.source)) else None


def _find_joined(x: Any) -> _Joined | None:
    """The operand `x` if its rows and blocks are separate dims before they are joined, else None."""
    x, transposed = _view(x)
    if x is None:
        return None
    sizes = shape(x.args[0])
    for dims in range(2, len(sizes)):
        features = [*sizes[1:], *shape(x)[1:]]
        if same(prod(sizes[:dims]), shape(x)[0]) and not any(map(unbacked, features)) and _same_rest(sizes[dims:], x):
            return _Joined(x.args[0], prod(sizes[1:dims]), x, transposed)
    return None


def _told_by_users(node: fx.Node) -> tuple[Size, Size] | None:
    """The numbers of rows and blocks if a user of the product has them as separate dims, else None."""
    sizes = [shape(u) for u in node.users if is_reshape(u.target) and rank(u) == 4]
    return next(((s[0], s[1]) for s in sizes if same(s[0] * s[1], shape(node)[0])), None)


def _find_joined_as(x: Any, rows: Size, blocks: Size) -> _Joined | None:
    """The operand `x` if its blocks are parts of the features of `rows`, else None."""
    x, transposed = _view(x)
    if x is None or rank(x.args[0]) < 2:
        return None
    sizes = shape(x.args[0])
    if not same(sizes[0], rows) or any(map(unbacked, [*sizes[1:], *shape(x)[1:]])):
        return None
    fits = same(prod(sizes[1:]), blocks * prod(shape(x)[1:]))
    return _Joined(x.args[0], blocks, x, transposed) if fits else None


def _view(x: Any) -> tuple[Any, bool]:
    """The view of three dims below the transposes of `x` (None if there is none), and whether they transpose it."""
    transposed = False
    while x.target is aten.transpose.int and sorted(d % 3 for d in x.args[1:]) == [1, 2]:
        x, transposed = x.args[0], not transposed
    good = is_reshape(x.target) and rank(x) == 3 and is_tensor(x.args[0])
    return (x if good else None), transposed


def _same_rest(rest: tuple[Size, ...], view: fx.Node) -> bool:
    return same(prod(rest), prod(shape(view)[1:]))


def _is_pulled(node: Any) -> bool:
    """Whether the rows of `node` were gathered. What only rearranges or copies features is looked through."""
    while is_reshape(node.target) or is_identity(node.target) or facts(node.target).rows is Lead.permuted:
        node = node.args[0]
    index = facts(node.target).index
    return index is not None and not index.pushes


def _rewrite(graph: fx.Graph, node: fx.Node, joined: tuple[_Joined, _Joined]) -> None:
    a, b = joined
    for size in (a.blocks, *(n for x in (a, b) for n in shape(x.view)[1:])):
        int(size)
    # Guards on symbolic feature sizes made the numbers of rows equal; PyTorch does not solve these guards again.
    same_by_guard(shape(a.source)[0], shape(b.source)[0])
    with graph.inserting_before(node):
        operands = []
        for x in (a, b):
            features = (int(x.blocks), *(int(n) for n in shape(x.view)[1:]))
            value = val(x.source).new_empty((shape(x.source)[0], *features))
            apart = call(graph, node, aten.reshape.default, (x.source, [-1, *features]), value)
            if x.transposed:
                apart = call(graph, node, aten.transpose.int, (apart, 2, 3), value.transpose(2, 3))
            operands.append(apart)
        m, n = (int(size) for size in shape(node)[1:])
        value = val(node).new_empty((shape(a.source)[0], int(a.blocks), m, n))
        new = call(graph, node, aten.matmul.default, tuple(operands), value)
    for user in list(node.users):
        user.replace_input_with(node, new)
    graph.erase_node(node)
