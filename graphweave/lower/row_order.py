"""Rows in an order of their own.

    for v: edges k in csr[v]: f(v, k)
->  for at: v = row_order[at]; edges k in csr[at]: f(v, k)

The CSR and its columns are in the order of `at` then (`runtime/edge_orders.py`), so that what a kernel reads of a graph
lies in the order in which it is read. Tensors of rows stay in the user's order.
"""

from __future__ import annotations

from dataclasses import replace

from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.walk import mapped

ROW_ORDER = "row_order"
"""Name of the index buffer that holds the row of each turn."""

_TURN = "at"


def in_row_order(kernel: loop.Kernel) -> loop.Kernel:
    """`kernel` over turns. It multiplies no matrices and walks no edges but those of its rows."""
    row = kernel.row

    def value(expr: loop.Expr) -> loop.Expr:
        match expr:
            case loop.Degree(csr, loop.Var(name)) if name == row:
                return loop.Degree(csr, loop.Var(_TURN))
        return mapped(expr, value)

    def statement(stmt: loop.Stmt) -> loop.Stmt:
        stmt = mapped(stmt, value, statement)
        if isinstance(stmt, loop.Edges | loop.Tiles) and stmt.row == row:
            return replace(stmt, row=_TURN)
        return stmt

    turn = loop.Let(row, kernel.index, loop.Load(ROW_ORDER, (loop.Var(_TURN),)))
    order = loop.Buffer(ROW_ORDER, loop.Role.index, kernel.index, kernel.sizes[0], ())
    body = (turn, *(statement(s) for s in kernel.body))
    return replace(kernel, row=_TURN, body=body, buffers=(*kernel.buffers, order))
