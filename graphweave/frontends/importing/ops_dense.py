"""ATen calls that multiply matrices or fold dims -> MatMul, Gram, Reduce; a fold over rows is a Push along ToUnit."""

from __future__ import annotations

import torch
from torch import fx

from graphweave.core.errors import IRError, Reason
from graphweave.core.numbers import neutral
from graphweave.core.types import UNIT, DType, Fold, Op
from graphweave.frontends.calls.captured_sizes import argument, dim_of, rank
from graphweave.frontends.calls.row_rules import GRAM, PRODUCT, transposed
from graphweave.frontends.importing.context import Context, Handler, Table
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.infer import numel

aten = torch.ops.aten

OF_SHARED_DATA = Reason(("a product of shared matrices, which has no rows: the vendor's library multiplies them",))
"""Why products of weights with each other, such as those of a basis decomposition, stay calls of PyTorch. They do not
grow with the graph, and no kernel would multiply them faster or save a tensor."""


def _product(cx: Context, a: object, b: object) -> ir.Ref:
    """a @ b: rows times shared weights, or the sum over rows of outer products."""
    x = transposed(a)
    if x is not None and cx.spaces.space_of(x) != UNIT:
        return cx.emit(ir.Gram(cx.value(x), cx.value(b)))
    left = cx.value(a)
    if cx.type(left).space == UNIT:
        raise IRError(*OF_SHARED_DATA.parts)
    return cx.emit(ir.MatMul(left, cx.value(b)))


def _mm(cx: Context, node: fx.Node) -> ir.Ref:
    return _product(cx, *node.args[:2])


def _addmm(cx: Context, node: fx.Node) -> ir.Ref:
    """beta * input + alpha * product"""
    product, dtype = _product(cx, *node.args[1:3]), cx.result(node).dtype
    added = cx.aligned(node.args[0], node, None)
    if argument(node, "alpha", 1) != 1:
        product = cx.map(Op.mul, product, cx.scalar(argument(node, "alpha"), dtype))
    if argument(node, "beta", 1) != 1:
        added = cx.map(Op.mul, added, cx.scalar(argument(node, "beta"), dtype))
    return cx.map(Op.add, product, added)


def _mv(cx: Context, node: fx.Node) -> ir.Ref:
    """A matrix of rows times a shared vector."""
    x, w = (cx.value(a) for a in node.args[:2])
    features = cx.type(w).shape
    if cx.type(x).space == UNIT or len(features) != 1:
        raise IRError(*OF_SHARED_DATA.parts)
    return cx.reshape(cx.emit(ir.MatMul(x, cx.reshape(w, (features[0], 1)))), ())


def _bmm(cx: Context, node: fx.Node) -> ir.Ref:
    """A product in each row, or in each block of a row. A small one is written as sums, so that no matrices of rows
    have to be stored for a call."""
    a, b = (cx.value(x) for x in node.args[:2])
    t, s = cx.type(a), cx.type(b)
    if UNIT in (t.space, s.space) or t.space != s.space:
        raise IRError("products of shared data, or rows against matrices that they share")
    *blocks, m, k = t.shape
    n = s.shape[-1]
    if list(s.shape[:-2]) != blocks:
        raise IRError(f"products of blocks {t.shape} and {s.shape}")
    typed = _typed(cx, a, b)
    if typed is not None:
        return typed
    if k == 1:
        return cx.map(Op.mul, a, b)
    if numel(blocks) * m * k * n > _MAX_MULTIPLICATIONS_IN_KERNELS and not _has_matrices(cx, a, b):
        raise IRError(f"products of {t.shape} by {s.shape} in each row")
    d = len(blocks)
    if m == 1:  # puts the longest dim last, where it is contiguous
        product = cx.map(Op.mul, cx.reshape(a, (*blocks, k, 1)), b)
        return cx.reshape(cx.reduce(product, Fold.sum, (d,), False), (*blocks, 1, n))
    if n == 1:
        product = cx.map(Op.mul, a, cx.reshape(b, (*blocks, 1, k)))
        return cx.reshape(cx.reduce(product, Fold.sum, (d + 1,), False), (*blocks, m, 1))
    product = cx.map(Op.mul, cx.reshape(a, (*blocks, m, k, 1)), cx.reshape(b, (*blocks, 1, k, n)))
    return cx.reduce(product, Fold.sum, (d + 1,), False)


