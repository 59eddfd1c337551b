"""What the computation of its index tells about a map."""

from __future__ import annotations

from collections.abc import Sequence

from graphweave.analysis.flow import is_view
from graphweave.core.calls import Elements, Lead, facts_of
from graphweave.ir.message.builder import operands
from graphweave.ir.message.nodes import Aten, Chosen, MapOf, Node, Order, Ref, Reshape

_DIFFERENT = (Elements.positions, Elements.numbered, Elements.counted, Elements.shuffled)
"""Elements of vectors that have no number twice."""


def elements(nodes: Sequence[Node], ref: Ref) -> Elements:
    """What the elements of a call's result are, of the item of a call with several, or of rows in an order."""
    made = nodes[ref]
    if isinstance(made, Order | Chosen):
        return Elements.positions
    if not isinstance(made, Aten):
        return Elements.computed
    if made.target == "builtin.getitem":
        several, item = nodes[operands(made)[0]], made.args[1]
        known = facts_of(several.target).results if isinstance(several, Aten) else ()
        return known[item] if isinstance(item, int) and item < len(known) > 1 else Elements.computed
    return facts_of(made.target).elements


def is_injective(nodes: Sequence[Node], m: Ref) -> bool:
    """Whether no two rows lead to the same row: the index lists positions of a mask, a range, or a permutation."""
    node = nodes[m]
    if not isinstance(node, MapOf) or node.wrap:
        return False
    ref = node.index
    if elements(nodes, ref) in _DIFFERENT:
        return True
    while _keeps_all(nodes[ref]):
        ref = operands(nodes[ref])[0]
    # a sort of columns of one number each gives only zeros
    return elements(nodes, ref) in _DIFFERENT and not _along_a_dim(nodes, ref)


def _along_a_dim(nodes: Sequence[Node], ref: Ref) -> bool:
    """Whether the numbers are positions along one dim of an operand that may have others."""
    made = nodes[ref]
    return isinstance(made, Aten) and elements(nodes, ref) is Elements.positions and not facts_of(made.target).of_data


def _keeps_all(node: Node) -> bool:
    """Whether the node drops or adds dims of size 1, so that it has each number once."""
    if isinstance(node, Reshape):
        return True
    known = facts_of(node.target) if isinstance(node, Aten) and is_view(node) else None
    return known is not None and known.elements is Elements.reshaped and known.rows is not Lead.repeated
