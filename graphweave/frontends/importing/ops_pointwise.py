"""ATen calls that work element by element -> Pointwise and Cast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from graphweave.core.errors import IRError
from graphweave.core.formulas import evaluate
from graphweave.core.types import DType, Op, belongs
from graphweave.frontends.calls.captured_sizes import argument, is_tensor, val
from graphweave.frontends.importing.context import Context, Handler, Table
from graphweave.ir.message.aten import DTYPE_OF
from graphweave.ir.message.nodes import Ref
from graphweave.ir.operator_calls import overload

aten = torch.ops.aten
prims = torch.ops.prims


def _unary(op: Op) -> Handler:
    def handler(cx: Context, node: fx.Node) -> Ref:
        t = cx.result(node)
        if not belongs(t.dtype, op.facts.in_kernels) or (op in (Op.floor, Op.ceil) and not t.dtype.is_float):
            raise IRError(f"{op.value} of {t.dtype.value}")
        dtype = None if op.facts.gives_bool else t.dtype
        x = cx.aligned(node.args[0], node, DType.bool if op.facts.truths else dtype)
        if op is Op.isnan and not cx.type(x).dtype.is_float:
            raise IRError("isnan of integers")
        return cx.map(op, x)

    return handler


def compute_type(*args: object) -> DType:
    """The dtype in which torch computes with these operands."""
    values = [val(a) for a in args]
    numbers = [v if isinstance(v, torch.Tensor) else _like(v) for v in values]
    out = numbers[0]
    dtype = torch.result_type(out, numbers[1]) if len(numbers) > 1 else out.dtype
    if dtype not in DTYPE_OF:
        raise IRError(f"numbers of {dtype}")
    return DTYPE_OF[dtype]


def _like(value: object) -> Any:
    """A symbolic number is replaced by a Python number of the same type, since promotion depends on types alone."""
    return 1.0 if isinstance(value, torch.SymFloat) else 1 if isinstance(value, torch.SymInt) else value


def _binary(op: Op, reverse: bool = False) -> Handler:
    def handler(cx: Context, node: fx.Node) -> Ref:
        a, b = node.args[:2]
        scale = argument(node, "alpha", 1)
        if op.facts.truths:
            dtype = DType.bool
        elif op.facts.gives_bool:
            dtype = compute_type(a, b)
        else:
            dtype = cx.result(node).dtype
        x, y = (cx.aligned(v, node, dtype) for v in (a, b))
        if reverse:
            x, y = y, x
        if not (isinstance(scale, int | float) and scale == 1):
            scaled = cx.map(Op.mul, x if reverse else y, cx.scalar(scale, dtype))
            # PyTorch scales the number that is subtracted, which is the first argument of rsub
            x, y = (x, scaled) if not reverse else (x, cx.map(Op.mul, y, cx.scalar(scale, dtype)))
        real = Op(op.facts.on_bool) if op.facts.on_bool and dtype is DType.bool else op
        return cx.map(real, x, y)

    return handler


def _bitwise(op: Op) -> Handler:
    def handler(cx: Context, node: fx.Node) -> Ref:
        if cx.result(node).dtype is not DType.bool:
            raise IRError("bitwise operators of integers")
        args = node.args[: 1 if op is Op.logical_not else 2]
        return cx.map(op, *(cx.aligned(a, node, DType.bool) for a in args))

    return handler


def _divide(cx: Context, node: fx.Node) -> Ref | None:
    """Division without rounding. None for PyTorch's rounding divisions, which differ from rounding a quotient."""
    if argument(node, "rounding_mode") is not None:
        return None
    return _binary(Op.div)(cx, node)


def _pow(cx: Context, node: fx.Node) -> Ref:
    """x ** number, with PyTorch's special cases, which are faster than pow and round in another way."""
    t, exponent = cx.result(node), node.args[1]
    if t.dtype is DType.bool or not isinstance(exponent, int | float):
        raise IRError("powers of bool, or to a symbolic number")
    x = cx.aligned(node.args[0], node, t.dtype)
    if exponent == 1:
        return x
    if exponent in (2, 3):
        square = cx.map(Op.mul, x, x)
        return square if exponent == 2 else cx.map(Op.mul, square, x)
    if t.dtype.is_float:
        match exponent:
            case 0.5:
                return cx.map(Op.sqrt, x)
            case -0.5:
                return cx.map(Op.rsqrt, x)
            case -1:
                return cx.map(Op.reciprocal, x)
            case -2:
                return cx.map(Op.reciprocal, cx.map(Op.mul, x, x))
    elif exponent < 0:
        raise IRError("negative powers of integers")
    return cx.map(Op.pow, x, cx.scalar(exponent, t.dtype))


def _clamp(cx: Context, node: fx.Node) -> Ref:
    dtype = cx.result(node).dtype
    out = cx.aligned(node.args[0], node, dtype)
    for name, op in (("min", Op.maximum), ("min_val", Op.maximum), ("max", Op.minimum), ("max_val", Op.minimum)):
        bound = argument(node, name)
        if bound is not None:
            out = cx.map(op, out, cx.aligned(bound, node, dtype))
    return out


