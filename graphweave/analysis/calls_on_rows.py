"""Calls of PyTorch on rows that ranks have of their own: which of them keep rows, choose among them or number them."""

from __future__ import annotations

from collections.abc import Callable

from graphweave.analysis.maps import elements
from graphweave.core.calls import UNKNOWN, ByRank, Elements, Lead, facts_of
from graphweave.core.types import UNIT
from graphweave.ir.message.builder import operands
from graphweave.ir.message.nodes import AssertIndex, Aten, Cast, Node, Operand, Order, Program, Ref, Reshape, Type

SAME_ROWS = (Elements.same, Elements.converted)
"""Elements of results of which each row is that row of the operand."""
REARRANGED = (Elements.reshaped, Elements.moved)
"""Elements of results that are those of the operands, perhaps in other places."""
COUNTED = (Elements.numbered, Elements.counted)
"""Elements of results that are the numbers of as many rows as the sizes say."""
POSITIONS = (Elements.positions, *COUNTED)
"""Elements of results that are numbers of rows that this rank has."""


def _origin(program: Program, ref: Ref, passes: Callable[[Aten], bool] = lambda node: False) -> Ref:
    """The value from which integers have their numbers, seen through casts, checks, other shapes and calls that
    `passes` names."""
    node = program.nodes[ref]
    while isinstance(node, Reshape | Cast | AssertIndex) or (isinstance(node, Aten) and passes(node)):
        ref = operands(node)[0]
        node = program.nodes[ref]
    return ref


def _keeps_rows(node: Aten) -> bool:
    return facts_of(node.target).elements in SAME_ROWS


def _by_place(node: Aten) -> bool:
    """Whether the call chooses or turns rows by their place: a slice, a flip."""
    known = facts_of(node.target)
    return known.rows is Lead.along and known.elements is Elements.moved


def _chosen(node: Aten) -> bool:
    """Whether the result has some of the first operand's numbers, in an order that an index says."""
    index = facts_of(node.target).index
    return _keeps_rows(node) or (index is not None and not index.pushes and not index.spread)


def _some_numbers(node: Aten) -> bool:
    """Whether the result has some of the first operand's numbers, in any order."""
    return _chosen(node) or _by_place(node)


def is_position(program: Program, ref: Ref) -> bool:
    """Whether integers are the positions of rows among all rows of a space, such as those of a mask or a count."""
    origin = _origin(program, ref, _some_numbers)
    found, node = elements(program.nodes, origin), program.nodes[origin]
    if found in COUNTED:  # of a size that varies, so of rows that a rank has of its own
        return bool(operands(node))
    if found is not Elements.positions:
        return False
    called = program.nodes[operands(node)[0]] if _is_item(node) else node
    return _is_flat(program, operands(called)[0])


def reorders(program: Program, ref: Ref) -> bool:
    """Whether integers are the numbers of a count in another order, or from a later one on, or some by their place."""
    origin = _origin(program, ref, _some_numbers)
    found, node = elements(program.nodes, origin), program.nodes[origin]
    if found not in COUNTED or not isinstance(node, Aten):
        return False
    later = found is Elements.counted and isinstance(node.args[0], int) and node.args[0] != 0
    return later or origin != _origin(program, ref, _chosen)


def is_count(program: Program, ref: Ref) -> bool:
    """Whether integers count rows, one after the other."""
    return elements(program.nodes, _origin(program, ref)) in COUNTED


def ordering(program: Program, ref: Ref) -> Ref | None:
    """The sort whose order of rows integers are; None for others."""
    ref = _origin(program, ref, _keeps_rows)
    node = program.nodes[ref]
    if isinstance(node, Order):
        return ref
    if elements(program.nodes, ref) is not Elements.positions:
        return None
    if _is_item(node):
        ref = operands(node)[0]
        node = program.nodes[ref]
    known = facts_of(node.target) if isinstance(node, Aten) else UNKNOWN
    return ref if known.by_rank is ByRank.integers and not known.of_data else None


def _is_item(node: Node) -> bool:
    return isinstance(node, Aten) and node.target == "builtin.getitem"


def _is_flat(program: Program, ref: Ref) -> bool:
    """Whether the value is one number a row."""
    t = program.types[ref]
    return isinstance(t, Type) and t.space != UNIT and t.shape == ()


def moved(node: Aten) -> tuple[Ref, ...]:
    """The operands whose elements are those of the result, not the indices or masks that choose them."""
    refs, known = operands(node), facts_of(node.target)
    return refs[:1] if known.moves_rows else refs


def keeps_pairs(node: Aten) -> bool:
    """Whether a call on [2, n] chooses or joins columns, so that both rows stay."""
    known = facts_of(node.target)
    takes = known.index is not None or known.rows in (Lead.joined, Lead.along)
    match node.args:
        case (_, (None, Operand())):
            return takes
        case (_, 1 | -1, *_):
            return takes
        case _:
            return False
