"""Types of message IR nodes from the types of their operands; only this file decides which programs are well typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, get_args

from graphweave.core.errors import IRError
from graphweave.core.locality import RowOrder
from graphweave.core.types import UNIT, DType, Op, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.nodes import Ref

_Step: TypeAlias = (
    ir.Exchange | ir.ExchangeBack | ir.AllReduce | ir.After | ir.LaidOut | ir.Own | ir.Kept | ir.AssertIndex
)


def infer(node: ir.Node, types: Sequence[ir.ValueType]) -> ir.ValueType:
    """Type of `node` in a program whose earlier nodes have `types`; IRError if it is ill typed."""
    match node:
        case ir.Input() | ir.Const() | ir.Aten():
            return node.type
        case ir.Random(seed, drawn):
            t = _value(seed, types, node)
            good = t == ir.Type(UNIT, (), DType.i64) and drawn.dtype in _DRAWN
            _expect(good, node, "one i64 as seed, to draw f32 or f64", t)
            return drawn
        case ir.MapOf(index, cod):
            return ir.MapType(_index(index, types, node).space, cod)
        case ir.ToUnit(dom):
            return ir.MapType(dom, UNIT)
        case ir.Pull(x, m):
            t, mt = _value(x, types, node), _map(m, types, node)
            _expect(t.space == mt.cod, node, f"a value on {mt.cod}", t)
            return ir.Type(mt.dom, t.shape, t.dtype)
        case ir.Push(x, m):
            t, mt = _value(x, types, node), _map(m, types, node)
            _expect(t.space == mt.dom, node, f"a value on {mt.dom}", t)
            return ir.Type(mt.cod, t.shape, t.dtype)
        case ir.MatMul() | ir.Gram():
            return _product(node, types)
        case ir.AddMatMul(a, x, w, m):
            product, added = infer(ir.MatMul(x, w, m), types), _value(a, types, node)
            _expect(added == product, node, f"a value like the product ({product})", added)
            return product
        case ir.Join(xs, space):
            return _join(node, [_value(x, types, node) for x in xs], space)
        case ir.RunningSum(x):
            t = _value(x, types, node)
            good = t.space != UNIT and (t.dtype.is_float or t.dtype is DType.i64)
            _expect(good, node, "floats or i64 for each row", t)
            return t
        case ir.Part(x, of, at):
            t = _value(x, types, node)
            _expect(0 <= at < len(of) and t.space != UNIT, node, f"a value on a union of {len(of)} spaces", t)
            return ir.Type(of[at], t.shape, t.dtype)
        case _ if isinstance(node, ir.MadeIndex):
            return _infer_index(node, types)
        case _ if isinstance(node, _Step):
            return _infer_step(node, types)
        case ir.Reordered(x, index):
            t, u = _value(x, types, node), _index(index, types, node)
            _expect(UNIT not in (t.space, u.space), node, "rows, and their places among rows of another space", t, u)
            return ir.Type(u.space, t.shape, t.dtype)
        case ir.Pointwise(op, args):
            return _pointwise(node, op, [_value(a, types, node) for a in args])
        case ir.Concat(xs, dim):
            return _concat(node, [_value(x, types, node) for x in xs], dim)
        case _:
            return _reshaping(node, _value(node.x, types, node))


def _infer_step(node: _Step, types: Sequence[ir.ValueType]) -> ir.ValueType:
    """Type of a node that passes a value between ranks, that waits for others, or that says how a value lies in
    memory."""
    match node:
        case ir.Exchange(x, _, space) | ir.ExchangeBack(x, _, _, space):
            t = _value(x, types, node)
            good = UNIT not in (t.space, space) and t.space != space
            _expect(good, node, "rows, and another space for the result", t)
            return ir.Type(space, t.shape, t.dtype)
        case ir.AllReduce(x):
            return _value(x, types, node)
        case ir.After(x, others):
            for other in others:
                _at(other, types, node)
            return _value(x, types, node)
        case ir.LaidOut(x) | ir.Own(x) | ir.Kept(x):
            held = _at(x, types, node)
            if not isinstance(held, ir.Type | ir.AnyType):
                raise IRError(f"{node!r}: operand ", ir.Operand(x), f" must be a tensor (got {held})")
            return held
        case ir.AssertIndex(index):
            t = _value(index, types, node)
            _expect(not t.dtype.is_float, node, "integers", t)
            return ir.NOTHING


def broadcast_shapes(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Right-aligned broadcast of feature shapes; None if they do not fit."""
    rank = max((len(s) for s in shapes), default=0)
    out = [1] * rank
    for shape in shapes:
        for i, n in enumerate(shape, start=rank - len(shape)):
            if n != 1 and out[i] not in (1, n):
                return None
            out[i] = n if n != 1 else out[i]
    return tuple(out)


def common_space(types: Sequence[ir.Type]) -> Space | None:
    """The common space of the operands, ignoring unit operands; None if two differ."""
    spaces = {t.space for t in types} - {UNIT}
    if len(spaces) > 1:
        return None
    return spaces.pop() if spaces else UNIT


