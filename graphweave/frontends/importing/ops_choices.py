"""ATen calls that sort rows, and that list the rows of a mask -> Order, Chosen, and pulls along these."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from graphweave.core.errors import IRError
from graphweave.core.types import UNIT, DType, Op
from graphweave.frontends.calls.captured_sizes import argument, dim_of, rank
from graphweave.frontends.importing.context import Context, Table
from graphweave.frontends.importing.ops_columns import COLUMNS
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import Chosen, MapOf, Order, Pull, Ref

aten = torch.ops.aten

_SORTS = frozenset({aten.sort.default, aten.sort.stable})
"""Calls that give the sorted rows, and the order."""


def _order(cx: Context, node: fx.Node) -> Ref:
    """The order into which a sort puts the rows of its operand, as an index. IRError if it does not sort rows of one
    number."""
    x = cx.value(node.args[0])
    t = cx.type(x)
    if t.space == UNIT or numel(t.shape) != 1 or dim_of(argument(node, "dim", -1), rank(node.args[0])) != 0:  # type: ignore[arg-type]
        raise IRError("sorts shared data, or several numbers a row")
    return cx.emit(Order((cx.reshape(x, ()),), (bool(argument(node, "descending", False)),)))


def _item(cx: Context, node: fx.Node) -> Ref | None:
    """The sorted rows, or their order; items of other calls are those of `COLUMNS`."""
    source, item = node.args
    if not isinstance(source, fx.Node) or source.target not in _SORTS:
        return COLUMNS[operator.getitem](cx, node)
    order = _order(cx, source)
    if item == 1:
        return cx.reshape(order, cx.result(node).shape)
    rows: Any = cx.value(source.args[0])
    return cx.emit(Pull(rows, cx.emit(MapOf(order, cx.type(rows).space))))


def _nonzero(cx: Context, node: fx.Node) -> Ref:
    """nonzero of one number a row: the rows that the mask chooses, [rows, 1]."""
    x, t = cx.value(node.args[0]), cx.result(node)
    of = cx.type(x)
    if of.space == UNIT or t.space == UNIT or of.shape != ():
        raise IRError("lists places in shared data, or in several numbers a row")
    mask = x if of.dtype is DType.bool else cx.map(Op.ne, x, cx.const(0, of.dtype))
    return cx.reshape(cx.emit(Chosen(mask, t.space)), t.shape)


CHOICES: Table = {
    operator.getitem: _item,
    aten.nonzero.default: _nonzero,
}
"""The handlers of these calls."""
