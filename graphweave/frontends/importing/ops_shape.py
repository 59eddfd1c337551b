"""ATen calls that rearrange the numbers of a row, and those that create constants."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from graphweave.core.errors import IRError
from graphweave.core.types import UNIT, DType, Fold, Op, Space
from graphweave.frontends.calls.captured_sizes import argument, dim_of, fixed, is_tensor, rank, shape, val
from graphweave.frontends.calls.row_rules import permutation
from graphweave.frontends.calls.row_unions import joined_rows
from graphweave.frontends.importing.context import Context, Table
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.infer import numel

aten = torch.ops.aten


def _feature_dim(cx: Context, ref: ir.Ref, dim: int, ndim: int) -> int:
    """The feature dim of `ref` that corresponds to dim `dim` of its tensor. IRError if that is the dim of rows."""
    d = dim_of(dim, ndim)
    if cx.type(ref).space == UNIT:
        return d
    if d == 0:
        raise IRError("works across rows")
    return d - 1


def _view(cx: Context, node: fx.Node) -> ir.Ref:
    x, t = cx.value(node.args[0]), cx.result(node)
    if cx.type(x).space != t.space:
        raise IRError("a view of ", cx.type(x).space, " as ", t.space)
    return cx.reshape(x, t.shape)


def _expand(cx: Context, node: fx.Node) -> ir.Ref:
    x, t = cx.aligned(node.args[0], node, None), cx.result(node)
    return cx.spread(cx.broadcast(x, t.shape), t.space)


def _repeat(cx: Context, node: fx.Node) -> ir.Ref:
    """repeat, for calls that an expand can express."""
    x = node.args[0]
    if not isinstance(x, fx.Node):
        raise IRError("no tensor")
    times = node.args[1]
    own = list(times)[len(times) - rank(x) :]  # type: ignore[arg-type]
    if any(fixed(n) != 1 and fixed(val(k)) != 1 for n, k in zip(shape(x), own, strict=True)):
        raise IRError("repeats more than one number")
    return _expand(cx, node)


def _permute(cx: Context, node: fx.Node) -> ir.Ref:
    x, perm = cx.value(node.args[0]), permutation(node)
    if cx.type(x).space != UNIT:
        if perm[0] != 0:
            raise IRError("moves the rows to another dim")
        perm = tuple(p - 1 for p in perm[1:])
    return cx.permute(x, perm)


def _sliced(cx: Context, x: ir.Ref, dim: int, start: int, stop: int, step: int = 1) -> ir.Ref:
    size = cx.type(x).shape[dim]
    if (start, stop, step) == (0, size, 1):
        return x
    number = (
        cx.counted(x, start) if stop == start + 1 and len(cx.type(x).shape) - cx.type(x).shape.count(1) < 2 else None
    )
    if number is not None and cx.type(x).shape[dim] > 1:
        shape = cx.type(x).shape
        return cx.const(number, cx.type(x).dtype, UNIT, (*shape[:dim], 1, *shape[dim + 1 :]))
    return cx.emit(ir.Slice(x, dim, start, stop, step))


def _slice(cx: Context, node: fx.Node) -> ir.Ref:
    x = cx.value(node.args[0])
    segment = _segment(cx, node, x)
    if segment is not None:
        return cx.reshape(cx.emit(ir.Part(x, *segment)), cx.result(node).shape)
    dim, start, stop, step = _slice_arguments(node)
    d = _feature_dim(cx, x, dim, rank(node))
    start, stop = _clip(start, stop, cx.type(x).shape[d])
    return _sliced(cx, x, d, start, stop, step)


def _slice_arguments(node: fx.Node) -> tuple[int, int | None, int | None, int]:
    dim, start, stop, step = (argument(node, name) for name in ("dim", "start", "end", "step"))
    numbers = [v if v is None else fixed(val(v)) for v in (start, stop, step)]
    if any(v is not None and n is None for v, n in zip((start, stop, step), numbers, strict=True)):
        raise IRError("a slice whose bounds vary")
    return dim, *numbers


def _clip(start: int | None, stop: int | None, size: int) -> tuple[int, int]:
    first, last, _ = slice(start, stop).indices(size)
    return first, max(first, last)


def _select(cx: Context, node: fx.Node) -> ir.Ref:
    x, index = cx.value(node.args[0]), fixed(val(node.args[2]))
    if index is None:
        raise IRError("selects at a place that varies")
    d = _feature_dim(cx, x, node.args[1], rank(node.args[0]))  # type: ignore[arg-type]
    features = cx.type(x).shape
    index = dim_of(index, features[d])
    return cx.reshape(_sliced(cx, x, d, index, index + 1), (*features[:d], *features[d + 1 :]))


def _item(cx: Context, node: fx.Node) -> ir.Ref | None:
    """An item of split or unbind, as a slice; None for items of other calls."""
    source, item = node.args
    if not isinstance(source, fx.Node) or source.target not in _SPLITS or not isinstance(item, int):
        return None
    arg = source.args[0]
    x, dim = cx.value(arg), argument(source, "dim", 0)
    d = _feature_dim(cx, x, dim, rank(arg))  # type: ignore[arg-type]
    if source.target is aten.unbind.int:
        features = cx.type(x).shape
        item = dim_of(item, features[d])
        return cx.reshape(_sliced(cx, x, d, item, item + 1), (*features[:d], *features[d + 1 :]))
    pieces = [fixed(p.shape[dim_of(dim, p.dim())]) for p in val(source)]
    if any(p is None for p in pieces):
        raise IRError("pieces whose sizes vary")
    sizes = [int(p) for p in pieces if p is not None]
    item = dim_of(item, len(sizes))
    start = sum(sizes[:item])
    return _sliced(cx, x, d, start, start + sizes[item])


_SPLITS = frozenset({
    aten.split.Tensor, aten.split_with_sizes.default, aten.unsafe_split.Tensor, aten.unsafe_split_with_sizes.default,
    aten.unbind.int, aten.chunk.default, aten.unsafe_chunk.default,
})  # fmt: skip
"""Calls with several results, each of which is a slice of the operand."""


def _concat(cx: Context, node: fx.Node) -> ir.Ref:
    t = cx.result(node)
    args: Any = node.args[0]
    xs = [cx.cast(cx.value(x), t.dtype) for x in args if rank(x) == rank(node)]
    if len(xs) < len(args):
        raise IRError("concatenates tensors of different ranks")
    dim = dim_of(argument(node, "dim", 0), rank(node)) - (t.space != UNIT)
    if dim < 0:
        joined = _join_rows(cx, node, xs)
        return _rows_after_rows(cx, node, xs) if joined is None else joined
    if any(cx.type(x).space != t.space for x in xs):
        raise IRError("concatenates rows of several spaces side by side")
    return xs[0] if len(xs) == 1 else cx.emit(ir.Concat(tuple(xs), dim))


def _join_rows(cx: Context, node: fx.Node, xs: list[ir.Ref]) -> ir.Ref | None:
    """The concatenated rows of `xs`, on the space of the union; None if they have no such space. Shared data can
    be one row of it."""
    t, args = cx.result(node), joined_rows(node)
    if args is None or t.space == UNIT:
        return None
    segments = cx.spaces.segments_of(node)
    if not t.dtype.is_float:
        return _joined_numbers(cx, t, xs, segments)
    rows = []
    for x, arg, space in zip(xs, args, segments, strict=True):
        if cx.type(x).space != space or (space == UNIT and fixed(shape(arg)[0]) != 1):
            return None
        rows.append(cx.reshape(x, t.shape))
    return cx.emit(ir.Join(tuple(rows), t.space))


def _joined_numbers(cx: Context, t: ir.Type, xs: list[ir.Ref], segments: tuple[Space, ...]) -> ir.Ref:
    """Whole numbers that the program knows, one for all rows of a segment, concatenated."""
    if t.dtype is not DType.i64 or t.shape or UNIT in (t.space, *segments):
        raise IRError("concatenates rows of whole numbers")
    numbers = [cx.number_of(x) for x in xs]
    if all(n is not None for n in numbers):
        return cx.emit(ir.NumbersOfSegments(segments, tuple(int(n) for n in numbers if n is not None), t.space))
    if all(isinstance(cx.builder.nodes[x], ir.NumbersOfSegments) for x in xs):
        return cx.emit(ir.Join(tuple(xs), t.space))
    raise IRError("concatenates rows of whole numbers")


def _segment(cx: Context, node: fx.Node, whole: ir.Ref | None) -> tuple[tuple[Space, ...], int] | None:
    """The spaces whose rows the whole of a slice of rows consists of, and which of them the slice is; None for other
    slices."""
    found = cx.spaces.segment_of(node)
    if found is None or (whole is not None and cx.type(whole).space == UNIT):
        return None
    sizes, of, at = found
    return (of, at) if all(s != UNIT or n == 1 for s, n in zip(of, sizes, strict=True)) else None


def _rows_in_place(cx: Context, node: fx.Node, g: ir.Ref, step: int) -> ir.Ref:
    """The gradient of every `step`th row from some row on: what the rows of `g` send to these rows."""
    source, start = node.args[0], val(node.args[3])
    if fixed(start) is not None and start < 0:
        start = shape(node)[0] + start
    elif isinstance(start, torch.SymInt) and not statically_known_true(start >= 0):
        raise IRError("the gradient of a slice from a row that may count from the end")
    index = cx.emit(ir.MapOf(cx.positions(source, start, step), cx.result(node).space))  # type: ignore[arg-type]
    return cx.push(g, index, Fold.sum)


def _rows_after_rows(cx: Context, node: fx.Node, xs: list[ir.Ref]) -> ir.Ref:
    """cat along rows -> the sum of what each operand sends to its own rows of the result.

    A number that fills an operand is taken where the row belongs to that operand, without being sent.
    """
    t = cx.result(node)
    args: Any = node.args[0]
    if not t.dtype.is_float:
        raise IRError("concatenates rows of integers")
    place = cx.reshape(cx.positions(node), (1,) * len(t.shape))
    out = cx.const(0, t.dtype, t.space, t.shape)
    start: Any = 0
    for ref, arg in zip(xs, args, strict=True):
        stop, number = start + shape(arg)[0], cx.number_of(ref)
        if number is None:
            index = cx.emit(ir.MapOf(cx.positions(arg, start), t.space))
            sent = cx.push(ref, index, Fold.sum)
            out = sent if cx.number_of(out) == 0 else cx.map(Op.add, out, sent)
        elif number != 0:
            behind = cx.map(Op.ge, place, cx.count(start, DType.i64))
            before = cx.map(Op.lt, place, cx.count(stop, DType.i64))
            here = cx.map(Op.logical_and, behind, before)
            out = cx.map(Op.where, here, cx.const(number, t.dtype), out)
        start = stop
    return out


def _stack(cx: Context, node: fx.Node) -> ir.Ref:
    t = cx.result(node)
    dim = dim_of(argument(node, "dim", 0), rank(node)) - (t.space != UNIT)
    xs = [cx.cast(cx.value(x), t.dtype) for x in node.args[0]]  # type: ignore[union-attr]
    if dim < 0 or any(cx.type(x).space != t.space for x in xs):
        raise IRError("stacks along rows, or rows of several spaces")
    one = (*t.shape[:dim], 1, *t.shape[dim + 1 :])
    blocks = tuple(cx.reshape(x, one) for x in xs)
    return blocks[0] if len(blocks) == 1 else cx.emit(ir.Concat(blocks, dim))


def _padded(cx: Context, x: ir.Ref, dim: int, before: int, after: int) -> ir.Ref:
    return x if before == after == 0 else cx.emit(ir.Pad(x, dim, before, after))


def _slice_backward(cx: Context, node: fx.Node) -> ir.Ref:
    """slice_backward(g, sizes, dim, start, end, step)"""
    g, t = cx.value(node.args[0]), cx.result(node)
    segment = _segment(cx, node, None) if t.space != UNIT else None
    if segment is not None and cx.type(g).space == segment[0][segment[1]]:
        of, at = segment
        nothing = [cx.const(0, t.dtype, space, t.shape) for space in of]
        return cx.emit(ir.Join((*nothing[:at], cx.reshape(g, t.shape), *nothing[at + 1 :]), t.space))
    dim, start, stop, step = (fixed(val(a)) for a in node.args[2:6])
    if dim is not None and step is not None and t.space != UNIT and dim_of(dim, rank(node)) == 0:
        if (start, step) == (0, 1):  # row limits know this call (analysis/row_limits.py), and nothing has to be grouped
            raise IRError("the gradient of the first rows")
        return _rows_in_place(cx, node, g, step)
    if dim is None or start is None or stop is None or step is None or cx.type(g).space != t.space:
        raise IRError("the gradient of a slice at places that vary")
    d = _feature_dim(cx, g, dim, rank(node))
    size = t.shape[d]
    start, stop = _clip(start, stop, size)
    if step != 1:
        g = _spaced(cx, g, d, step)
        g = _sliced(cx, g, d, 0, min(cx.type(g).shape[d], size - start))
    return _padded(cx, g, d, start, size - start - cx.type(g).shape[d])


def _spaced(cx: Context, x: ir.Ref, d: int, step: int) -> ir.Ref:
    """`x` with step - 1 zeros after each number along feature dim `d`."""
    features = cx.type(x).shape
    apart = _padded(cx, cx.reshape(x, (*features[: d + 1], 1, *features[d + 1 :])), d + 1, 0, step - 1)
    return cx.reshape(apart, (*features[:d], features[d] * step, *features[d + 1 :]))


def _select_backward(cx: Context, node: fx.Node) -> ir.Ref:
    """select_backward(g, sizes, dim, index)"""
    g, t = cx.value(node.args[0]), cx.result(node)
    dim, index = fixed(val(node.args[2])), fixed(val(node.args[3]))
    if dim is None or index is None or cx.type(g).space != t.space:
        raise IRError("the gradient of one row, or of a place that varies")
    d = dim_of(dim, rank(node)) - (t.space != UNIT)
    if d < 0:
        raise IRError("the gradient of one row")
    index = dim_of(index, t.shape[d])
    column = cx.reshape(g, (*t.shape[:d], 1, *t.shape[d + 1 :]))
    return _padded(cx, column, d, index, t.shape[d] - index - 1)


def _replaced(cx: Context, base: ir.Ref, block: ir.Ref, d: int, start: int, stop: int) -> ir.Ref:
    """`base` with `block` in place of its numbers start..stop along feature dim `d`."""
    size = cx.type(base).shape[d]
    if cx.number_of(base) == 0:
        return _padded(cx, block, d, start, size - stop)
    parts = [_sliced(cx, base, d, 0, start)] if start else []
    parts.append(block)
    if stop < size:
        parts.append(_sliced(cx, base, d, stop, size))
    return parts[0] if len(parts) == 1 else cx.emit(ir.Concat(tuple(parts), d))


def _on_the_same_rows(cx: Context, node: fx.Node, *operands: ir.Ref) -> ir.Type:
    """The type of the result; IRError unless all `operands` lie on its space.

    A base of zeros may be shared data although it has as many rows as the space of the result. Its first dim is then a
    feature dim, while the first dim of the result is its rows.
    """
    t = cx.result(node)
    other = next((cx.type(ref).space for ref in operands if cx.type(ref).space != t.space), t.space)
    if other != t.space:
        raise IRError("writes into ", t.space, " with what lies on ", other)
    return t


def _slice_scatter(cx: Context, node: fx.Node) -> ir.Ref:
    base, block = (cx.value(a) for a in node.args[:2])
    dim, start, stop, step = _slice_arguments(node)
    if step != 1:
        raise IRError("replaces every so many numbers")
    t = _on_the_same_rows(cx, node, base, block)
    d = _feature_dim(cx, base, dim, rank(node))
    start, stop = _clip(start, stop, t.shape[d])
    return _replaced(cx, base, cx.cast(block, t.dtype), d, start, stop)


def _select_scatter(cx: Context, node: fx.Node) -> ir.Ref:
    base, block = (cx.value(a) for a in node.args[:2])
    index, t = fixed(val(node.args[3])), _on_the_same_rows(cx, node, base, block)
    if index is None:
        raise IRError("replaces what is at a place that varies")
    d = _feature_dim(cx, base, node.args[2], rank(node))  # type: ignore[arg-type]
    index = dim_of(index, t.shape[d])
    column = cx.reshape(cx.cast(block, t.dtype), (*t.shape[:d], 1, *t.shape[d + 1 :]))
    return _replaced(cx, base, column, d, index, index + 1)


def _pad(cx: Context, node: fx.Node) -> ir.Ref:
    """constant_pad_nd(x, pads, 0). `pads` holds (before, after) for each dim from the last; negative numbers remove."""
    x, pads = cx.value(node.args[0]), [fixed(val(p)) for p in node.args[1]]  # type: ignore[union-attr]
    numbers = [p for p in pads if p is not None]
    if argument(node, "value", 0) != 0 or len(numbers) < len(pads):
        raise IRError("pads with what is not zero, or by what varies")
    for k in range(0, len(numbers), 2):
        before, after = numbers[k : k + 2]
        if before or after:
            d = _feature_dim(cx, x, rank(node) - 1 - k // 2, rank(node))
            x = _sliced(cx, x, d, max(-before, 0), cx.type(x).shape[d] - max(-after, 0))
            x = _padded(cx, x, d, max(before, 0), max(after, 0))
    return x


# ---------------------------------------------------------------- constants


def _filled(cx: Context, node: fx.Node, value: float) -> ir.Ref:
    t = cx.result(node)
    if is_tensor(value):
        return cx.spread(cx.broadcast(cx.cast(cx.value(value), t.dtype), t.shape), t.space)
    if not isinstance(value, bool | int | float):
        return cx.spread(cx.broadcast(cx.scalar(value, t.dtype), t.shape), t.space)
    if not t.dtype.is_float and not math.isfinite(value):
        raise IRError(f"{value} as {t.dtype.value}")
    return cx.const(value, t.dtype, t.space, t.shape)


def _fill_of(name: str) -> Any:
    def handler(cx: Context, node: fx.Node) -> ir.Ref:
        return _filled(cx, node, argument(node, name))

    return handler


def _fill_with(value: float) -> Any:
    def handler(cx: Context, node: fx.Node) -> ir.Ref:
        return _filled(cx, node, value)

    return handler


def _arange(cx: Context, node: fx.Node) -> ir.Ref:
    """arange, as a constant of the program. Its length must be fixed, so it cannot be a number of rows that varies."""
    numbers = [argument(node, name, default) for name, default in (("start", 0), ("end", None), ("step", 1))]
    start, stop, step = (fixed(val(n)) if isinstance(val(n), int | torch.SymInt) else None for n in numbers)
    t = cx.result(node)
    if start is None or stop is None or step is None or t.space != UNIT or val(node).device.type != "cpu":
        raise IRError("counts what varies, or not in integers")
    if numel(t.shape) > _MAX_CONSTANT_NUMBERS:
        raise IRError(f"{numel(t.shape)} numbers would be part of the program")
    return cx.arange(start, stop, step, t.dtype)


_MAX_CONSTANT_NUMBERS = 4096
"""Limit on the elements of a constant. A longer one stays a PyTorch call."""


def _copy(cx: Context, node: fx.Node) -> ir.Ref:
    """copy(x, source), with the shape and dtype of x and the numbers of source."""
    t = cx.result(node)
    source = cx.aligned(node.args[1], node, t.dtype)
    return cx.spread(cx.broadcast(source, t.shape), t.space)


SHAPE: Table = {
    operator.getitem: _item,
    **dict.fromkeys((aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.view_copy.default,
                     aten._reshape_alias.default, aten._reshape_copy.default, aten.unsqueeze.default,
                     aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims), _view),
    **dict.fromkeys((aten.expand.default, aten.expand_copy.default), _expand),
    aten.repeat.default: _repeat,
    **dict.fromkeys((aten.permute.default, aten.permute_copy.default, aten.t.default, aten.transpose.int), _permute),
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    **dict.fromkeys((aten.cat.default,), _concat),
    aten.stack.default: _stack,
    aten.slice_backward.default: _slice_backward,
    aten.select_backward.default: _select_backward,
    aten.slice_scatter.default: _slice_scatter,
    aten.select_scatter.default: _select_scatter,
    aten.constant_pad_nd.default: _pad,
    aten.copy.default: _copy,
    **dict.fromkeys((aten.arange.default, aten.arange.start, aten.arange.start_step), _arange),
    **dict.fromkeys((aten.full.default, aten.new_full.default, aten.full_like.default), _fill_of("fill_value")),
    **dict.fromkeys((aten.fill.Scalar, aten.fill.Tensor), _fill_of("value")),
    aten.scalar_tensor.default: _fill_of("s"),
    **dict.fromkeys((aten.zeros.default, aten.new_zeros.default, aten.zeros_like.default, aten.zero.default,
                     aten.empty.memory_format, aten.new_empty.default, aten.empty_like.default,
                     aten.new_empty_strided.default, aten.empty_strided.default, aten.empty_permuted.default),
                    _fill_with(0)),
    **dict.fromkeys((aten.ones.default, aten.new_ones.default, aten.ones_like.default), _fill_with(1)),
}  # fmt: skip
"""The handlers of these calls."""
