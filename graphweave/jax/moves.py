"""Pull, push and look-ups by type as primitives of JAX, so that JAX differentiates programs that have them.

They are traced and differentiated, never run: a trace that has them is imported (`importer.py`), and its kernels run.
So neither pull nor push knows the index along which it moves; it names the end of the edges, "src" or "dst". A look-up
has the types of the edges, or takes them as an operand where JAX traces them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching
from torch import Tensor

from graphweave.core.errors import DataError, DerivativeError
from graphweave.core.types import Fold

End: TypeAlias = str
"""The name of a map from edges to nodes: "src" or "dst", with a number behind it where a program has several relations,
whose edges are then "edge" with that number."""

pull_p = Primitive("graphweave_pull")
push_p = Primitive("graphweave_push")
fold_p = Primitive("graphweave_fold")
"""Pushes whose fold is no sum, and which are therefore not linear."""

lookup_p = Primitive("graphweave_lookup")
collect_p = Primitive("graphweave_collect")


@dataclass(frozen=True, eq=False)
class Types:
    """The type of each of `size` rows, `index` [size], of `count` types. Types that JAX traces are an operand of each
    look-up, and `index` is None. `rows` is the name of rows that are known. Equal only to itself."""

    index: Tensor | None
    size: int
    count: int
    rows: str = "edge"


def edges_of(end: End) -> str:
    """The name of the edges of which `end` is one end."""
    return f"edge{end[3:]}"


def pull(x: Array, end: End, edges: int) -> Array:
    """out[e] = x[end[e]]. [rows, ...] -> [edges, ...]."""
    return pull_p.bind(x, end=end, edges=edges)


def push(x: Array, end: End, rows: int, fold: Fold = Fold.sum) -> Array:
    """out[v] = fold of x[e] over the edges e with end[e] = v; of no edges 0, for products 1. [edges, ...] -> [rows,
    ...]."""
    if fold is Fold.sum:
        return push_p.bind(x, end=end, rows=rows)
    return fold_p.bind(x, end=end, rows=rows, fold=fold)


def lookup(table: Array, types: Types, *index: Array) -> Array:
    """out[e] = table[types[e]]. [types, ...] -> [edges, ...]. With `index`, the types are traced."""
    # Each look-up has a variable of its own in the trace, which may become an argument (`tables.py`).
    return lookup_p.bind(jax.lax.optimization_barrier(table), *index, types=types)


def count(end: End, edges: int, rows: int, dtype: Any) -> Array:
    """The number of edges of each row, at least 1, [rows]."""
    return jnp.maximum(push(jnp.ones((edges,), dtype), end, rows), jnp.ones((), dtype))


@pull_p.def_abstract_eval
def _pulled(x: ShapedArray, *, end: End, edges: int) -> ShapedArray:
    return ShapedArray((edges, *x.shape[1:]), x.dtype)


@push_p.def_abstract_eval
def _pushed(x: ShapedArray, *, end: End, rows: int) -> ShapedArray:
    return ShapedArray((rows, *x.shape[1:]), x.dtype)


@fold_p.def_abstract_eval
def _folded(x: ShapedArray, *, end: End, rows: int, fold: Fold) -> ShapedArray:
    return ShapedArray((rows, *x.shape[1:]), x.dtype)


@lookup_p.def_abstract_eval
def _looked_up(table: ShapedArray, *index: ShapedArray, types: Types) -> ShapedArray:
    return ShapedArray((types.size, *table.shape[1:]), table.dtype)


@collect_p.def_abstract_eval
def _collected(x: ShapedArray, *index: ShapedArray, types: Types) -> ShapedArray:
    """out[t] = sum of x[e] over the edges e of type t. [edges, ...] -> [types, ...]."""
    return ShapedArray((types.count, *x.shape[1:]), x.dtype)


def _batched(primitive: Primitive) -> Array:
    """The rule of `vmap`: the batch becomes the first dim of features."""

    def rule(operands: Any, dims: Any, **params: Any) -> Array:
        if any(dim is not batching.not_mapped for dim in dims[1:]):
            raise DataError(
                "expected the same types of edges for all elements of a batch (got types that jax.vmap maps over)."
                " Call jax.lax.map instead, or join the graphs into one."
            )
        return primitive.bind(jnp.moveaxis(operands[0], dims[0], 1), *operands[1:], **params), 1

    return rule


for _primitive in (pull_p, push_p, fold_p, lookup_p, collect_p):
    batching.primitive_batchers[_primitive] = _batched(_primitive)


def _linear_in_rows(primitive: Primitive, transposed: Callable[..., Array]) -> None:
    """`primitive` is linear in its first operand; any other is integers."""

    def jvp(primals: Sequence[Array], tangents: Sequence[Array], *, types: Types) -> tuple[Array, Array]:
        (x, *index), t = primals, tangents[0]
        out = primitive.bind(x, *index, types=types)
        is_zero = isinstance(t, ad.Zero)
        return out, ad.Zero.from_primal_value(out) if is_zero else primitive.bind(t, *index, types=types)

    def transpose(g: Array, x: ad.UndefinedPrimal, *index: Array, types: Types) -> list[Array | None]:
        of_x = ad.Zero(x.aval) if isinstance(g, ad.Zero) else transposed(g, *index, types=types)
        return [of_x, *[None] * len(index)]

    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose


_linear_in_rows(lookup_p, collect_p.bind)
_linear_in_rows(collect_p, lambda g, *index, types: lookup(g, types, *index))
ad.deflinear2(pull_p, lambda g, x, *, end, edges: [push(g, end, x.aval.shape[0])])
ad.deflinear2(push_p, lambda g, x, *, end, rows: [pull(g, end, x.aval.shape[0])])


def _fold_jvp(primals: Any, tangents: Any, *, end: End, rows: int, fold: Fold) -> Array:
    ((x,), (t,)) = primals, tangents
    out = push(x, end, rows, fold)
    if isinstance(t, ad.Zero):
        return out, ad.Zero.from_primal_value(out)
    if fold is Fold.mul:
        return out, jax.jvp(lambda y: _product(y, end, rows), (x,), (t,))[1]
    # Edges that reach the extreme share its gradient evenly, as in PyTorch's scatter_reduce and JAX's segment_max.
    zero = jnp.zeros((), x.dtype)
    reaches = x == pull(out, end, x.shape[0])
    shares = push(jnp.where(reaches, jnp.ones((), x.dtype), zero), end, rows)
    return out, push(jnp.where(reaches, t, zero), end, rows) / jnp.maximum(shares, jnp.ones((), x.dtype))


ad.primitive_jvps[fold_p] = _fold_jvp


def _product(x: Array, end: End, rows: int) -> Array:
    """The product over the edges of each row, with first and second derivatives also where edges are 0. It is the
    product of the edges that are not 0 times that of the others, which is computed as a polynomial of two power
    sums."""
    one, zero = jnp.ones((), x.dtype), jnp.zeros((), x.dtype)
    is_zero = x == 0
    zeros = push(jnp.where(is_zero, one, zero), end, rows)
    z = jnp.where(is_zero, x, zero)
    first, second = push(z, end, rows), push(z * z, end, rows)
    of_two = (first * first - second) * jnp.asarray(0.5, x.dtype)
    of_more = push(_vanishing(z, 2), end, rows)
    of_zeros = jnp.where(zeros == 0, one, jnp.where(zeros == 1, first, jnp.where(zeros == 2, of_two, of_more)))
    return _product_of_nonzero(jnp.where(is_zero, one, x), end, rows) * of_zeros


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _product_of_nonzero(x: Array, end: End, rows: int) -> Array:
    return push(x, end, rows, Fold.mul)


@_product_of_nonzero.defjvp
def _product_of_nonzero_jvp(end: End, rows: int, primals: Any, tangents: Any) -> Array:
    out = _product_of_nonzero(primals[0], end, rows)
    return out, out * push(tangents[0] / primals[0], end, rows)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _vanishing(x: Array, orders: int) -> Array:
    """0, with derivatives 0 up to `orders`: a product of more than `orders` numbers that all are 0."""
    return jnp.zeros_like(x)


@_vanishing.defjvp
def _vanishing_jvp(orders: int, primals: Any, tangents: Any) -> Array:
    if orders == 0:
        raise DerivativeError(
            "the third derivative of reduce='prod' is not defined (got a gradient of its second). Write the product as"
            " exp of a sum of logarithms, where no message is 0."
        )
    return jnp.zeros_like(primals[0]), tangents[0] * _vanishing(primals[0], orders - 1)
