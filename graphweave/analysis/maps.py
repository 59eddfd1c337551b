"""What the computation of its index tells about a map."""

from __future__ import annotations

from collections.abc import Sequence

from graphweave.analysis.flow import is_view
from graphweave.ir.message.builder import operands
from graphweave.ir.message.nodes import Aten, MapOf, Node, Ref, Reshape

_DIFFERENT_ROWS = frozenset({
    "aten.nonzero.default", "aten.arange.default", "aten.arange.start", "aten.arange.start_step",
    "aten.randperm.default",
})  # fmt: skip
"""Calls whose results have no number twice."""

_ARGSORTS = frozenset({"aten.argsort.default", "aten.argsort.stable"})
_SORTS = frozenset({"aten.sort.default", "aten.sort.stable"})


def is_injective(nodes: Sequence[Node], m: Ref) -> bool:
    """Whether no two rows lead to the same row: the index lists positions of a mask, a range, or a permutation."""
    node = nodes[m]
    if not isinstance(node, MapOf) or node.wrap:
        return False
    made = nodes[node.index]
    if _sorts(nodes, made):  # Views are not looked through: a sort of columns of one number each gives only zeros.
        return True
    while (isinstance(made, Aten) and is_view(made) and _keeps_all(made)) or isinstance(made, Reshape):
        made = nodes[operands(made)[0]]
    return isinstance(made, Aten) and made.target in _DIFFERENT_ROWS


def _sorts(nodes: Sequence[Node], made: Node) -> bool:
    """Whether `made` is the permutation that a sort gives."""
    if not isinstance(made, Aten):
        return False
    if made.target == "builtin.getitem":
        tuple_, item = nodes[operands(made)[0]], made.args[1]
        return isinstance(tuple_, Aten) and tuple_.target in _SORTS and item == 1
    return made.target in _ARGSORTS


def _keeps_all(view: Aten) -> bool:
    """Whether the view drops or adds a dim of size 1, so that it has each number once."""
    return view.target in ("aten.squeeze.dim", "aten.unsqueeze.default")
