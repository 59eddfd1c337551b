"""Rows in different orders that a program combines, which over ranks gives another result: each rank sorts its own.

Rows that a sort put in order stand in the order of its node, all others in the order in which they were made, which has
no node. An index numbers rows in one of these orders, too: the positions that a sort or a mask gives are places among
the rows of its operand as these stand.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphweave.core.types import UNIT, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands


def mixed_orders(program: ir.Program, sharded: frozenset[Space]) -> Iterator[ir.Ref]:
    """Nodes that combine rows of one of the spaces `sharded` that stand in two orders, or that read or write rows in
    one order by an index that numbers them in another."""
    stands: list[ir.Ref | None] = []  # for each value the sort in whose order its rows stand
    numbers: list[ir.Ref | None] = []  # for each index the sort in whose order the rows stand that it numbers
    for ref, node in enumerate(program.nodes):
        used = operands(node)
        first = used[0] if used else None
        numbers.append(None if first is None else numbers[first])
        combined = used
        match node:
            case ir.Pull(x, m):
                combined = (m,)
                if _space_of_rows(program, x) in sharded and stands[x] != numbers[m]:
                    yield ref
            case ir.Order() | ir.Chosen():
                assert first is not None
                numbers[ref] = stands[first]
            case ir.DistinctRow():
                numbers[ref] = None
        found: dict[Space, set[ir.Ref | None]] = {}
        for r in combined:
            found.setdefault(_space_of_rows(program, r), set()).add(stands[r])
        if any(len(orders) > 1 for space, orders in found.items() if space in sharded):
            yield ref
        own = found.get(_space_of_rows(program, ref), {None})
        of_node = numbers[node.map] if isinstance(node, ir.Push) and node.map is not None else next(iter(own))
        stands.append(ref if isinstance(node, ir.Order) else of_node)


def _space_of_rows(program: ir.Program, ref: ir.Ref) -> Space:
    """The space of the rows of a value or a map; unit for what has none."""
    match program.types[ref]:
        case ir.Type(space=space) | ir.MapType(dom=space):
            return space
        case _:
            return UNIT
