"""Row-wise operations on mailboxes: the same operation on the messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graphweave.udf.extent import Extent, pulled
from graphweave.udf.mailbox import Mailbox, NotExpressible, aligned, first, register
from graphweave.udf.pairs import ROWWISE, pair_box

_TORCH = (
    "abs", "acos", "acosh", "add", "addcdiv", "addcmul", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "clamp", "clamp_max", "clamp_min", "clip", "copysign",
    "cos", "cosh", "deg2rad", "digamma", "div", "divide", "dropout", "eq", "erf", "erfc", "exp", "exp2", "expm1",
    "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod", "frac", "ge", "greater", "gt", "isfinite",
    "isinf", "isnan", "le", "lerp", "less", "lgamma", "log", "log10", "log1p", "log2", "logaddexp", "logical_and",
    "logical_not", "logical_or", "logical_xor", "logit", "lt", "maximum", "minimum", "mul", "multiply",
    "nan_to_num", "ne", "neg", "negative", "positive", "pow", "rad2deg", "reciprocal", "relu", "remainder", "round",
    "rsqrt", "rsub", "sgn", "sigmoid", "sign", "sin", "sinc", "sinh", "sqrt", "square", "sub", "subtract", "tan",
    "tanh", "true_divide", "trunc", "where", "xlogy",
)  # fmt: skip

_FUNCTIONAL = (
    "celu", "elu", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logsigmoid", "mish",
    "prelu", "relu6", "rrelu", "selu", "silu", "softplus", "softshrink", "softsign", "tanhshrink", "threshold",
    "alpha_dropout",
)  # fmt: skip

_CONVERSIONS = (
    "bfloat16", "bool", "clone", "contiguous", "detach", "double", "float", "half", "int", "long", "to", "type_as",
    "type",
)  # fmt: skip


def _rowwise(function: Callable[..., Any]) -> Callable[..., Any]:
    def handler(*args: Any, **kwargs: Any) -> Any:
        if kwargs.pop("inplace", False):
            raise NotExpressible("an operation in place on a mailbox")
        pairs = pair_box(*args, *kwargs.values())
        if pairs is not None:
            named = {name: pairs.operand(a) for name, a in kwargs.items()}
            return pairs.like(function(*[pairs.operand(a) for a in args], **named))
        box = first(*args, *kwargs.values())
        inner = [_operand(a, box) for a in args]
        named = {name: _operand(a, box) for name, a in kwargs.items()}
        return box.like(function(*inner, **named))

    return handler


def _operand(x: Any, box: Mailbox) -> Any:
    return pulled(x, box) if isinstance(x, Extent) else aligned(x, box)


def _type_as(x: Any, other: Any) -> Any:
    box = first(x, other)
    to = other.messages if isinstance(other, Mailbox) else other
    return box.like(box.messages.type_as(to)) if isinstance(x, Mailbox) else x.type_as(to)


def _like(function: Callable[..., Tensor]) -> Callable[..., Any]:
    def handler(x: Any, *args: Any, **kwargs: Any) -> Any:
        return x.like(function(x.messages, *args, **kwargs))

    return handler


def _where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """torch.where(condition, x, y) and x.where(condition, y), which come here alike."""
    if x is None or y is None:
        raise NotExpressible("torch.where that gives places")
    if getattr(condition, "dtype", None) is not torch.bool and getattr(x, "dtype", None) is torch.bool:
        condition, x = x, condition
    return _choose(condition, x, y)


_choose = _rowwise(torch.where)


def _masked_fill(x: Any, mask: Any, value: Any) -> Any:
    return _choose(mask, value, x)


def register_rowwise() -> None:
    for name in _TORCH:
        register(name, _rowwise(getattr(torch, name)))
    for name in _FUNCTIONAL:
        register(name, _rowwise(getattr(functional, name)))
    for name in _CONVERSIONS:
        register(name, _like(getattr(torch.Tensor, name)))
    for name in ("zeros_like", "ones_like", "rand_like", "randn_like", "full_like", "empty_like", "bernoulli"):
        register(name, _like(getattr(torch, name)))
    register("dropout", _rowwise(functional.dropout))
    register("where", _where)
    register("masked_fill", _masked_fill)
    register("type_as", _type_as)
    register("truediv", _rowwise(torch.div))
    ROWWISE.update((*_TORCH, *_FUNCTIONAL, *_CONVERSIONS, "where", "masked_fill", "truediv"))