def _where(cx: Context, node: fx.Node) -> Ref:
    cond, a, b = node.args[:3]
    dtype = cx.result(node).dtype
    return cx.map(Op.where, cx.aligned(cond, node, DType.bool), *(cx.aligned(v, node, dtype) for v in (a, b)))


def _masked_fill(cx: Context, node: fx.Node) -> Ref:
    x, mask, value = node.args[:3]
    dtype = cx.result(node).dtype
    return cx.map(Op.where, cx.aligned(mask, node, DType.bool), *(cx.aligned(v, node, dtype) for v in (value, x)))


def _square(cx: Context, node: fx.Node) -> Ref:
    x = cx.aligned(node.args[0], node, cx.result(node).dtype)
    return cx.map(Op.mul, x, x)


def _isinf(cx: Context, node: fx.Node) -> Ref:
    x = cx.aligned(node.args[0], node, None)
    dtype = cx.type(x).dtype
    if not dtype.is_float:
        raise IRError("isinf of integers")
    return cx.map(Op.eq, cx.map(Op.abs, x), cx.const(float("inf"), dtype))


def _backward_of(op: Op) -> Handler:
    """A handler for the call that computes the derivative of `op` from a gradient and the result of `op`."""
    (formula,) = op.facts.derivative or ("",)

    def handler(cx: Context, node: fx.Node) -> Ref:
        dtype = cx.result(node).dtype
        g, out = (cx.aligned(v, node, dtype) for v in node.args[:2])
        return evaluate(formula, {"g": g, "out": out}, lambda o, xs: cx.map(o, *xs), lambda v: cx.const(v, dtype))

    return handler


def _threshold_backward(cx: Context, node: fx.Node) -> Ref:
    """0 where x <= threshold, else g."""
    dtype = cx.result(node).dtype
    g, x = (cx.aligned(v, node, dtype) for v in node.args[:2])
    low = cx.map(Op.le, x, cx.scalar(node.args[2], dtype))
    return cx.map(Op.where, low, cx.const(0, dtype), g)


def _leaky_relu(cx: Context, node: fx.Node) -> Ref:
    dtype = cx.result(node).dtype
    x = cx.aligned(node.args[0], node, dtype)
    slope = cx.scalar(argument(node, "negative_slope", 0.01), dtype)
    return cx.map(Op.where, cx.map(Op.gt, x, cx.const(0, dtype)), x, cx.map(Op.mul, x, slope))


def _leaky_relu_backward(cx: Context, node: fx.Node) -> Ref:
    """g where x > 0, else slope * g. The call may pass the result in place of x; it has the same sign."""
    dtype = cx.result(node).dtype
    g, x = (cx.aligned(v, node, dtype) for v in node.args[:2])
    slope = cx.scalar(node.args[2], dtype)
    return cx.map(Op.where, cx.map(Op.gt, x, cx.const(0, dtype)), g, cx.map(Op.mul, g, slope))


def _cast(cx: Context, node: fx.Node) -> Ref | None:
    x = node.args[0]
    if not is_tensor(x) or val(x).device != val(node).device:
        return None
    return cx.cast(cx.value(x), cx.result(node).dtype)


_BY_ARITY = {1: _unary, 2: _binary}
_CLAMPS: tuple[Any, ...] = (
    aten.clamp.default, aten.clamp.Tensor, aten.clamp_min.default, aten.clamp_min.Tensor, aten.clamp_max.default,
    aten.clamp_max.Tensor, aten.hardtanh.default,
)  # fmt: skip
"""Calls that limit numbers to a range."""

_special: dict[Any, Callable[[Context, fx.Node], Ref | None]] = {
    aten.div.Tensor_mode: _divide, aten.div.Scalar_mode: _divide,
    aten.pow.Tensor_Scalar: _pow, aten.where.self: _where, aten.square.default: _square, aten.isinf.default: _isinf,
    aten.masked_fill.Scalar: _masked_fill, aten.masked_fill.Tensor: _masked_fill,
    aten.sigmoid_backward.default: _backward_of(Op.sigmoid), aten.tanh_backward.default: _backward_of(Op.tanh),
    aten.threshold_backward.default: _threshold_backward, aten.leaky_relu.default: _leaky_relu,
    aten.leaky_relu_backward.default: _leaky_relu_backward,
    aten._to_copy.default: _cast, prims.convert_element_type.default: _cast,
    aten.bitwise_and.Tensor: _bitwise(Op.logical_and), aten.bitwise_or.Tensor: _bitwise(Op.logical_or),
    aten.bitwise_not.default: _bitwise(Op.logical_not),
}  # fmt: skip

POINTWISE: Table = {
    **{overload(name): _BY_ARITY[op.facts.arity](op) for op in Op if op is not Op.where for name in op.facts.aten},
    **{target: _binary(Op.sub, reverse=True) for target in (aten.rsub.Tensor, aten.rsub.Scalar)},
    **dict.fromkeys(_CLAMPS, _clamp),
    **_special,
}
"""The handlers of these calls."""
