"""JAX's dot_general as products of rows with shared matrices, grams over rows, or products and sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphweave.core.types import UNIT, Fold, Op
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import Gram, MatMul
from graphweave.jax.elementwise import cast, dtype_of
from graphweave.jax.shapes import folded
from graphweave.jax.values import CannotSay, Value, Values


def dot_general(
    values: Values, x: Value, y: Value, *, dimension_numbers: Any, preferred_element_type: Any = None, **params: Any
) -> Value:
    """out[batch, free of x, free of y] = sum over the contracted dims of x y."""
    (contracted, batch) = dimension_numbers
    dims = _Dims(*([int(d) for d in side] for side in (*contracted, *batch)))
    if preferred_element_type is not None:
        x, y = (cast(values, v, dtype_of(preferred_element_type)) for v in (x, y))
    found = _product(values, x, y, dims) or _gram(values, x, y, dims)
    return found or _elementwise(values, x, y, dims)


class _Dims:
    """Contracted and batch dims of both operands, pair by pair."""

    def __init__(self, of_x: list[int], of_y: list[int], batch_x: list[int], batch_y: list[int]) -> None:
        self.of_x, self.of_y, self.batch_x, self.batch_y = of_x, of_y, batch_x, batch_y

    def swapped(self) -> _Dims:
        return _Dims(self.of_y, self.of_x, self.batch_y, self.batch_x)

    def free(self, x: Value, of_y: bool = False) -> list[int]:
        used = [*self.of_y, *self.batch_y] if of_y else [*self.of_x, *self.batch_x]
        return [i for i in range(len(x.shape)) if i not in used]


def _product(values: Values, x: Value, y: Value, dims: _Dims) -> Value | None:
    """Rows times a matrix that all share; None where neither operand is such rows."""
    if x.rows is not None and y.rows is None:
        rows, w, d, first = x, y, dims, True
    elif y.rows is not None and x.rows is None:
        rows, w, d, first = y, x, dims.swapped(), False
    else:
        return None
    assert rows.rows is not None
    free = d.free(rows)
    if not d.of_x or rows.rows not in free or not values.type(rows.ref).dtype.is_float:
        return None
    if any(rows.is_uniform(i) and rows.shape[i] > 1 for i in [*free, *d.of_x]):
        return None
    more = [i for i in free if i != rows.rows]  # each of their features is a block that has the same matrix
    made = values.transposed(rows, [rows.rows, *more, *d.batch_x, *d.of_x])
    wide = values.transposed(w, [*d.batch_y, *d.of_y, *d.free(w, of_y=True)])
    repeats, batch = (tuple(rows.shape[i] for i in dims) for dims in (more, d.batch_x))
    n, b = numel(repeats), numel(batch)
    k = numel(tuple(rows.shape[i] for i in d.of_x))
    tail = tuple(w.shape[i] for i in d.free(w, of_y=True))
    lead = (n * b,) if more or d.batch_x else ()
    matrix = values.reshaped(values.kept(wide, None), (*((b,) if lead else ()), k, numel(tail)))
    if more:
        matrix = values.broadcast(values.reshaped(matrix, (1, b, k, numel(tail))), (n, b, k, numel(tail)))
        matrix = values.reshaped(matrix, (*lead, k, numel(tail)))
    ref = values.add(MatMul(values.reshaped(values.kept(made, 0), (*lead, k)), matrix))
    ref = values.reshaped(ref, (*repeats, *batch, *tail))
    out = Value(ref, (rows.shape[rows.rows], *repeats, *batch, *tail), 0)
    at = {dim: i for i, dim in enumerate([rows.rows, *more, *d.batch_x])}  # where the dims of `rows` are in `out`
    free_dims, tail_dims = [at[i] for i in free], [*range(len(at), len(at) + len(tail))]
    order = [*(at[i] for i in d.batch_x), *(free_dims + tail_dims if first else tail_dims + free_dims)]
    return values.transposed(out, order)


def _gram(values: Values, x: Value, y: Value, dims: _Dims) -> Value | None:
    """A sum over rows of products of features; None where rows are not the only contracted dim of both."""
    if x.rows is None or y.rows is None or dims.of_x != [x.rows] or dims.of_y != [y.rows]:
        return None
    if values.space(x) != values.space(y) or not values.type(x.ref).dtype.is_float:
        return None
    values.check_total()
    free_x, free_y = dims.free(x), dims.free(y, of_y=True)
    batch = tuple(x.shape[i] for i in dims.batch_x)
    heads, tails = (tuple(v.shape[i] for i in free) for v, free in ((x, free_x), (y, free_y)))
    lead = () if not batch else (numel(batch),)
    first = values.kept(values.transposed(x, [x.rows, *dims.batch_x, *free_x]), 0)
    second = values.kept(values.transposed(y, [y.rows, *dims.batch_y, *free_y]), 0)
    ref = values.add(
        Gram(values.reshaped(first, (*lead, numel(heads))), values.reshaped(second, (*lead, numel(tails))))
    )
    shape = (*batch, *heads, *tails)
    return Value(values.reshaped(ref, shape), shape)


def _elementwise(values: Values, x: Value, y: Value, dims: _Dims) -> Value:
    """Any other product: elements are multiplied, then summed. Rows may be a batch dim of both operands, or of one
    while they repeat in the other."""
    free_x, free_y = dims.free(x), dims.free(y, of_y=True)
    if x.rows in free_x and y.rows in free_y and values.space(x) != UNIT:
        raise CannotSay("multiplies rows with all other rows")
    first = values.transposed(x, [*dims.batch_x, *free_x, *dims.of_x])
    second = values.transposed(y, [*dims.batch_y, *free_y, *dims.of_y])
    n, a, b, k = len(dims.batch_x), len(free_x), len(free_y), len(dims.of_x)
    sizes = (*first.shape[: n + a], *second.shape[n : n + b], *first.shape[n + a :])
    wide = values.with_dims(first, sizes, [*range(n + a), *range(n + a + b, n + a + b + k)])
    other = values.with_dims(second, sizes, [*range(n), *range(n + a, n + a + b + k)])
    product = values.pointwise(Op.mul, wide, other)
    return folded(values, product, Fold.sum, _span(n + a + b, k)) if k else product


def _span(start: int, count: int) -> Sequence[int]:
    return range(start, start + count)
