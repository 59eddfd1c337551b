"""Primitives of JAX that move, fold and join features, as nodes of a message program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphweave.core.types import DType, Fold, Op
from graphweave.ir.message import nodes as ir
from graphweave.jax.elementwise import Rule
from graphweave.jax.values import CannotSay, Value, Values

_MOST_REVERSED = 64
"""A dim of at most this many features is reversed, feature by feature."""

# ---------------------------------------------------------------- dims


def _broadcast_in_dim(
    values: Values, x: Value, *, shape: Sequence[int], broadcast_dimensions: Sequence[int], **params: Any
) -> Value:
    return values.with_dims(x, tuple(map(int, shape)), [int(d) for d in broadcast_dimensions])


def shared_row(values: Values, x: Value) -> Value:
    """A value on a space of one row as data that all rows share; any other value as it is.

    In an array of one row JAX takes the rows' dim for any other dim of size 1: it squeezes one and puts another in its
    place. As shared data, that row broadcasts to every dim of size 1.
    """
    if x.rows is None or x.shape[x.rows] != 1:
        return x
    ref = values.add(ir.Push(x.ref, values.add(ir.ToUnit(values.space(x))), Fold.sum))
    features = list(values.type(ref).shape)
    features.insert(x.rows, 1)
    return Value(values.reshaped(ref, features), x.shape, None, x.spread | {x.rows})


def _reshape(values: Values, x: Value, *, new_sizes: Sequence[int], dimensions: Any = None, **params: Any) -> Value:
    if dimensions is not None:
        x = values.transposed(x, [int(d) for d in dimensions])
    return values.with_shape(x, tuple(map(int, new_sizes)))


def _squeeze(values: Values, x: Value, *, dimensions: Sequence[int], **params: Any) -> Value:
    gone = {int(d) % len(x.shape) for d in dimensions}
    return values.with_shape(x, tuple(n for i, n in enumerate(x.shape) if i not in gone))


def _expand_dims(values: Values, x: Value, *, dimensions: Sequence[int], **params: Any) -> Value:
    rank = len(x.shape) + len(dimensions)
    added = {int(d) % rank for d in dimensions}
    places = [i for i in range(rank) if i not in added]
    sizes = iter(x.shape)
    return values.with_dims(x, tuple(1 if i in added else next(sizes) for i in range(rank)), places)


def _transpose(values: Values, x: Value, *, permutation: Sequence[int], **params: Any) -> Value:
    return values.transposed(x, [int(p) for p in permutation])


# ---------------------------------------------------------------- parts


def sliced(values: Values, x: Value, dim: int, start: int, stop: int, step: int = 1) -> Value:
    size = -(-(stop - start) // step)
    if size == x.shape[dim] and step == 1:
        return x
    if dim == x.rows:
        raise CannotSay("takes some of the rows")
    shape = (*x.shape[:dim], size, *x.shape[dim + 1 :])
    if x.is_uniform(dim) and size > 0:
        return Value(x.ref, shape, x.rows, x.spread | {dim})
    at = values.feature(x, dim)
    ref = x.ref
    if x.is_uniform(dim):
        ref = values.kept(x, x.rows, x.spread - {dim})
    return Value(values.add(ir.Slice(ref, at, start, stop, step)), shape, x.rows, x.spread - {dim})


def _slice(
    values: Values, x: Value, *, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Any, **params: Any
) -> Value:
    steps = strides or [1] * len(x.shape)
    for dim, (start, stop, step) in enumerate(zip(start_indices, limit_indices, steps, strict=True)):
        x = sliced(values, x, dim, int(start), int(stop), int(step))
    return x


def _split(values: Values, x: Value, *, sizes: Sequence[int], axis: int, **params: Any) -> list[Value]:
    ends = np.cumsum(sizes).tolist()
    return [sliced(values, x, axis, end - n, end) for end, n in zip(ends, sizes, strict=True)]


def _rev(values: Values, x: Value, *, dimensions: Sequence[int], **params: Any) -> Value:
    for dim in map(int, dimensions):
        if dim == x.rows:
            raise CannotSay("changes the order of rows")
        n = x.shape[dim]
        if n > _MOST_REVERSED:
            raise CannotSay(f"reverses {n} features, more than {_MOST_REVERSED}")
        if not x.is_uniform(dim):
            x = _concatenate(values, *(sliced(values, x, dim, i, i + 1) for i in reversed(range(n))), dimension=dim)
    return x


def _concatenate(values: Values, *xs: Value, dimension: int, **params: Any) -> Value:
    rows = values.rows_of(xs)
    if dimension == rows:
        raise CannotSay("joins rows")
    xs = tuple(x for x in xs if x.shape[dimension]) or xs[:1]
    if len(xs) == 1:
        return xs[0]
    rank = len(xs[0].shape)
    spread = frozenset(i for i in range(rank) if i not in (dimension, rows) and all(x.is_uniform(i) for x in xs))
    parts = tuple(values.kept(x, rows, spread) for x in xs)
    at = dimension - (rows is not None and rows < dimension)
    shape = list(xs[0].shape)
    shape[dimension] = sum(x.shape[dimension] for x in xs)
    return Value(values.add(ir.Concat(parts, at)), tuple(shape), rows, spread)


def _stack(values: Values, *xs: Value, axis: int, **params: object) -> Value:
    at = axis % (len(xs[0].shape) + 1)
    return _concatenate(values, *(_expand_dims(values, x, dimensions=[at]) for x in xs), dimension=at)


def _unstack(values: Values, x: Value, *, axis: int, **params: object) -> list[Value]:
    parts = (sliced(values, x, axis, i, i + 1) for i in range(x.shape[axis]))
    return [_squeeze(values, part, dimensions=[axis]) for part in parts]


def _pad(values: Values, x: Value, filling: Value, *, padding_config: Any, **params: Any) -> Value:
    for dim, config in enumerate(padding_config):
        low, high, inside = map(int, config)  # JAX computes some of them with NumPy
        between = inside if x.shape[dim] > 1 else 0
        if (low, high, between) == (0, 0, 0):
            continue
        if dim == x.rows:
            raise CannotSay("adds or takes away rows")
        if between:
            x = _spaced(values, x, filling, dim, between)
        x = sliced(values, x, dim, max(-low, 0), x.shape[dim] - max(-high, 0))
        low, high = max(low, 0), max(high, 0)
        if (low, high) != (0, 0):
            x = _padded(values, x, filling, dim, low, high)
    return x


def _spaced(values: Values, x: Value, filling: Value, dim: int, between: int) -> Value:
    """`between` numbers after each feature along `dim` but the last: the gradient of a slice with steps."""
    before, n, after = x.shape[:dim], x.shape[dim], x.shape[dim + 1 :]
    pairs = _padded(values, values.with_shape(x, (*before, n, 1, *after)), filling, dim + 1, 0, between)
    whole = n * (between + 1)
    return sliced(values, values.with_shape(pairs, (*before, whole, *after)), dim, 0, whole - between)


def _padded(values: Values, x: Value, filling: Value, dim: int, low: int, high: int) -> Value:
    node = values.build.nodes[filling.ref]
    if getattr(node, "value", None) != 0:
        raise CannotSay("pads with another number than 0")
    ref = values.kept(x, x.rows, x.spread - {dim})
    shape = (*x.shape[:dim], low + x.shape[dim] + high, *x.shape[dim + 1 :])
    return Value(values.add(ir.Pad(ref, values.feature(x, dim), low, high)), shape, x.rows, x.spread - {dim})


# ---------------------------------------------------------------- folds


def folded(values: Values, x: Value, fold: Fold, axes: Sequence[int]) -> Value:
    """`x` folded along dims. Along rows it is a total, of sums alone."""
    dtype = values.type(x.ref).dtype
    if dtype is DType.bool and fold in (Fold.sum, Fold.mul):
        raise CannotSay(f"folds bool by {fold.value}")
    axes = [int(a) for a in axes]
    if fold in (Fold.max, Fold.min) and any(x.shape[a] == 0 for a in axes):
        raise CannotSay(f"takes the {fold.value} of no features")
    repeated = math.prod(x.shape[a] for a in axes if x.is_uniform(a))
    within = [a for a in axes if a != x.rows]
    ref, rows = x.ref, x.rows
    if within:
        ref = values.add(ir.Reduce(ref, fold, tuple(values.feature(x, a) for a in within), False))
    if rows is not None and rows in axes:
        values.check_total()
        if fold is not Fold.sum:
            raise CannotSay(f"takes the {fold.value} of all rows")
        ref, rows = values.add(ir.Push(ref, values.add(ir.ToUnit(values.space(x))), Fold.sum)), None
    left = [i for i in range(len(x.shape)) if i not in axes]
    out = Value(
        ref, tuple(x.shape[i] for i in left), None if rows is None else left.index(rows),
        frozenset(left.index(i) for i in x.spread if i in left),
    )  # fmt: skip
    if repeated == 1 or fold in (Fold.max, Fold.min):
        return out
    number = values.number(repeated, dtype)
    return values.pointwise(Op.mul if fold is Fold.sum else Op.pow, out, number)


def _fold(fold: Fold) -> Rule:
    def rule(values: Values, x: Value, *, axes: Sequence[int], **params: Any) -> Value:
        return folded(values, x, fold, axes)

    return rule


SHAPES: Mapping[str, Rule] = {
    "broadcast_in_dim": _broadcast_in_dim, "reshape": _reshape, "squeeze": _squeeze, "expand_dims": _expand_dims,
    "transpose": _transpose, "slice": _slice, "rev": _rev, "concatenate": _concatenate, "stack": _stack, "pad": _pad,
    "reduce_and": _fold(Fold.min), "reduce_or": _fold(Fold.max),
    **{f"reduce_{fold.facts.jax}": _fold(fold) for fold in Fold},
}  # fmt: skip
SEVERAL: Mapping[str, Any] = {"split": _split, "unstack": _unstack}
"""Primitives with several results."""
