"""What is done to the features of each row alike: number by number, along features, and to their shape."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graphweave.core.errors import LoopError
from graphweave.loops.values import ELEMENTWISE, HANDLERS, Value, aligned, innermost, may_gather
from graphweave.udf.mailbox import constant
from graphweave.udf.pairs import ROWWISE

_OPERATORS = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "pow": operator.pow,
    "floor_divide": operator.floordiv, "remainder": operator.mod, "bitwise_and": operator.and_,
    "bitwise_or": operator.or_, "bitwise_xor": operator.xor,
}  # fmt: skip
"""Python's operators take numbers on either side, which PyTorch's functions do not."""

_REDUCTIONS = ("sum", "mean", "prod", "amax", "amin", "all", "any", "logsumexp", "std", "var", "argmax", "argmin")
_ALONG = ("softmax", "log_softmax", "cumsum", "cumprod", "normalize")


def pointwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of operands whose features broadcast from the right: values, tensors of features, numbers."""

    def handler(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        loop = innermost(given)
        data = {id(x): x.within(loop) for x in given if isinstance(x, Value)}
        if not any(isinstance(x, Tensor) for x in data.values()):
            first = next(x for x in given if isinstance(x, Value))
            data[id(first)] = first.tensor(loop)
        dims = max(x.dim() for x in data.values() if isinstance(x, Tensor))
        dims = max([dims, *(x.dim() + 1 for x in given if isinstance(x, Tensor))])

        def operand(x: Any) -> Any:
            inner = data[id(x)] if isinstance(x, Value) else x
            return aligned(inner, dims) if isinstance(x, Value) and isinstance(inner, Tensor) else inner

        out = function(*[operand(x) for x in args], **{name: operand(x) for name, x in kwargs.items()})
        return Value(out, loop)

    return handler


def of_tensors(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """`function` of two tensors, of which each may be given as a number."""

    def call(a: Any, b: Any) -> Any:
        if not isinstance(a, Tensor) and not isinstance(b, Tensor):
            return function(torch.tensor(a), torch.tensor(b)).item()
        like = a if isinstance(a, Tensor) else b
        a, b = (x if isinstance(x, Tensor) else torch.full((), x, dtype=like.dtype, device=like.device) for x in (a, b))
        return function(a, b)

    return call


def dim_of(x: Value, dim: Any, more: int = 0) -> int:
    """The dim of the tensor that is feature dim `dim`; `more` dims are about to be added."""
    dim, ndim = constant(dim), x.ndim + more
    if not isinstance(dim, int) or not -ndim <= dim < ndim:
        raise LoopError(
            f"dim {dim} of features of shape {x.shape}: one edge or node has dims {-ndim} to {ndim - 1}."
            " Choose one of these."
        )
    return dim + 1 if dim >= 0 else dim + ndim + 1


def _dims_of(x: Value, dim: Any) -> tuple[int, ...]:
    if dim is None:
        return tuple(range(1, x.ndim + 1))
    return tuple(dim_of(x, d) for d in dim) if isinstance(dim, (tuple, list)) else (dim_of(x, dim),)


def _reduction(name: str) -> Callable[..., Any]:
    function = getattr(torch, name)

    def handler(x: Value, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
        data = x.tensor()
        dims: tuple[int, ...]
        if dim is None and data.dim() == 2:  # all features, as one dim where PyTorch takes one only
            dim = 0
        if dim is None and name in ("all", "any", "argmax", "argmin", "prod"):
            data, dims = data.flatten(1) if data.dim() > 1 else data.unsqueeze(1), (1,)
        else:
            dims = _dims_of(x, dim)
        if not dims:
            data, dims = data.unsqueeze(1), (1,)
        return Value(function(data, dims if len(dims) > 1 else dims[0], keepdim=keepdim, **kwargs), x.loop)

    return handler


def _extreme(name: str) -> Callable[..., Any]:
    """torch.max(x), torch.max(x, dim) and torch.max(x, y)."""

    def handler(x: Any, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
        if not isinstance(x, Value) or isinstance(dim, (Value, Tensor)):
            return HANDLERS[f"{name}imum"](x, dim)
        if dim is None:
            return HANDLERS[f"a{name}"](x)
        values, places = getattr(torch, name)(x.tensor(), dim_of(x, dim), keepdim=keepdim, **kwargs)
        return Value(values, x.loop), Value(places, x.loop)

    return handler


def _along(function: Callable[..., Tensor]) -> Callable[..., Any]:
    def handler(x: Value, dim: Any = -1, **kwargs: Any) -> Any:
        kwargs = {name: v for name, v in kwargs.items() if not name.startswith("_")}
        return Value(function(x.tensor(), dim=dim_of(x, dim), **kwargs), x.loop)

    return handler


def _norm(x: Value, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Value:
    return Value(torch.linalg.vector_norm(x.tensor(), p, _dims_of(x, dim), keepdim=keepdim), x.loop)


def _convert(name: str) -> Callable[..., Any]:
    def handler(x: Value, *args: Any, **kwargs: Any) -> Any:
        return Value(getattr(x.tensor(), name)(*args, **kwargs), x.loop)

    return handler


# ---------------------------------------------------------------- shapes


def _sizes(given: tuple[Any, ...]) -> tuple[int, ...]:
    first = given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given
    return tuple(constant(n) for n in first)


def _reshape(x: Value, *sizes: Any) -> Value:
    """The sizes are those of one row; -1 is worked out from them, since there may be no rows."""
    data, wanted, total = x.tensor(), list(_sizes(sizes)), 1
    for n in data.shape[1:]:
        total *= n
    if -1 in wanted:
        rest = 1
        for n in wanted:
            rest *= n if n != -1 else 1
        wanted[wanted.index(-1)] = total // max(rest, 1)
    return Value(data.reshape(data.shape[0], *wanted), x.loop)


def _flatten(x: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    return Value(x.tensor().flatten(dim_of(x, start_dim), dim_of(x, end_dim)), x.loop)


def _unsqueeze(x: Value, dim: int) -> Value:
    return Value(x.tensor().unsqueeze(dim_of(x, dim, 1)), x.loop)


def _squeeze(x: Value, dim: int) -> Value:
    return Value(x.tensor().squeeze(dim_of(x, dim)), x.loop)


def _transpose(x: Value, dim0: int, dim1: int) -> Value:
    return Value(x.tensor().transpose(dim_of(x, dim0), dim_of(x, dim1)), x.loop)


def _permute(x: Value, *dims: Any) -> Value:
    return Value(x.tensor().permute(0, *[dim_of(x, d) for d in _sizes(dims)]), x.loop)


def _joined(function: Callable[..., Tensor], more: int) -> Callable[..., Any]:
    def handler(parts: Sequence[Any], dim: int = 0) -> Value:
        loop = innermost(parts)
        first = next(x for x in parts if isinstance(x, Value))
        rows = loop.store.num_rows()
        data = [x.tensor(loop) if isinstance(x, Value) else x.expand(rows, *x.shape) for x in parts]
        return Value(function(data, dim_of(first, dim, more)), loop)

    return handler


def _parts(function: Callable[..., Sequence[Tensor]]) -> Callable[..., Any]:
    def handler(x: Value, size: Any, dim: int = 0) -> list[Value]:
        return [Value(part, x.loop) for part in function(x.tensor(), size, dim_of(x, dim))]

    return handler


def features_at(x: Value, index: Any) -> Value:
    """x[i], x[a:b], x[..., None]: the features of each row, indexed."""
    items = index if isinstance(index, tuple) else (index,)
    for i in items:
        places = isinstance(i, Tensor) and i.dtype in (torch.int32, torch.int64)
        if not (i is None or i is Ellipsis or isinstance(i, (int, slice, list)) or places):
            raise LoopError(
                f"features are indexed by numbers, slices, None and ... (got {type(i).__name__}). Use one of these."
            )
    return Value(x.tensor()[(slice(None), *items)], x.loop)


def register_rowwise() -> None:
    for name in ROWWISE:
        home = next((h for h in (torch, functional) if hasattr(h, name)), None)
        if home is not None and name not in _OPERATORS:
            HANDLERS[name] = pointwise(getattr(home, name))
        elif name in dir(Tensor):
            HANDLERS[name] = _convert(name)
    for name, function in _OPERATORS.items():
        ELEMENTWISE[name] = pointwise(function)
    for name in ("maximum", "minimum"):
        ELEMENTWISE[name] = pointwise(of_tensors(getattr(torch, name)))
    for name in ("clone", "contiguous", "detach", "type_as", "to"):
        HANDLERS[name] = _convert(name)
    for name in ELEMENTWISE:
        HANDLERS[name] = may_gather(name) if name in ("add", "sub", "mul", "maximum", "minimum") else ELEMENTWISE[name]
    for name, same in {"multiply": "mul", "subtract": "sub", "divide": "div", "true_divide": "div"}.items():
        HANDLERS[name] = HANDLERS[same]
    HANDLERS["truediv"] = HANDLERS["div"]
    for name in _REDUCTIONS:
        HANDLERS[name] = _reduction(name)
    for name in ("max", "min"):
        HANDLERS[name] = _extreme(name)
    for name in _ALONG:
        HANDLERS[name] = _along(getattr(torch if name != "normalize" else functional, name))
    HANDLERS.update(
        norm=_norm, vector_norm=_norm, reshape=_reshape, view=_reshape, flatten=_flatten, unsqueeze=_unsqueeze,
        squeeze=_squeeze, transpose=_transpose, swapaxes=_transpose, permute=_permute, cat=_joined(torch.cat, 0),
        concat=_joined(torch.cat, 0), stack=_joined(torch.stack, 1), split=_parts(torch.split),
        chunk=_parts(torch.chunk),
    )  # fmt: skip