def numel(shape: Sequence[int]) -> int:
    """Number of elements in a row of this feature shape."""
    out = 1
    for n in shape:
        out *= n
    return out


_INDEX = (DType.i64, DType.i32)
_DRAWN = (DType.f32, DType.f64)


def _reshaping(node: ir.Node, t: ir.Type) -> ir.Type:
    match node:
        case ir.Cast(_, dtype):
            return ir.Type(t.space, t.shape, dtype)
        case ir.Reshape(_, shape):
            _expect(numel(shape) == numel(t.shape), node, f"{numel(shape)} elements a row", t)
            return ir.Type(t.space, shape, t.dtype)
        case ir.Broadcast(_, shape):
            _expect(broadcast_shapes([t.shape, shape]) == shape, node, f"features that broadcast to {shape}", t)
            return ir.Type(t.space, shape, t.dtype)
        case ir.Permute(_, perm):
            _expect(sorted(perm) == list(range(len(t.shape))), node, f"{len(perm)} feature dims", t)
            return ir.Type(t.space, tuple(t.shape[p] for p in perm), t.dtype)
        case ir.Reduce(_, _, dims, keepdim):
            _expect(all(0 <= d < len(t.shape) for d in dims), node, f"feature dims {dims}", t)
            kept = [1 if i in dims else n for i, n in enumerate(t.shape) if keepdim or i not in dims]
            return ir.Type(t.space, tuple(kept), t.dtype)
        case ir.Slice(_, dim, start, stop, step):
            good = 0 <= dim < len(t.shape) and 0 <= start <= stop <= t.shape[dim] and step > 0
            _expect(good, node, f"feature dim {dim} of at least {stop}", t)
            return ir.Type(t.space, _with(t.shape, dim, -(-(stop - start) // step)), t.dtype)
        case ir.Pad(_, dim, before, after):
            _expect(0 <= dim < len(t.shape) and min(before, after) >= 0, node, f"feature dim {dim}", t)
            return ir.Type(t.space, _with(t.shape, dim, before + t.shape[dim] + after), t.dtype)
        case _:
            raise AssertionError(f"unknown node {node!r}")


def _pointwise(node: ir.Node, op: Op, args: list[ir.Type]) -> ir.Type:
    _expect(len(args) == op.facts.arity, node, f"{op.facts.arity} operands", *args)
    values = args[1:] if op.facts.condition else args
    _expect(len({t.dtype for t in values}) == 1, node, "operands of one dtype", *args)
    if op.facts.condition:
        _expect(args[0].dtype is DType.bool, node, "a bool condition", *args)
    shape, space = broadcast_shapes([t.shape for t in args]), common_space(args)
    if shape is None or space is None:
        raise IRError(f"{node!r}: expected operands on one space whose features broadcast, got {args}")
    return ir.Type(space, shape, DType.bool if op.facts.gives_bool else values[0].dtype)


def _concat(node: ir.Node, xs: list[ir.Type], dim: int) -> ir.Type:
    first, space = xs[0], common_space(xs)
    alike = all(
        len(t.shape) == len(first.shape)
        and t.dtype == first.dtype
        and _with(t.shape, dim, 0) == _with(first.shape, dim, 0)
        for t in xs
    )
    if not alike or space is None:
        raise IRError(f"{node!r}: expected blocks of one space and dtype that differ in dim {dim} only, got {xs}")
    return ir.Type(space, _with(first.shape, dim, sum(t.shape[dim] for t in xs)), first.dtype)


def _product(node: ir.MatMul | ir.Gram, types: Sequence[ir.ValueType]) -> ir.Type:
    second = node.w if isinstance(node, ir.MatMul) else node.y
    t, u = _value(node.x, types, node), _value(second, types, node)
    m = ir.MapType(t.space, UNIT) if node.map is None else _map(node.map, types, node)
    _expect(node.map is None or m.cod != UNIT, node, "no map where it leads to unit", t, u)
    rank = len(t.shape)
    _expect(t.space == m.dom and rank in (1, 2) and t.dtype == u.dtype, node, f"[K] or [B, K] on {m.dom}", t, u)
    if isinstance(node, ir.Gram):
        good = u.space == m.dom and len(u.shape) == rank and u.shape[:-1] == t.shape[:-1]
        _expect(good, node, f"[I] and [J], or [B, I] and [B, J], on {m.dom}", t, u)
        return ir.Type(m.cod, (*t.shape, u.shape[-1]), t.dtype)
    good = u.space == m.cod and len(u.shape) == rank + 1 and u.shape[:-1] == t.shape
    _expect(good, node, f"[K] and {m.cod}[K, J], or [B, K] and {m.cod}[B, K, J]", t, u)
    return ir.Type(t.space, (*t.shape[:-1], u.shape[-1]), t.dtype)


def _join(node: ir.Node, xs: list[ir.Type], space: Space) -> ir.Type:
    alike = len({(t.shape, t.dtype) for t in xs}) == 1
    _expect(alike and space != UNIT, node, "values of one shape and dtype, and a space for all their rows", *xs)
    return ir.Type(space, xs[0].shape, xs[0].dtype)


def _infer_index(node: ir.MadeIndex, types: Sequence[ir.ValueType]) -> ir.Type | ir.DistinctType:
    match node:
        case ir.Distinct(keys, space):
            ts = [_index(key, types, node) for key in keys]
            good = len({t.space for t in ts}) == 1 and ts[0].space != space and UNIT not in (ts[0].space, space)
            _expect(good, node, "indices of the same rows, and another space", *ts)
            return ir.DistinctType(ts[0].space, space)
        case ir.DistinctRow(distinct) | ir.DistinctKey(distinct):
            of = _at(distinct, types, node)
            if not isinstance(of, ir.DistinctType):
                raise IRError(f"{node!r}: operand ", ir.Operand(distinct), f" must be distinct rows (got {of})")
            return ir.Type(of.dom if isinstance(node, ir.DistinctRow) else of.space, (), DType.i64)
        case ir.JoinIndices(indices, of, at, wraps, space):
            ts = [_index(i, types, node) for i in indices]
            good = len(ts) == len(at) == len(wraps) and all(t.space != UNIT for t in ts)
            _expect(good, node, "indices of rows, a segment and a sign for each", *ts)
        case ir.RowsOfSegments(of, at, space) | ir.NumbersOfSegments(of, at, space):
            good = isinstance(node, ir.RowsOfSegments) or len(of) == len(at)
            _expect(good, node, "a number for each segment")
        case ir.EqualRuns(rows, space) | ir.Rounds(rows, space):
            _expect(UNIT not in (rows, space), node, "two spaces of rows")
            return ir.Type(space, (), DType.i64)
        case ir.EachItem(m, rows, space):
            ends = _map(m, types, node)
            _expect(UNIT not in (ends.dom, ends.cod, rows, space), node, "a map, and two spaces of rows")
            return ir.Type(space, (), DType.i64)
        case ir.Places(src, dst, rows, order):
            t, u = _index(src, types, node), _index(dst, types, node)
            good = t.space == u.space != UNIT and rows != UNIT and order in get_args(RowOrder)
            _expect(good, node, "indices of the same edges, and an order of rows", t, u)
            return ir.Type(rows, (), DType.i64)
        case ir.Inverse(x, space):
            t = _index(x, types, node)
            _expect(t.dtype == DType.i64 and t.space != UNIT and space not in (t.space, UNIT), node, "a permutation", t)
            return ir.Type(space, (), DType.i64)
        case ir.Order(keys, descending):
            ts = [_value(key, types, node) for key in keys]
            spaces = {t.space for t in ts}
            good = len(ts) == len(descending) and len(spaces) == 1 and UNIT not in spaces
            good = good and all(t.shape == () for t in ts)
            _expect(good, node, "keys of the same rows, one number a row each, and a direction for each", *ts)
            return ir.Type(ts[0].space, (), DType.i64)
        case ir.Chosen(mask, space):
            t = _value(mask, types, node)
            good = t.dtype is DType.bool and t.shape == () and UNIT not in (t.space, space) and t.space != space
            _expect(good, node, "a bool for each row, and another space for the rows", t)
            return ir.Type(space, (), DType.i64)
        case _:
            raise AssertionError(f"unknown node {node!r}")
    inside = isinstance(node, ir.NumbersOfSegments) or all(0 <= k < len(of) for k in at)
    _expect(inside and len(at) > 0 and space != UNIT, node, f"segments among {len(of)}, and a space for their rows")
    return ir.Type(space, (), DType.i64)


def _index(ref: Ref, types: Sequence[ir.ValueType], node: ir.Node) -> ir.Type:
    t = _value(ref, types, node)
    _expect(t.shape == () and t.dtype in _INDEX, node, "an integer value of one number a row", t)
    return t


def _with(shape: tuple[int, ...], dim: int, n: int) -> tuple[int, ...]:
    return (*shape[:dim], n, *shape[dim + 1 :])


def _value(ref: Ref, types: Sequence[ir.ValueType], node: ir.Node) -> ir.Type:
    t = _at(ref, types, node)
    if not isinstance(t, ir.Type):
        raise IRError(f"{node!r}: operand ", ir.Operand(ref), f" must be a value on a space (got {t})")
    return t


def _map(ref: Ref, types: Sequence[ir.ValueType], node: ir.Node) -> ir.MapType:
    t = _at(ref, types, node)
    if not isinstance(t, ir.MapType):
        raise IRError(f"{node!r}: operand ", ir.Operand(ref), f" must be a map (got {t})")
    return t


def _at(ref: Ref, types: Sequence[ir.ValueType], node: ir.Node) -> ir.ValueType:
    if not 0 <= ref < len(types):
        raise IRError(f"{node!r}: operand ", ir.Operand(ref), f" is not an earlier node (there are {len(types)})")
    return types[ref]


def _expect(good: bool, node: ir.Node, wanted: str, *got: ir.Type) -> None:
    if not good:
        raise IRError(f"{node!r}: expected {wanted}" + (f", got {', '.join(map(str, got))}" if got else ""))
