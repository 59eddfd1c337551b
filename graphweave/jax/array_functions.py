"""The meaning of PyTorch's operators in JAX: all in which the layers of the two libraries differ.

A layer of `graphweave.nn` is written in PyTorch. PyTorch takes its functions, methods and modules apart into operators
(`torch.ops.aten`), and these are the ones that layers need. Each takes arrays of JAX in the place of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from graphweave.jax.recurrent import gru, gru_cell, lstm, lstm_cell

ArrayFunction: TypeAlias = Callable[..., Any]

DTYPES: Mapping[torch.dtype, Any] = {
    getattr(torch, name): jnp.dtype(name)
    for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
}
"""JAX's dtype of each of PyTorch's."""


def dtype_of(dtype: torch.dtype | None, otherwise: Any) -> Array:
    """JAX's dtype, in 32 bits where JAX has no 64."""
    return otherwise if dtype is None else jax.dtypes.canonicalize_dtype(DTYPES[dtype])


def _quotient(x: Array, y: Array, *, rounding_mode: str | None = None) -> Array:
    if rounding_mode is not None:
        return jnp.floor_divide(x, y) if rounding_mode == "floor" else jnp.trunc(x / y).astype(jnp.result_type(x, y))
    out = jnp.true_divide(x, y)
    integers = not jnp.issubdtype(jnp.result_type(x, y), jnp.floating)
    return out.astype(dtype_of(torch.get_default_dtype(), None)) if integers else out


def _scaled(function: ArrayFunction) -> ArrayFunction:
    """`x + alpha y` and the like."""
    return lambda x, y, *, alpha=1: function(x, y if alpha == 1 else y * alpha)


def _leaky_relu(x: Array, slope: float = 0.01) -> Array:
    return jnp.where(x > 0, x, x * slope)