def _einsum(cx: Context, node: fx.Node) -> ir.Ref:
    """Blocks of rows times a matrix for each block, or the sum over rows of outer products of blocks."""
    equation, (first, second) = node.args[:2]  # type: ignore[misc, str-unpack]
    if equation not in (PRODUCT, GRAM):
        raise IRError(f"an einsum {equation}")
    a, b = cx.value(first), cx.value(second)
    t, s = cx.type(a), cx.type(b)
    if t.space == UNIT or s.space != (UNIT if equation == PRODUCT else t.space):
        raise IRError("products of shared data, or rows against matrices that they share")
    if t.shape[0] == 1:  # one block is no dim
        a, b = (cx.reshape(x, cx.type(x).shape[1:]) for x in (a, b))
    out = cx.emit(ir.MatMul(a, b) if equation == PRODUCT else ir.Gram(a, b))
    return cx.reshape(out, cx.result(node).shape)


def _typed(cx: Context, a: ir.Ref, b: ir.Ref) -> ir.Ref | None:
    """The product of rows with matrices that are pulled along a map, as a typed product that does not copy the
    matrices.

    None for any other product, and for a small one, which the rule `typed-linear` recognises in its sums.
    """
    (*blocks, m, k), n = cx.type(a).shape, cx.type(b).shape[-1]
    if len(blocks) > 1 or numel(blocks) * k * max(m, n) <= _MAX_MULTIPLICATIONS_IN_KERNELS:
        return None
    if m == 1 and (found := _matrices(cx, b)) is not None:
        out = cx.emit(ir.MatMul(cx.reshape(a, (*blocks, k)), *found))
        return cx.reshape(out, (*blocks, 1, n))
    if n == 1 and (found := _matrices(cx, _transpose(cx, a))) is not None:
        out = cx.emit(ir.MatMul(cx.reshape(b, (*blocks, k)), *found))
        return cx.reshape(out, (*blocks, m, 1))
    return None


def _transpose(cx: Context, ref: ir.Ref) -> ir.Ref:
    rank = len(cx.type(ref).shape)
    return cx.permute(ref, (*range(rank - 2), rank - 1, rank - 2))


def _matrices(cx: Context, ref: ir.Ref) -> tuple[ir.Ref, ir.Ref] | None:
    """(w, t) if `ref` is pull(w, t), even if each row is rearranged (w is then rearranged too); else None."""
    match cx.builder.nodes[ref]:
        case ir.Pull(w, m) if isinstance(cx.builder.nodes[m], ir.MapOf):
            return w, m
        case ir.Permute(x, perm) if (found := _matrices(cx, x)) is not None:
            return cx.permute(found[0], perm), found[1]
        case ir.Reshape(x, shape) if (found := _matrices(cx, x)) is not None:
            return cx.reshape(found[0], shape), found[1]
        case _:
            return None


def _has_matrices(cx: Context, a: ir.Ref, b: ir.Ref) -> bool:
    """Whether one factor is a vector and the other a pulled matrix, which `typed-linear` makes a typed product."""
    m, n = cx.type(a).shape[-2], cx.type(b).shape[-1]
    return (m == 1 and _matrices(cx, b) is not None) or (n == 1 and _matrices(cx, _transpose(cx, a)) is not None)


_MAX_MULTIPLICATIONS_IN_KERNELS = 4096
"""A product with at most this many multiplications in each row is written as sums, which kernels compute."""


