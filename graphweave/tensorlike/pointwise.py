"""Functions that work element by element, and are applied directly to the data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graphweave.tensorlike.answers import Handler, TensorLike

_TORCH = (
    "abs", "acos", "acosh", "add", "addcdiv", "addcmul", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "clamp", "clamp_max", "clamp_min", "clip", "copysign",
    "cos", "cosh", "deg2rad", "digamma", "div", "divide", "eq", "erf", "erfc", "exp", "exp2", "expm1",
    "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod", "frac", "ge", "greater", "gt", "isfinite",
    "isinf", "isnan", "le", "lerp", "less", "lgamma", "log", "log10", "log1p", "log2", "logaddexp", "logical_and",
    "logical_not", "logical_or", "logical_xor", "logit", "lt", "maximum", "minimum", "mul", "multiply",
    "nan_to_num", "ne", "neg", "negative", "positive", "pow", "rad2deg", "reciprocal", "relu", "remainder", "round",
    "rsqrt", "rsub", "sgn", "sigmoid", "sign", "sin", "sinc", "sinh", "sqrt", "square", "sub", "subtract", "tan",
    "tanh", "true_divide", "trunc", "where", "xlogy",
)  # fmt: skip
"""Functions of `torch`."""

_FUNCTIONAL = (
    "celu", "elu", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logsigmoid", "mish",
    "prelu", "relu6", "rrelu", "selu", "silu", "softplus", "softshrink", "softsign", "tanhshrink", "threshold",
    "alpha_dropout", "dropout",
)  # fmt: skip
"""Functions of `torch.nn.functional`."""

_CONVERSIONS = (
    "bfloat16", "bool", "clone", "contiguous", "detach", "double", "float", "half", "int", "long", "to", "type_as",
    "type",
)  # fmt: skip
"""Methods of tensors with a single tensor as operand."""

Meeting = Callable[[Sequence[Any]], tuple[TensorLike, list[Any]]]
"""Operands of one operation -> an object with the rows of its result, and each operand as data for those rows."""


def pointwise(function: Callable[..., Any], meeting: Meeting) -> Handler:
    """A handler that applies `function` to the operands, each as data for the rows of the result."""

    def handler(*args: Any, **kwargs: object) -> TensorLike:
        inplace = kwargs.pop("inplace", False)
        among, data = meeting([*args, *kwargs.values()])
        if inplace:
            raise among.unchanged()
        named = dict(zip(kwargs, data[len(args) :], strict=True))
        return among.like(function(*data[: len(args)], **named))

    return handler


def converted(function: Callable[..., Tensor]) -> Handler:
    """A handler that applies `function` to the data of the first operand."""

    def handler(x: TensorLike, *args: object, **kwargs: object) -> TensorLike:
        return x.like(function(x.tensor(), *args, **kwargs))

    return handler


def pointwise_handlers(meeting: Meeting) -> dict[str, Handler]:
    """The handlers of all these functions, by name."""
    functions = {name: getattr(torch, name) for name in _TORCH} | {n: getattr(functional, n) for n in _FUNCTIONAL}
    return {name: pointwise(function, meeting) for name, function in functions.items()} | {
        name: converted(getattr(Tensor, name)) for name in _CONVERSIONS
    }
