"""ATen calls that read or write one number of each row at the column that an index gives -> comparisons with the index.

gather(x, 1, i)[r] = sum over c of (x[r, c] where c = i[r], else 0). This is row-wise, so it joins the kernel of its
neighbours. A loss on class labels makes these calls in the forward and in the backward.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from torch import fx

from graphweave.core.errors import IRError
from graphweave.core.types import UNIT, DType, Fold, Op
from graphweave.frontends.calls.captured_sizes import argument, dim_of, rank
from graphweave.frontends.importing.context import Context, Handler, Table
from graphweave.frontends.importing.ops_shape import SHAPE
from graphweave.frontends.importing.ops_sparse import SPARSE
from graphweave.ir.message.nodes import Cast, Ref, Reshape

aten = torch.ops.aten

_MAX_COLUMNS = 1024
"""With more columns than this, a PyTorch call is faster than comparing each column."""


def _feature_dim(node: fx.Node) -> int | None:
    """The feature dim along which `node` reads or writes; None if that is the dim of rows."""
    dim = dim_of(node.args[1], rank(node))  # type: ignore[arg-type]
    return dim - 1 if dim > 0 else None


def _here(cx: Context, x: Ref, index: object, d: int) -> Ref:
    """For each number of `x`, whether `index` names its position along feature dim `d`."""
    t, i = cx.type(x), cx.value(index)
    count = t.shape[d]
    if cx.type(i).space != t.space or t.space == UNIT or cx.type(i).shape != (*t.shape[:d], 1, *t.shape[d + 1 :]):
        raise IRError("an index that is not one number for each row")
    if not 0 < count <= _MAX_COLUMNS:
        raise IRError(f"one of {count} columns")
    columns = cx.reshape(cx.arange(0, count, 1, DType.i32), (count, *(1 for _ in t.shape[d + 1 :])))
    here = cx.map(Op.eq, columns, cx.cast(i, DType.i32))
    if not _is_column(cx, i):
        cx.assert_index(i, count)
    return here


def _is_column(cx: Context, i: Ref) -> bool:
    """Whether `i` was found by `extreme`, so that it needs no check."""
    while isinstance(made := cx.builder.nodes[i], Reshape | Cast):
        i = made.x
    return i in cx.columns


def extreme(cx: Context, node: fx.Node) -> Ref | None:
    """An item of max or min along features: the extreme numbers, or the first columns that have them; None for items of
    other calls. NaN is greater than, and less than, every number, as in PyTorch."""
    source, item = node.args
    if not isinstance(source, fx.Node) or source.target not in _EXTREMES:
        return None
    x, d, keepdim = cx.value(source.args[0]), _source_dim(source), bool(argument(source, "keepdim", False))
    t, fold = cx.type(x), _EXTREMES[source.target]
    if t.space == UNIT or d is None or t.dtype is DType.bool or not 0 < t.shape[d] <= _MAX_COLUMNS:
        raise IRError("the extreme of shared data, of rows, or of many columns")
    if item == 0:
        return cx.reduce(x, fold, (d,), keepdim)
    has = cx.map(Op.eq, x, cx.reduce(x, fold, (d,), True))
    if t.dtype.is_float:
        has = cx.map(Op.logical_or, has, cx.map(Op.isnan, x))
    count = t.shape[d]
    columns = cx.reshape(cx.arange(0, count, 1, DType.i32), (count, *(1 for _ in t.shape[d + 1 :])))
    first = cx.reduce(cx.map(Op.where, has, columns, cx.const(count - 1, DType.i32)), Fold.min, (d,), keepdim)
    cx.columns.add(first)
    return cx.cast(first, cx.result(node).dtype)


_EXTREMES = {aten.max.dim: Fold.max, aten.min.dim: Fold.min}
"""Calls that give the extreme numbers along a dim, and where they are."""


def _source_dim(source: fx.Node) -> int | None:
    dim = dim_of(source.args[1], rank(source.args[0]))  # type: ignore[arg-type]
    return dim - 1 if dim > 0 else None


def _item(cx: Context, node: fx.Node) -> Ref | None:
    found = extreme(cx, node)
    return SHAPE[operator.getitem](cx, node) if found is None else found


def _gather(cx: Context, node: fx.Node, d: int) -> Ref:
    """x where `index` picks it, else 0, summed over columns."""
    x = cx.value(node.args[0])
    t = cx.type(x)
    if t.dtype is DType.bool:
        raise IRError("picks bools")
    zero = cx.const(0, t.dtype)
    return cx.reduce(cx.map(Op.where, _here(cx, x, node.args[2], d), x, zero), Fold.sum, (d,), True)


def _scatter_value(cx: Context, node: fx.Node, d: int) -> Ref:
    base = cx.value(node.args[0])
    value = cx.scalar(node.args[3], cx.result(node).dtype)
    return cx.map(Op.where, _here(cx, base, node.args[2], d), value, base)


def _scatter(cx: Context, node: fx.Node, d: int) -> Ref:
    base, source = _base_and_source(cx, node)
    return cx.map(Op.where, _here(cx, base, node.args[2], d), source, base)


def _scatter_add(cx: Context, node: fx.Node, d: int) -> Ref:
    base, source = _base_and_source(cx, node)
    t = cx.type(base)
    if t.dtype is DType.bool:
        raise IRError("accumulates bools")
    here = cx.map(Op.where, _here(cx, base, node.args[2], d), source, cx.const(0, t.dtype))
    return here if cx.number_of(base) == 0 else cx.map(Op.add, base, here)


def _base_and_source(cx: Context, node: fx.Node) -> tuple[Ref, Ref]:
    base, source, index = (cx.value(node.args[i]) for i in (0, 3, 2))
    if cx.type(source).shape != cx.type(index).shape or cx.type(source).space != cx.type(base).space:
        raise IRError("writes of several numbers in a place one")
    return base, source


def _or_rows(target: object, along_features: Callable[[Context, fx.Node, int], Ref]) -> Handler:
    """A handler for `target`: `along_features` translates a call along features; along rows it is a pull or push."""

    def handler(cx: Context, node: fx.Node) -> Ref | None:
        d = _feature_dim(node)
        if d is not None:
            return along_features(cx, node, d)
        by_rows = SPARSE.get(target)
        return None if by_rows is None else by_rows(cx, node)

    return handler


COLUMNS: Table = {
    operator.getitem: _item,
    **{
        target: _or_rows(target, handler)
        for target, handler in {
            aten.gather.default: _gather,
            aten.scatter.value: _scatter_value,
            aten.scatter.src: _scatter,
            aten.scatter_add.default: _scatter_add,
        }.items()
    },
}
"""The handlers of these calls."""
