"""Row-wise operations on values of edges and nodes: number by number, along features, and on the shape of features."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graphweave.core.errors import LoopError
from graphweave.loops.values import LoopValue, may_gather, meeting, together
from graphweave.tensorlike.answers import Handler, unpacked
from graphweave.tensorlike.pointwise import pointwise, pointwise_handlers
from graphweave.tensorlike.reductions import OVER_FEATURES, Reduction, over_features, vector_norm
from graphweave.tensorlike.views import feature_dim, reshaped, view_handlers

_OPERATORS = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "pow": operator.pow,
    "floor_divide": operator.floordiv, "remainder": operator.mod, "bitwise_and": operator.and_,
    "bitwise_or": operator.or_, "bitwise_xor": operator.xor,
}  # fmt: skip
"""Name of a function -> Python's operator, which unlike PyTorch's function takes numbers on either side."""

_ALONG_ONE_DIM = ("softmax", "log_softmax", "cumsum", "cumprod", "normalize")
"""Functions that work along one feature dim and keep it."""


def of_tensors(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """`function`, which takes two tensors, as a function that also takes a number in place of either."""

    def call(a: Any, b: Any) -> Any:
        if not isinstance(a, Tensor) and not isinstance(b, Tensor):
            return function(torch.tensor(a), torch.tensor(b)).item()
        like = a if isinstance(a, Tensor) else b
        a, b = (x if isinstance(x, Tensor) else torch.full((), x, dtype=like.dtype, device=like.device) for x in (a, b))
        return function(a, b)

    return call


def _dims_of(x: LoopValue, dim: object) -> list[int]:
    return list(range(x.ndim)) if dim is None else x.all_wrapped(dim)


def _reduction(reduction: Reduction) -> Handler:
    def handler(x: LoopValue, dim: object = None, keepdim: bool = False, **kwargs: object) -> LoopValue:
        return over_features(x, _dims_of(x, dim), keepdim, reduction, **kwargs)

    return handler


def _extreme(name: str) -> Callable[..., Any]:
    """The handler for torch.max(x), torch.max(x, dim) and torch.max(x, y), or for torch.min."""

    def handler(x: object, dim: object = None, keepdim: bool = False, **kwargs: object) -> object:
        if not isinstance(x, LoopValue) or isinstance(dim, (LoopValue, Tensor)):
            return LoopValue.answers[f"{name}imum"](x, dim)
        if dim is None:
            return LoopValue.answers[f"a{name}"](x)
        values, places = getattr(torch, name)(x.tensor(), feature_dim(x, dim), keepdim=keepdim, **kwargs)
        return LoopValue(values, x.loop), LoopValue(places, x.loop)

    return handler


def _along(function: Callable[..., Tensor]) -> Callable[..., object]:
    def handler(x: LoopValue, dim: object = -1, **kwargs: object) -> LoopValue:
        kwargs = {name: v for name, v in kwargs.items() if not name.startswith("_")}
        return LoopValue(function(x.tensor(), dim=feature_dim(x, dim), **kwargs), x.loop)

    return handler


def _norm(x: LoopValue, p: object = 2, dim: object = None, keepdim: bool = False) -> object:
    return over_features(x, _dims_of(x, dim), keepdim, vector_norm, ord=p)


def _reshape(x: LoopValue, *sizes: object) -> LoopValue:
    """The features of each row, reshaped to `sizes`."""
    return reshaped(x, unpacked(sizes))


def features_at(x: LoopValue, index: object) -> LoopValue:
    """x[i], x[a:b], x[..., None]: an index into the features of each row."""
    items = index if isinstance(index, tuple) else (index,)
    for i in items:
        places = isinstance(i, Tensor) and i.dtype in (torch.int32, torch.int64)
        if not (i is None or i is Ellipsis or isinstance(i, (int, slice, list)) or places):
            raise LoopError(
                f"features are indexed by numbers, slices, None and ... (got {type(i).__name__}). Use one of these."
            )
    return LoopValue(x.tensor()[(slice(None), *items)], x.loop)


def _operators() -> dict[str, Handler]:
    functions = {**_OPERATORS, **{name: of_tensors(getattr(torch, name)) for name in ("maximum", "minimum")}}
    computed = {name: pointwise(function, meeting) for name, function in functions.items()}
    gathering = {name: may_gather(name, computed[name]) for name in ("add", "sub", "mul", "maximum", "minimum")}
    out = {**computed, **gathering}
    same = {"multiply": "mul", "subtract": "sub", "divide": "div", "true_divide": "div", "truediv": "div"}
    return out | {name: out[other] for name, other in same.items()}


ROWWISE: dict[str, Handler] = {
    **pointwise_handlers(meeting), "masked_fill": pointwise(torch.masked_fill, meeting), **_operators(),
    **{name: _reduction(reduction) for name, reduction in OVER_FEATURES.items()},
    "max": _extreme("max"), "min": _extreme("min"),
    **{name: _along(getattr(torch if name != "normalize" else functional, name)) for name in _ALONG_ONE_DIM},
    "norm": _norm, "vector_norm": _norm, **view_handlers(together), "reshape": _reshape, "view": _reshape,
}  # fmt: skip
"""The handlers of PyTorch's functions by name, except products."""
