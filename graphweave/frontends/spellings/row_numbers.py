"""Replaces an index that was gathered from row numbers by the index of the gather: `arange(n)[i]` is `i`.

PyG expands compressed indices by repeating the number of each row, which is a gather of row numbers. Without this step,
the result and the index of the gather would be two different maps.
"""

from __future__ import annotations

import torch
from torch import fx

from graphweave.frontends.calls.call_facts import is_identity, is_reshape
from graphweave.frontends.calls.captured_graph import copied
from graphweave.frontends.calls.captured_sizes import rank, same, shape, val
from graphweave.frontends.calls.row_rules import index_vector, pulled, pushed

aten = torch.ops.aten


def without_gathered_numbers(gm: fx.GraphModule) -> fx.GraphModule:
    """`gm`, or a copy without gathers of row numbers that are only read as indices into as many rows.

    Calls that read an index check it, so an index out of range is also found without the gather.
    """
    gathers = [n for n in gm.graph.find_nodes(op="call_function", target=aten.index_select.default) if _needless(n)]
    if not gathers:
        return gm
    graph, copies = copied(gm)
    for node in gathers:
        copies[node].replace_all_uses_with(copies[node].args[2])  # type: ignore[arg-type]
        graph.erase_node(copies[node])
    return fx.GraphModule(gm, graph)


def _needless(node: fx.Node) -> bool:
    numbers, dim, index = node.args[:3]
    if dim != 0 or not _counts(numbers) or rank(index) != 1 or val(index).dtype != val(node).dtype:  # type: ignore[arg-type]
        return False
    return all(_is_index(node, user, shape(numbers)[0]) for user in node.users)  # type: ignore[arg-type]


def _counts(node: fx.Node) -> bool:
    """Whether `node` is arange(n)."""
    if node.target is aten.arange.default:
        return True
    starts_at_0 = node.target in (aten.arange.start, aten.arange.start_step) and node.args[0] == 0
    return bool(starts_at_0 and (len(node.args) < 3 or node.args[2] == 1))


def _is_index(node: fx.Node, user: fx.Node, rows: int) -> bool:
    """Whether `user` reads `node`, or a reshape of it, only as an index into `rows` rows."""
    if is_identity(user.target) or is_reshape(user.target):
        return index_vector(user) is node and all(_is_index(node, after, rows) for after in user.users)
    found = pulled(user) or pushed(user)
    if found is None or found[2] or found[0] is not node or not same(shape(found[1])[0], rows):
        return False
    return node not in (user.args[0], *user.args[3:])
