"""ATen calls that move rows along an index -> Pull and Push. Covers all of PyTorch's spellings, forward and
backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from graphweave.analysis.maps import is_injective
from graphweave.core.calls import CALLS
from graphweave.core.errors import IRError
from graphweave.core.numbers import alike, least, neutral
from graphweave.core.own_reducer import OwnReducer
from graphweave.core.types import UNIT, DType, Fold, Op
from graphweave.frontends.calls.captured_sizes import argument, fixed, is_tensor, rank, val
from graphweave.frontends.calls.row_rules import pulled, pushed
from graphweave.frontends.importing.context import Context, Table
from graphweave.ir import fold_rows as _registers_the_operator  # noqa: F401
from graphweave.ir.message.aten import resolve
from graphweave.ir.message.infer import broadcast_shapes, numel
from graphweave.ir.message.nodes import Pull, Ref

aten = torch.ops.aten


def _pull(cx: Context, node: fx.Node) -> Ref:
    """index_select, gather, index, embedding -> x pulled along the map."""
    found = pulled(node)
    if found is None:
        raise IRError("the index is not one number for each row, or does not count rows")
    index, x, wrap = found
    rows, t = cx.value(x), cx.result(node)
    features = cx.type(rows).shape
    if node.target is aten.gather.default and t.shape != features:
        raise IRError("gathers some of the features")
    out = cx.emit(Pull(rows, cx.map_of(index, x, wrap)))
    return cx.reshape(out, t.shape) if node.target is aten.embedding.default else out


def _map(cx: Context, node: fx.Node) -> Ref:
    """The map of a call that pushes, from the rows of its index to the rows of its result."""
    found = pushed(node)
    if found is None:
        raise IRError("the index is not one number for each row, or does not count rows")
    index, out, wrap = found
    return cx.map_of(index, out, wrap)


def _source(cx: Context, node: fx.Node, arg: Any, map_: Ref, *, wide: bool = False) -> Ref:
    """The value that is pushed: rows of the map's domain with the result's features (broadcast to them if `wide`)."""
    dom, features, ref = cx.spaces.space_of(_index(node)), cx.result(node).shape, cx.value(arg)
    t = cx.type(ref)
    if wide and t.space == UNIT:
        # the values of index_put broadcast from the right against [rows of the index, features]
        if len(t.shape) == 1 + len(features):
            if t.shape[0] != 1:
                raise IRError("values of as many rows as the index that are shared data")
            ref = cx.reshape(ref, t.shape[1:])
        ref = cx.spread(cx.broadcast(ref, features), dom)
    elif wide and rank(arg) == 1 + len(features) and broadcast_shapes([t.shape, features]) == features:
        ref = cx.broadcast(ref, features)
    t = cx.type(ref)
    if t.space != dom or t.shape != features:
        raise IRError(
            f"pushes {list(t.shape)} on ", t.space, f" where {list(features)} on ", dom, " would be all of it"
        )
    return ref


def _index(node: fx.Node) -> fx.Node:
    found = pushed(node)
    assert found is not None
    return found[0]


def _base(cx: Context, node: fx.Node) -> Ref:
    base, t = cx.value(node.args[0]), cx.result(node)
    if cx.type(base) != t:
        raise IRError("a base of ", cx.type(base), " for a result of ", t)
    return base


def _added(cx: Context, node: fx.Node, base: Ref, pushed_: Ref) -> Ref:
    number = cx.number_of(base)
    if number is not None and alike(number, 0, cx.type(base).dtype):
        return pushed_
    return cx.map(Op.add, base, pushed_)


def _no_bool(cx: Context, node: fx.Node) -> None:
    if cx.result(node).dtype is DType.bool:
        raise IRError("accumulates bools")


def _scatter_add(cx: Context, node: fx.Node) -> Ref:
    """base + push(source)"""
    _no_bool(cx, node)
    map_ = _map(cx, node)
    source = _source(cx, node, node.args[3], map_)
    return _added(cx, node, _base(cx, node), cx.push(source, map_, Fold.sum))


def _index_add(cx: Context, node: fx.Node) -> Ref:
    """base + alpha * push(source)"""
    _no_bool(cx, node)
    map_, alpha = _map(cx, node), argument(node, "alpha", 1)
    source = _source(cx, node, node.args[3], map_)
    if not (isinstance(alpha, int | float) and alpha == 1):
        source = cx.map(Op.mul, source, cx.scalar(alpha, cx.result(node).dtype))
    return _added(cx, node, _base(cx, node), cx.push(source, map_, Fold.sum))


def _index_put(cx: Context, node: fx.Node) -> Ref:
    """base + push(values) if the call accumulates; else the base with the values in rows that the index reaches."""
    if len(node.args) > 3 and node.args[3]:
        _no_bool(cx, node)
        map_ = _map(cx, node)
        source = _source(cx, node, node.args[2], map_, wide=True)
        return _added(cx, node, _base(cx, node), cx.push(source, map_, Fold.sum))
    value = cx.value(node.args[2])
    mask = _mask(node)
    if mask is not None:
        return _masked(cx, node, mask, value)
    if cx.type(value).space == UNIT and cx.type(value).shape in ((), (1,)):
        return _written(cx, node, cx.reshape(value, ()))
    map_ = _map(cx, node)
    return _replaced(cx, node, _source(cx, node, node.args[2], map_, wide=True), map_)


def _mask(node: fx.Node) -> fx.Node | None:
    """The mask m of x[m] = value; None for other indices."""
    indices = node.args[1]
    first = indices[0] if isinstance(indices, list | tuple) and len(indices) == 1 else None
    return first if isinstance(first, fx.Node) and val(first).dtype is torch.bool else None


def _masked(cx: Context, node: fx.Node, mask: fx.Node, value: Ref) -> Ref:
    """One number written where a mask is set. The mask selects whole rows or single elements."""
    base, t, where = _base(cx, node), cx.result(node), cx.value(mask)
    m = cx.type(where)
    if m.space != t.space or m.shape != t.shape[: len(m.shape)] or cx.type(value).space != UNIT:
        raise IRError("a mask of other rows than what it masks")
    if numel(cx.type(value).shape) != 1:
        raise IRError("writes several numbers where a mask says so")
    where = cx.reshape(where, (*m.shape, *(1 for _ in t.shape[len(m.shape) :])))
    return cx.map(Op.where, where, cx.reshape(value, ()), base)


def _scatter_value(cx: Context, node: fx.Node) -> Ref:
    """One number, written to the rows that the index reaches."""
    return _written(cx, node, cx.scalar(node.args[3], cx.result(node).dtype))


def _written(cx: Context, node: fx.Node, value: Ref) -> Ref:
    map_, base = _map(cx, node), _base(cx, node)
    _whole_index(cx, node)
    reached = _reached(cx, node, map_)
    return cx.map(Op.where, reached, value, base)


def _scatter_source(cx: Context, node: fx.Node) -> Ref:
    """scatter along rows, and index_copy: rows of the source written where the index says."""
    _whole_index(cx, node)
    map_ = _map(cx, node)
    return _replaced(cx, node, _source(cx, node, node.args[3], map_), map_)


def _replaced(cx: Context, node: fx.Node, source: Ref, map_: Ref) -> Ref:
    """The base, with rows of `source` in place of those that the map reaches.

    Of several rows for one place the last is taken, as PyTorch does if it writes one row after the other; its
    documentation leaves open which of them it is.
    """
    if not cx.result(node).dtype.is_float:
        raise IRError("writes rows of whole numbers in place of others, which is no work but the write itself")
    base, t = _base(cx, node), cx.type(source)
    if is_injective(cx.builder.nodes, map_):
        pushed_ = cx.push(source, map_, Fold.sum)
    else:
        place = cx.positions(_index(node))
        last = cx.emit(Pull(cx.push(place, map_, Fold.max, -1), map_))
        wins = cx.reshape(cx.map(Op.eq, last, place), (1,) * len(t.shape))
        # A sum with zeros would turn -0.0 into 0.0.
        pushed_ = cx.push(cx.map(Op.where, wins, source, cx.const(least(t.dtype), t.dtype)), map_, Fold.max)
    return cx.map(Op.where, _reached(cx, node, map_), pushed_, base)


def _index_fill(cx: Context, node: fx.Node) -> Ref:
    """One number, written to the rows that the index reaches."""
    value, dtype = node.args[3], cx.result(node).dtype
    number = cx.cast(cx.reshape(cx.value(value), ()), dtype) if is_tensor(value) else cx.scalar(value, dtype)
    return _written(cx, node, number)


def _whole_index(cx: Context, node: fx.Node) -> None:
    """IRError if the index of a scatter has fewer features than its result, since the call then writes only these."""
    if node.target in (aten.scatter.value, aten.scatter.src):
        index = node.args[2]
        assert isinstance(index, fx.Node)
        if cx.type(cx.value(index)).shape != cx.result(node).shape:
            raise IRError("writes some of the features")


def _count(cx: Context, node: fx.Node, map_: Ref, dtype: DType) -> Ref:
    """The number of rows that the map sends to each row, with feature dims of size 1."""
    t = cx.result(node)
    ones = cx.const(1, dtype, cx.spaces.space_of(_index(node)))
    return cx.reshape(cx.push(ones, map_, Fold.sum), (1,) * len(t.shape))


def _reached(cx: Context, node: fx.Node, map_: Ref) -> Ref:
    return cx.map(Op.gt, _count(cx, node, map_, DType.i64), cx.const(0, DType.i64))


_FOLD = {
    "sum": Fold.sum, "add": Fold.sum, "prod": Fold.mul, "multiply": Fold.mul, "amax": Fold.max, "amin": Fold.min,
    "mean": Fold.sum,
}  # fmt: skip
"""Reduction of scatter_reduce or index_reduce -> the fold of the push."""


def _scatter_reduce(cx: Context, node: fx.Node) -> Ref:
    """scatter_reduce and index_reduce -> a push that is combined with the base (`include_self`), or that leaves the
    base in rows that the index does not reach."""
    _no_bool(cx, node)
    kind, own = node.args[4], argument(node, "include_self", True)
    assert isinstance(kind, str)
    fold, t = _FOLD[kind], cx.result(node)
    map_, base = _map(cx, node), _base(cx, node)
    source = _source(cx, node, node.args[3], map_)
    if kind == "mean":
        return _mean(cx, node, source, map_, base, bool(own))
    number = cx.number_of(base)
    if not own:
        if number is not None:
            return cx.push(source, map_, fold, number)
        return cx.map(Op.where, _reached(cx, node, map_), cx.push(source, map_, fold), base)
    start = neutral(fold, t.dtype)
    if number is not None and fold in (Fold.max, Fold.min):
        start = number
    out = cx.push(source, map_, fold, start)
    if number is not None and fold in (Fold.sum, Fold.mul) and alike(number, start, t.dtype):
        return out
    # Of two equal numbers, such as 0.0 and -0.0, PyTorch keeps the one that it has had before.
    return cx.map(fold.op, *((base, out) if fold in (Fold.max, Fold.min) else (out, base)))


def _mean(cx: Context, node: fx.Node, source: Ref, map_: Ref, base: Ref, own: bool) -> Ref:
    """(base + sum) / (1 + count) if include_self; else sum / count, and the base where the count is 0."""
    dtype = cx.result(node).dtype
    if not dtype.is_float:
        raise IRError("the mean of integers")
    total, count = cx.push(source, map_, Fold.sum), _count(cx, node, map_, dtype)
    one = cx.const(1, dtype)
    if own:
        return cx.map(Op.div, _added(cx, node, base, total), cx.map(Op.add, count, one))
    mean = cx.map(Op.div, total, cx.map(Op.maximum, count, one))
    number = cx.number_of(base)
    if number is not None and alike(number, 0, dtype):
        return mean
    return cx.map(Op.where, cx.map(Op.gt, count, cx.const(0, dtype)), mean, base)


def _embedding_backward(cx: Context, node: fx.Node) -> Ref:
    """embedding_dense_backward(g, index, rows, padding_idx, scale_grad_by_freq) -> push(g), without g of the rows that
    read row padding_idx"""
    g, index, _, padding, scaled = node.args
    if scaled:
        raise IRError("gradients of an embedding that are scaled by frequency")
    map_, t = _map(cx, node), cx.result(node)
    source = cx.reshape(cx.value(g), t.shape)
    if fixed(val(padding)) != -1:  # which is that of no row
        numbers = cx.reshape(cx.value(index), (1,) * len(t.shape))
        pads = cx.map(Op.eq, numbers, cx.count(val(padding), cx.type(numbers).dtype))
        source = cx.map(Op.where, pads, cx.const(0, t.dtype), source)
    return cx.push(source, map_, Fold.sum)


def _fold_rows(cx: Context, node: fx.Node) -> Ref:
    """fold_rows(src, index, rows, reducer) -> push by the user's fold."""
    text = node.args[3]
    assert isinstance(text, str)
    fold, map_ = OwnReducer.of(text).fold, _map(cx, node)
    if not cx.result(node).dtype.is_float:
        raise IRError("a user's fold of integers")
    return cx.push(_source(cx, node, node.args[0], map_), map_, fold, fold.identity)


_pushes: dict[Any, Callable[[Context, fx.Node], Ref]] = {
    aten.scatter_add.default: _scatter_add,
    aten.index_add.default: _index_add,
    aten.index_put.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
    aten.scatter.value: _scatter_value,
    aten.scatter.src: _scatter_source,
    aten.index_copy.default: _scatter_source,
    aten.index_fill.int_Scalar: _index_fill,
    aten.index_fill.int_Tensor: _index_fill,
    aten.scatter_reduce.two: _scatter_reduce,
    aten.index_reduce.default: _scatter_reduce,
    aten.embedding_dense_backward.default: _embedding_backward,
    torch.ops.graphweave.fold_rows.default: _fold_rows,
}
_PULLS = [resolve(name) for name, facts in CALLS.items() if facts.index is not None and not facts.index.pushes]

SPARSE: Table = {**dict.fromkeys(_PULLS, _pull), **_pushes}
"""The handlers of these calls."""