def _elu(x: Array, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Array:
    return jnp.where(x > 0, x * scale, jnp.expm1(jnp.where(x > 0, 0, x) * input_scale) * (alpha * scale))


def _softplus(x: Array, beta: float = 1, threshold: float = 20) -> Array:
    large = x * beta > threshold
    return jnp.where(large, x, jnp.log1p(jnp.exp(jnp.where(large, 0, x) * beta)) / beta)


def _folded(function: ArrayFunction) -> ArrayFunction:
    def fold(
        x: Array, dims: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
    ) -> Array:
        axes = tuple(dims) if isinstance(dims, (list, tuple)) else dims
        x = x if dtype is None else x.astype(dtype_of(dtype, None))
        out = function(x, axis=axes or None if isinstance(axes, tuple) else axes, keepdims=keepdim)
        is_sum = x.dtype != out.dtype and not jnp.issubdtype(x.dtype, jnp.bool_)
        return out.astype(x.dtype) if is_sum else out

    return fold


def _softmax(x: Array, dim: int, half_to_float: bool = False) -> Array:
    return jax.nn.softmax(x, axis=dim)


def _log_softmax(x: Array, dim: int, half_to_float: bool = False) -> Array:
    return jax.nn.log_softmax(x, axis=dim)


def _layer_norm(
    x: Array, shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    axes = tuple(range(-len(shape), 0))
    mean = x.mean(axes, keepdims=True)
    scale = jax.lax.rsqrt(((x - mean) ** 2).mean(axes, keepdims=True) + eps)
    out = (x - mean) * scale
    out = out if weight is None else out * weight
    return (out if bias is None else out + bias), mean, scale


def _addmm(c: Array, x: Array, y: Array, *, beta: float = 1, alpha: float = 1) -> Array:
    product = x @ y
    return (c if beta == 1 else c * beta) + (product if alpha == 1 else product * alpha)


def _slice(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    start, stop, step = slice(start, end, step).indices(x.shape[dim])
    return jax.lax.slice_in_dim(x, start, max(stop, start), step, dim)


def _split(x: Array, sizes: Sequence[int], dim: int = 0) -> list[Array]:
    return jnp.split(x, np.cumsum(sizes)[:-1].tolist(), axis=dim)


def _expand(x: Array, sizes: Sequence[int], *, implicit: bool = False) -> Array:
    lead = len(sizes) - x.ndim
    return jnp.broadcast_to(x, [x.shape[i - lead] if n == -1 else n for i, n in enumerate(sizes)])


def _full(
    x: Array, sizes: Sequence[int], value: float, *, dtype: torch.dtype | None = None, **options: object
) -> Array:
    return jnp.full(tuple(sizes), value, dtype_of(dtype, x.dtype))


def _full_like(x: Array, value: float, *, dtype: torch.dtype | None = None, **options: object) -> Array:
    return jnp.full(x.shape, value, dtype_of(dtype, x.dtype))


def _filled(function: ArrayFunction, value: float) -> ArrayFunction:
    return lambda *args, **options: function(*args, value, **options)


def _to_copy(x: Array, *, dtype: torch.dtype | None = None, **options: object) -> Array:
    return x.astype(dtype_of(dtype, x.dtype))


def _index(x: Array, indices: Sequence[Array | None]) -> Array:
    return x[tuple(slice(None) if i is None else i for i in indices)]


def _constant_pad_nd(x: Array, sizes: Sequence[int], value: float = 0) -> Array:
    pairs = list(zip(sizes[::2], sizes[1::2], strict=True))  # of the last dim first
    every = [*[(0, 0)] * (x.ndim - len(pairs)), *reversed(pairs)]
    return jax.lax.pad(x, jnp.asarray(value, x.dtype), [(low, high, 0) for low, high in every])


def _index_select(x: Array, dim: int, index: Array) -> Array:
    return jnp.take(x, index, axis=dim)


def _index_add(x: Array, dim: int, index: Array, rows: Array, *, alpha: float = 1) -> Array:
    place = (slice(None),) * (dim % x.ndim) + (index,)
    return x.at[place].add(rows if alpha == 1 else rows * alpha)


def _index_copy(x: Array, dim: int, index: Array, rows: Array) -> Array:
    return x.at[(slice(None),) * (dim % x.ndim) + (index,)].set(rows)


def _index_fill(x: Array, dim: int, index: Array, value: float) -> Array:
    return x.at[(slice(None),) * (dim % x.ndim) + (index,)].set(value)


def _scatter_reduce(x: Array, dim: int, index: Array, rows: Array, fold: str, *, include_self: bool = True) -> Array:
    places = jnp.meshgrid(*map(jnp.arange, index.shape), indexing="ij", sparse=True)
    places[dim] = index
    if not include_self:
        floating = jnp.issubdtype(x.dtype, jnp.floating)
        low, high = (-jnp.inf, jnp.inf) if floating else (jnp.iinfo(x.dtype).min, jnp.iinfo(x.dtype).max)
        x = x.at[tuple(places)].set({"sum": 0, "prod": 1, "amax": low, "amin": high}[fold])
    at = x.at[tuple(places)]
    return {"sum": at.add, "prod": at.multiply, "amax": at.max, "amin": at.min}[fold](rows)


def _vector_norm(
    x: Array, order: float = 2, dims: Sequence[int] | None = None, keepdim: bool = False, **options: object
) -> Array:
    axes = None if dims is None else tuple(dims)
    if order != 2:
        return jnp.linalg.norm(x, order, axis=axes, keepdims=keepdim)
    square = (x * x).sum(axes, keepdims=keepdim)
    is_zero = square == 0  # where the gradient is 0, as PyTorch's is
    return jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, square)))


def _gelu(x: Array, *, approximate: str = "none") -> Array:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


def _clamp(x: Array, low: float | Array | None = None, high: float | Array | None = None) -> Array:
    x = x if low is None else jnp.maximum(x, low)
    return x if high is None else jnp.minimum(x, high)


def _extremes(values: ArrayFunction, places: ArrayFunction) -> ArrayFunction:
    return lambda x, dim, keepdim=False: (values(x, axis=dim, keepdims=keepdim), places(x, dim, keepdims=keepdim))


