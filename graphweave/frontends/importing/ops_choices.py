"""ATen calls that sort rows, find those that differ, and list those of a mask -> Order, Distinct, Chosen, and pulls
along these; sums along rows -> RunningSum."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from graphweave.core.errors import NO_KERNEL, IRError
from graphweave.core.types import UNIT, DType, Fold, Op
from graphweave.frontends.calls.captured_sizes import argument, dim_of, rank
from graphweave.frontends.calls.row_rules import running_sum
from graphweave.frontends.importing.context import Context, Table
from graphweave.frontends.importing.ops_columns import COLUMNS
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.infer import numel

aten = torch.ops.aten

_SORTS = frozenset({aten.sort.default, aten.sort.stable})
"""Calls that give the sorted rows, and the order."""

_TELL_APART = frozenset({aten._unique2.default, aten.unique_dim.default})
"""Calls that give the distinct rows, the place among them of each row's, and how many rows are equal to each."""

_OF_DISTINCT = (0, 2)
"""Items of a call for distinct rows that have one row for each of these."""

_MAX_KEYS = 8
"""Rows of more numbers than this are told apart by PyTorch."""


def _order(cx: Context, node: fx.Node) -> ir.Ref:
    """The order into which a sort puts the rows of its operand, as an index. IRError if it does not sort rows of one
    number."""
    x = cx.value(node.args[0])
    t = cx.type(x)
    if t.space == UNIT or numel(t.shape) != 1 or dim_of(argument(node, "dim", -1), rank(node.args[0])) != 0:  # type: ignore[arg-type]
        raise IRError("sorts shared data, or several numbers a row")
    return cx.emit(ir.Order((cx.reshape(x, ()),), (bool(argument(node, "descending", False)),)))


def _distinct(cx: Context, call: fx.Node, item: object) -> ir.Ref:
    """The rows of one integer or a few that differ, the place among them of each row's, or how many rows are equal to
    each. IRError for other tensors, and if the distinct rows are not asked to be sorted."""
    x = cx.value(call.args[0])
    t = cx.type(x)
    spaces = {cx.result(n).space for n in call.users if n.args[1] in _OF_DISTINCT}
    count = numel(t.shape)
    if t.space == UNIT or t.dtype.is_float or t.dtype is DType.bool or len(spaces) != 1 or not 0 < count <= _MAX_KEYS:
        raise IRError("tells apart rows of many numbers, or numbers that are no integers")
    if not argument(call, "sorted", True):
        raise IRError("gives the different numbers in any order")
    space = spaces.pop()
    row = cx.reshape(x, (count,))
    keys = [cx.reshape(cx.emit(ir.Slice(row, 0, k, k + 1)), ()) for k in range(count)]
    distinct = cx.emit(ir.Distinct(tuple(keys), space))
    if item == 0:
        found = [cx.reshape(cx.emit(ir.DistinctKey(distinct, k)), (1,)) for k in range(count)]
        return cx.cast(found[0] if count == 1 else cx.emit(ir.Concat(tuple(found), 0)), t.dtype)
    of_row = cx.emit(ir.DistinctRow(distinct))
    return of_row if item == 1 else cx.push(cx.const(1, DType.i64, t.space), cx.emit(ir.MapOf(of_row, space)), Fold.sum)


def _item(cx: Context, node: fx.Node) -> ir.Ref | None:
    """The sorted rows, or their order, or what is asked of distinct rows; items of other calls are those of
    `COLUMNS`."""
    source, item = node.args
    if isinstance(source, fx.Node) and source.target in _TELL_APART:
        return cx.reshape(_distinct(cx, source, item), cx.result(node).shape)
    if not isinstance(source, fx.Node) or source.target not in _SORTS:
        return COLUMNS[operator.getitem](cx, node)
    order = _order(cx, source)
    if item == 1:
        return cx.reshape(order, cx.result(node).shape)
    rows: Any = cx.value(source.args[0])
    return cx.emit(ir.Pull(rows, cx.emit(ir.MapOf(order, cx.type(rows).space))))


def _nonzero(cx: Context, node: fx.Node) -> ir.Ref:
    """nonzero of one number a row: the rows that the mask chooses, [rows, 1]."""
    x, t = cx.value(node.args[0]), cx.result(node)
    of = cx.type(x)
    if of.space == UNIT or t.space == UNIT or of.shape != ():
        raise IRError("lists places in shared data, or in several numbers a row")
    mask = x if of.dtype is DType.bool else cx.map(Op.ne, x, cx.const(0, of.dtype))
    return cx.reshape(cx.emit(ir.Chosen(mask, t.space)), t.shape)


def _running_sum(cx: Context, node: fx.Node) -> ir.Ref:
    """A running sum of rows. Other calls of cumsum and flip stay with PyTorch."""
    found, t = running_sum(node), cx.result(node)
    if found is None or t.space == UNIT:
        raise IRError(*NO_KERNEL.parts)
    x, reverse = found
    return cx.emit(ir.RunningSum(cx.cast(cx.value(x), t.dtype), reverse))


CHOICES: Table = {
    aten.cumsum.default: _running_sum,
    aten.flip.default: _running_sum,
    operator.getitem: _item,
    aten.nonzero.default: _nonzero,
}
"""The handlers of these calls."""
