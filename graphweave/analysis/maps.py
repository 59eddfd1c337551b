"""Facts about a map that follow from how its index is computed."""

from __future__ import annotations

from collections.abc import Sequence

from graphweave.analysis.flow import is_view
from graphweave.core.calls import Elements, Lead, facts_of
from graphweave.core.types import UNIT
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands

SAME_ROWS = (Elements.same, Elements.converted)
"""Elements of results of which each row is that row of the operand."""
REARRANGED = (Elements.reshaped, Elements.moved)
"""Elements of results that are those of the operands, perhaps in other places."""
COUNTED = (Elements.numbered, Elements.counted)
"""Elements of results that are the numbers of as many rows as the sizes say."""
_DIFFERENT = (Elements.positions, *COUNTED, Elements.shuffled)
"""Elements of vectors that have no number twice."""


def elements(nodes: Sequence[ir.Node], ref: ir.Ref) -> Elements:
    """The kind of elements of a call's result, of the item of a call with several, or of rows in an order."""
    made = nodes[ref]
    if isinstance(made, ir.Order | ir.Chosen):
        return Elements.positions
    if not isinstance(made, ir.Aten):
        return Elements.computed
    if made.target == "builtin.getitem":
        several, item = nodes[operands(made)[0]], made.args[1]
        known = facts_of(several.target).results if isinstance(several, ir.Aten) else ()
        return known[item] if isinstance(item, int) and item < len(known) > 1 else Elements.computed
    return facts_of(made.target).elements


def is_injective(nodes: Sequence[ir.Node], m: ir.Ref) -> bool:
    """Whether no two rows lead to the same row: the index lists positions of a mask, a range, or a permutation."""
    node = nodes[m]
    if not isinstance(node, ir.MapOf) or node.wrap:
        return False
    ref = node.index
    if elements(nodes, ref) in _DIFFERENT:
        return True
    while _keeps_all(nodes[ref]):
        ref = operands(nodes[ref])[0]
    # a sort of columns of one number each gives only zeros
    return elements(nodes, ref) in _DIFFERENT and not _along_a_dim(nodes, ref)


def _along_a_dim(nodes: Sequence[ir.Node], ref: ir.Ref) -> bool:
    """Whether the numbers are positions along one dim of an operand that may have others."""
    made = nodes[ref]
    return (
        isinstance(made, ir.Aten) and elements(nodes, ref) is Elements.positions and not facts_of(made.target).of_data
    )


def _keeps_all(node: ir.Node) -> bool:
    """Whether the node drops or adds dims of size 1, so that it has each number once."""
    if isinstance(node, ir.Reshape):
        return True
    known = facts_of(node.target) if isinstance(node, ir.Aten) and is_view(node) else None
    return known is not None and known.elements is Elements.reshaped and known.rows is not Lead.repeated


def source_of(nodes: Sequence[ir.Node], ref: ir.Ref) -> ir.Ref:
    """The value whose numbers integers are, seen through casts, other shapes, copies and choices among its rows."""
    while isinstance(node := nodes[ref], ir.Reshape | ir.Cast) or (isinstance(node, ir.Aten) and _chooses(node)):
        ref = operands(node)[0]
    return ref


def _chooses(node: ir.Aten) -> bool:
    """Whether the result has the first operand's numbers, or some of them that an index or their place says."""
    known = facts_of(node.target)
    by_index = known.index is not None and not known.index.pushes and not known.index.spread
    by_place = known.rows is Lead.along and known.elements is Elements.moved
    return known.elements in SAME_ROWS or by_index or by_place


def is_position(program: ir.Program, ref: ir.Ref) -> bool:
    """Whether integers are the positions of rows among all rows of a space, such as those of a mask or a count."""
    source = source_of(program.nodes, ref)
    node, found = program.nodes[source], elements(program.nodes, source)
    if found in COUNTED:  # of a size that varies, so of rows that a rank has of its own
        return bool(operands(node))
    if found is not Elements.positions:
        return False
    called = (
        program.nodes[operands(node)[0]] if isinstance(node, ir.Aten) and node.target == "builtin.getitem" else node
    )
    t = program.types[operands(called)[0]]
    return isinstance(t, ir.Type) and t.space != UNIT and t.shape == ()


def in_equal_runs(nodes: Sequence[ir.Node], m: ir.Ref) -> bool:
    """Whether the rows that lead to one row are a run, and all runs are equally long."""
    node = nodes[m]
    return isinstance(node, ir.MapOf) and isinstance(nodes[node.index], ir.EqualRuns)


def item_map(nodes: Sequence[ir.Node], m: ir.Ref) -> ir.Ref | None:
    """The map of one item, if the map `m` is that map for each item of a batch; else None."""
    node = nodes[m]
    index = nodes[node.index] if isinstance(node, ir.MapOf) else None
    return index.map if isinstance(index, ir.EachItem) else None


def is_repeated(nodes: Sequence[ir.Node], m: ir.Ref) -> bool:
    """Whether the rows that the map reads are repeated for each item of a batch."""
    node = nodes[m]
    return isinstance(node, ir.MapOf) and isinstance(nodes[node.index], ir.Rounds)
