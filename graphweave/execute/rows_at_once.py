"""Calls that select the rows of one tensor, each a call of PyTorch -> one call that makes all of them.

The gradients of relations come out of kernels as one stack, and an edge_index is taken apart into two rows. A call for
each row takes a microsecond of Python, for 140 relations as long as the kernels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from graphweave.core.calls import named
from graphweave.core.types import UNIT
from graphweave.ir.message import nodes as ir
from graphweave.ir.tape import nodes as tape


def rows_at_once(steps: Iterable[tape.Step], program: ir.Program) -> dict[ir.Ref, tuple[ir.Ref, ...]]:
    """The rows that steps select of a tensor, in order, where they are all of its rows and more than one. The key is
    the row that is selected first."""
    found: dict[tuple[ir.Ref, int], dict[int, ir.Ref]] = defaultdict(dict)
    for step in steps:
        if isinstance(step, tape.CallNode) and (row := _row(program, step.value)) is not None:
            x, rows, at = row
            found[x, rows].setdefault(at, step.value)
    return {
        next(iter(values.values())): tuple(values[at] for at in range(rows))
        for (_, rows), values in found.items()
        if 1 < rows == len(values)
    }


def _row(program: ir.Program, ref: ir.Ref) -> tuple[ir.Ref, int, int] | None:
    """The tensor of which a node is one row, the number of its rows, and the number of the row; None if it is none, or
    if the number of rows is not the same in all calls."""
    match program.nodes[ref]:
        case ir.Part(x, of, at) if all(space == UNIT for space in of):
            return x, len(of), at
        case ir.Aten(named.SELECT, (ir.Operand(x), 0, int(at)), ()):
            t = program.types[x]
            rows = t.dims[0] if isinstance(t, ir.AnyType) and t.dims else None
            return (x, rows, at) if isinstance(rows, int) and 0 <= at < rows else None
    return None