def _dims(node: fx.Node) -> list[int]:
    x = node.args[0]
    assert isinstance(x, fx.Node)
    dims = argument(node, "dim", None)
    n = rank(x)
    if dims is None or dims == [] or n == 0:  # for a number, PyTorch accepts dims 0 and -1
        return list(range(n))
    return sorted(dim_of(d, n) for d in (dims if isinstance(dims, list | tuple) else [dims]))


def _folded(cx: Context, node: fx.Node, x: ir.Ref, fold: Fold) -> ir.Ref:
    """`x` folded over the dims of the call: features first, then rows."""
    arg, dims, keepdim = node.args[0], _dims(node), bool(argument(node, "keepdim", False))
    t = cx.type(x)
    if t.dtype is DType.bool:
        raise IRError(f"{fold.value} of {t.dtype.value}")
    if t.space == UNIT:
        _not_empty(fold, [t.shape[d] for d in dims])
        return cx.reduce(x, fold, tuple(dims), keepdim)
    _not_empty(fold, [t.shape[d - 1] for d in dims if d > 0])
    out = cx.reduce(x, fold, tuple(d - 1 for d in dims if d > 0), keepdim)
    if 0 not in dims:
        return out
    assert isinstance(arg, fx.Node)
    if fold in (Fold.max, Fold.min):
        cx.assert_rows(arg, f"{fold.value} of the rows of {t.space}", whole=argument(node, "dim") in (None, []))
    out = cx.push(out, cx.emit(ir.ToUnit(t.space)), fold, neutral(fold, t.dtype))
    return cx.reshape(out, (1, *cx.type(out).shape)) if keepdim else out


def _not_empty(fold: Fold, sizes: list[int]) -> None:
    if fold in (Fold.max, Fold.min) and 0 in sizes:
        raise IRError("the extreme of no numbers")


def _fold(fold: Fold) -> Handler:
    def handler(cx: Context, node: fx.Node) -> ir.Ref:
        dtype = cx.result(node).dtype
        return _folded(cx, node, cx.cast(cx.value(node.args[0]), dtype), fold)

    return handler


def _mean(cx: Context, node: fx.Node) -> ir.Ref:
    """The sum divided by the number of its terms."""
    arg, t = node.args[0], cx.result(node)
    assert isinstance(arg, fx.Node)
    x = cx.cast(cx.value(arg), t.dtype)
    total, dims, own = _folded(cx, node, x, Fold.sum), _dims(node), cx.type(x)
    if own.space == UNIT:
        return cx.map(Op.div, total, cx.const(numel([own.shape[d] for d in dims]), t.dtype))
    features = cx.const(numel([own.shape[d - 1] for d in dims if d > 0]), t.dtype)
    if 0 not in dims:
        return cx.map(Op.div, total, features)
    return cx.map(Op.div, total, cx.map(Op.mul, cx.rows(arg, t.dtype), features))


def _dot(cx: Context, node: fx.Node) -> ir.Ref:
    """The sum over rows of products of two vectors."""
    x, y = (cx.value(a) for a in node.args[:2])
    space = cx.type(x).space
    if space == UNIT or cx.type(y).space != space:
        raise IRError(*OF_SHARED_DATA.parts)
    return cx.push(cx.map(Op.mul, x, y), cx.emit(ir.ToUnit(space)), Fold.sum)


DENSE: Table = {
    aten.mm.default: _mm,
    aten.addmm.default: _addmm,
    aten.mv.default: _mv,
    aten.dot.default: _dot,
    **dict.fromkeys((aten.bmm.default, aten.matmul.default), _bmm),
    aten.einsum.default: _einsum,
    **dict.fromkeys((aten.sum.dim_IntList, aten.sum.default), _fold(Fold.sum)),
    **dict.fromkeys((aten.prod.dim_int, aten.prod.default), _fold(Fold.mul)),
    **dict.fromkeys((aten.amax.default, aten.max.default), _fold(Fold.max)),
    **dict.fromkeys((aten.amin.default, aten.min.default), _fold(Fold.min)),
    **dict.fromkeys((aten.mean.dim, aten.mean.default), _mean),
}
"""The handlers of these calls."""