FUNCTIONS: Mapping[str, ArrayFunction] = {
    # elements
    "add": _scaled(jnp.add), "sub": _scaled(jnp.subtract), "rsub": _scaled(lambda x, y: y - x), "mul": jnp.multiply,
    "div": _quotient, "remainder": jnp.remainder, "floor_divide": jnp.floor_divide, "pow": jnp.power,
    "neg": jnp.negative, "abs": jnp.abs, "sign": jnp.sign, "reciprocal": lambda x: 1 / x, "square": jnp.square,
    "sqrt": jnp.sqrt, "rsqrt": jax.lax.rsqrt, "exp": jnp.exp, "expm1": jnp.expm1, "log": jnp.log, "log1p": jnp.log1p,
    "sin": jnp.sin, "cos": jnp.cos, "tanh": jnp.tanh, "erf": jax.lax.erf, "atan2": jnp.arctan2,
    "sigmoid": jax.nn.sigmoid, "relu": jax.nn.relu, "silu": jax.nn.silu, "gelu": _gelu, "elu": _elu,
    "leaky_relu": _leaky_relu, "softplus": _softplus, "log_sigmoid_forward": lambda x: (jax.nn.log_sigmoid(x), x),
    "maximum": jnp.maximum, "minimum": jnp.minimum, "clamp": _clamp, "clamp_min": jnp.maximum,
    "clamp_max": jnp.minimum, "where": jnp.where, "masked_fill": lambda x, mask, value: jnp.where(mask, value, x),
    "isinf": jnp.isinf, "isnan": jnp.isnan, "eq": jnp.equal, "ne": jnp.not_equal, "lt": jnp.less,
    "le": jnp.less_equal, "gt": jnp.greater, "ge": jnp.greater_equal, "logical_not": jnp.logical_not,
    "logical_and": jnp.logical_and, "logical_or": jnp.logical_or, "bitwise_not": jnp.invert,
    "bitwise_and": jnp.bitwise_and, "bitwise_or": jnp.bitwise_or, "lift_fresh": lambda x: x,
    "_to_copy": _to_copy, "clone": lambda x, **options: x, "alias": lambda x: x, "detach": jax.lax.stop_gradient,
    # products
    "mm": jnp.matmul, "bmm": jnp.matmul, "mv": jnp.matmul, "dot": jnp.dot, "addmm": _addmm,
    "baddbmm": _addmm,
    # folds
    "sum": _folded(jnp.sum), "mean": _folded(jnp.mean), "prod": _folded(jnp.prod), "amax": _folded(jnp.max),
    "amin": _folded(jnp.min), "any": _folded(jnp.any), "all": _folded(jnp.all), "argmax": jnp.argmax,
    "argmin": jnp.argmin, "max": _extremes(jnp.max, jnp.argmax), "min": _extremes(jnp.min, jnp.argmin),
    "cumsum": lambda x, dim, **options: jnp.cumsum(x, dim), "_softmax": _softmax, "_log_softmax": _log_softmax,
    "native_layer_norm": _layer_norm, "linalg_vector_norm": _vector_norm,
    # shapes
    "view": lambda x, sizes: x.reshape(tuple(sizes)), "_unsafe_view": lambda x, sizes: x.reshape(tuple(sizes)),
    "reshape": lambda x, sizes: x.reshape(tuple(sizes)), "unsqueeze": jnp.expand_dims,
    "squeeze": lambda x, dims=None: jnp.squeeze(x, _ones(x, dims)), "t": jnp.transpose, "permute": jnp.transpose,
    "transpose": jnp.swapaxes, "expand": _expand, "repeat": lambda x, counts: jnp.tile(x, tuple(counts)),
    "slice": _slice, "select": lambda x, dim, i: jnp.take(x, i, axis=dim), "split": lambda x, size, dim=0: _split(
        x, [min(size, x.shape[dim] - at) for at in range(0, max(x.shape[dim], 1), max(size, 1))], dim
    ),
    "split_with_sizes": _split,
    "unbind": lambda x, dim=0: [jnp.take(x, i, axis=dim) for i in range(x.shape[dim])],
    "cat": lambda xs, dim=0: jnp.concatenate(xs, axis=dim), "stack": lambda xs, dim=0: jnp.stack(xs, axis=dim),
    "constant_pad_nd": _constant_pad_nd,
    # rows
    "index_select": _index_select, "index": _index, "index_add": _index_add, "index_copy": _index_copy,
    "index_fill": _index_fill, "scatter_reduce": _scatter_reduce,
    "embedding": lambda w, i, *options: jnp.take(w, i, axis=0),
    # new arrays
    "new_zeros": _filled(_full, 0), "new_ones": _filled(_full, 1), "new_full": _full, "new_empty": _filled(_full, 0),
    "zeros_like": _filled(_full_like, 0), "ones_like": _filled(_full_like, 1), "full_like": _full_like,
    "empty_like": _filled(_full_like, 0),
}  # fmt: skip
"""Operator -> its meaning on arrays."""

WHOLE: Mapping[str, ArrayFunction] = {
    **{"matmul": jnp.matmul, "__matmul__": jnp.matmul, "einsum": jnp.einsum},
    **{"lstm": lstm, "gru": gru, "lstm_cell": lstm_cell, "gru_cell": gru_cell},
}
"""Functions that PyTorch would take apart into products of matrices, whose shapes mix rows with features, or into
writes."""


def _ones(x: Array, dims: int | Sequence[int] | None) -> tuple[int, ...]:
    """Those of `dims` (all by default) that have size 1."""
    given = range(x.ndim) if dims is None else dims if isinstance(dims, (list, tuple)) else [dims]
    return tuple(d % x.ndim for d in given if x.ndim and x.shape[d] == 1)
