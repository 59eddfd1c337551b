"""Pull and push as primitives of JAX, so that JAX differentiates programs that have them.

They are traced and differentiated, never run: a trace that has them is imported (`importer.py`), and its kernels run.
So neither of them knows the index along which it moves; it names the end of the edges, "src" or "dst".
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad

from graphweave.core.errors import DerivativeError
from graphweave.core.types import Fold

End: TypeAlias = Literal["src", "dst"]

pull_p = Primitive("graphweave_pull")
push_p = Primitive("graphweave_push")
fold_p = Primitive("graphweave_fold")
"""Pushes whose fold is no sum, and which are therefore not linear."""


def pull(x: Any, end: End, edges: int) -> Any:
    """out[e] = x[end[e]]. [rows, ...] -> [edges, ...]."""
    return pull_p.bind(x, end=end, edges=edges)


def push(x: Any, end: End, rows: int, fold: Fold = Fold.sum) -> Any:
    """out[v] = fold of x[e] over the edges e with end[e] = v; of no edges 0, for products 1. [edges, ...] -> [rows,
    ...]."""
    if fold is Fold.sum:
        return push_p.bind(x, end=end, rows=rows)
    return fold_p.bind(x, end=end, rows=rows, fold=fold)


def count(end: End, edges: int, rows: int, dtype: Any) -> Any:
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


ad.deflinear2(pull_p, lambda g, x, *, end, edges: [push(g, end, x.aval.shape[0])])
ad.deflinear2(push_p, lambda g, x, *, end, rows: [pull(g, end, x.aval.shape[0])])


def _fold_jvp(primals: Any, tangents: Any, *, end: End, rows: int, fold: Fold) -> Any:
    ((x,), (t,)) = primals, tangents
    out = push(x, end, rows, fold)
    if isinstance(t, ad.Zero):
        return out, ad.Zero.from_primal_value(out)
    if fold is Fold.mul:
        return out, push(t * _products_of_others(x, out, end, rows), end, rows)
    # Edges that reach the extreme share its gradient evenly, as in PyTorch's scatter_reduce and JAX's segment_max.
    zero = jnp.zeros((), x.dtype)
    reaches = x == pull(out, end, x.shape[0])
    shares = push(jnp.where(reaches, jnp.ones((), x.dtype), zero), end, rows)
    return out, push(jnp.where(reaches, t, zero), end, rows) / jnp.maximum(shares, jnp.ones((), x.dtype))


ad.primitive_jvps[fold_p] = _fold_jvp


def _products_of_others(x: Any, out: Any, end: End, rows: int) -> Any:
    """For each edge the product over the other edges of its row; right where edges are 0, too."""

    @jax.custom_jvp
    def others(x: Any, out: Any) -> Any:
        edges, one, zero = x.shape[0], jnp.ones((), x.dtype), jnp.zeros((), x.dtype)
        kept = jnp.where(x == 0, one, x)
        zeros = pull(push(jnp.where(x == 0, one, zero), end, rows), end, edges)
        of_kept = pull(push(kept, end, rows, Fold.mul), end, edges)
        alone = jnp.where((zeros == 1) & (x == 0), of_kept, zero)
        return jnp.where(zeros == 0, pull(out, end, edges) / kept, alone)

    @others.defjvp
    def refuse(primals: Any, tangents: Any) -> Any:
        raise DerivativeError(
            "the gradient of the gradient of reduce='prod' is not defined. Write the product as exp of a sum of"
            " logarithms, where no message is 0."
        )

    return others(x, out)
