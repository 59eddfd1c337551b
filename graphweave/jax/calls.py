"""Nodes of message programs that no kernel computes, in jax.numpy, so that XLA computes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from graphweave.analysis.cones import type_of
from graphweave.core.errors import IRError
from graphweave.core.numbers import typed
from graphweave.core.types import UNIT, DType, Fold, Op, Space
from graphweave.ir.message import nodes as ir
from graphweave.jax.elementwise import DTYPE_OF

JAX_DTYPE: dict[DType, Any] = {dtype: jnp.dtype(name) for name, dtype in DTYPE_OF.items()}
"""JAX's dtype of each element type of the IR."""


def evaluate(program: ir.Program, ref: ir.Ref, given: Callable[[ir.Ref], Array], rows: Mapping[Space, int]) -> Any:
    """The value of a node; `given(ref)` are those of its operands, and of maps their index, None for `ToUnit`.

    IRError for a node that JAX cannot compute, which is a bug: no program of this frontend has one.
    """
    node, t = program.nodes[ref], program.types[ref]
    match node:
        case ir.Const(value, t):
            return jnp.full(_sizes(t, rows), value, JAX_DTYPE[t.dtype])
        case ir.MapOf(index):
            return given(index)
        case ir.ToUnit():
            return None
        case ir.Pull(x, m):
            return _pull(given(x), program, m, given(m), rows)
        case ir.Push(x, m):
            return _push(node, given(x), program, given(m), rows)
        case ir.Pointwise(op, args):
            ts = [type_of(program, a) for a in args]
            rank = max(len(u.shape) for u in ts)
            return _function(op)(*(_with_rank(given(a), u, rank) for a, u in zip(args, ts, strict=True)))
        case ir.Concat(xs, dim):
            assert isinstance(t, ir.Type)
            parts = [_on(given(x), type_of(program, x), t.space, rows) for x in xs]
            return jnp.concatenate(parts, dim + _lead(t.space))
        case ir.Join(xs):
            return jnp.concatenate([_with_rows(given(x), type_of(program, x)) for x in xs])
        case ir.Part(x, of, at):
            counts = [1 if s == UNIT else rows[s] for s in of]
            part = jax.lax.slice_in_dim(given(x), sum(counts[:at]), sum(counts[: at + 1]))
            return part[0] if of[at] == UNIT else part
        case ir.MatMul(x, w, None):
            return _product(given(x), given(w))
        case ir.AddMatMul(a, x, w, None):
            return given(a) + _product(given(x), given(w))
        case ir.Gram(x, y, None):
            return jnp.einsum("r...i,r...j->...ij", given(x), given(y), precision="highest")
        case _:
            return _reshaped(node, program, given, rows)


def _function(op: Op) -> Callable[..., Any]:
    if not op.facts.jax:
        raise IRError(f"{op.value} has no meaning in JAX. Report this program.")
    found: Callable[..., Any] = attrgetter(op.facts.jax[0])(jax)
    return found


def _reshaped(node: ir.Node, program: ir.Program, given: Callable[[ir.Ref], Array], rows: Mapping[Space, int]) -> Array:
    if not isinstance(node, ir.Cast | ir.Reduce | ir.Reshape | ir.Broadcast | ir.Permute | ir.Slice | ir.Pad):
        raise IRError(f"{node!r} has no meaning in JAX. Report this program.")
    x, t = given(node.x), type_of(program, node.x)
    lead = _lead(t.space)
    match node:
        case ir.Cast(_, dtype):
            return x.astype(JAX_DTYPE[dtype])
        case ir.Reduce(_, fold, dims, keepdim):
            return getattr(jnp, fold.facts.jax)(x, axis=tuple(d + lead for d in dims), keepdims=keepdim).astype(
                JAX_DTYPE[t.dtype]
            )
        case ir.Reshape(_, shape):
            return x.reshape(_sizes(ir.Type(t.space, shape, t.dtype), rows))
        case ir.Broadcast(_, shape):
            return jnp.broadcast_to(_with_rank(x, t, len(shape)), _sizes(ir.Type(t.space, shape, t.dtype), rows))
        case ir.Permute(_, perm):
            return jnp.transpose(x, (*range(lead), *(p + lead for p in perm)))
        case ir.Slice(_, dim, start, stop, step):
            return jax.lax.slice_in_dim(x, start, stop, step, dim + lead)
        case ir.Pad(_, dim, before, after):
            return jnp.pad(x, [(before, after) if i == dim + lead else (0, 0) for i in range(x.ndim)])


def _pull(x: Array, program: ir.Program, m: ir.Ref, index: Array, rows: Mapping[Space, int]) -> Array:
    t = program.types[m]
    assert not isinstance(t, ir.Type)
    if index is None:
        return x if t.dom == UNIT else jnp.broadcast_to(x, (rows[t.dom], *x.shape))  # type: ignore[union-attr]
    return x[index]


def _push(node: ir.Push, x: Array, program: ir.Program, index: Array, rows: Mapping[Space, int]) -> Array:
    assert isinstance(node.fold, Fold), "JAX's functions have no folds of one's own"
    t, m = type_of(program, node.x), program.types[node.map]
    if index is None:
        if x.shape[0] == 0:
            return jnp.full(t.shape, typed(node.empty, t.dtype), JAX_DTYPE[t.dtype])
        return getattr(jnp, node.fold.facts.jax)(x, axis=0).astype(JAX_DTYPE[t.dtype])
    count = rows[m.cod]  # type: ignore[union-attr]
    if node.is_plain_sum:
        return jax.ops.segment_sum(x, index, count)
    out = getattr(jax.ops, f"segment_{node.fold.facts.jax}")(x, index, count)
    some = jax.ops.segment_sum(jnp.ones(index.shape, jnp.int32), index, count) > 0
    return jnp.where(some.reshape((-1, *[1] * (x.ndim - 1))), out, jnp.asarray(typed(node.empty, t.dtype), out.dtype))


def _product(x: Array, w: Array) -> Array:
    """Rows [..., B, K] times [B, K, J], or [..., K] times [K, J]."""
    return jnp.einsum("...bk,bkj->...bj" if w.ndim == 3 else "...k,kj->...j", x, w, precision="highest")


def _on(x: Array, t: ir.Type, space: Space, rows: Mapping[Space, int]) -> Array:
    return x if t.space == space else jnp.broadcast_to(x, (rows[space], *t.shape))


def _with_rows(x: Array, t: ir.Type) -> Array:
    return x[None] if t.space == UNIT else x


def _sizes(t: ir.Type, rows: Mapping[Space, int]) -> tuple[int, ...]:
    return t.shape if t.space == UNIT else (rows[t.space], *t.shape)


def _lead(space: Space) -> int:
    return 0 if space == UNIT else 1


def _with_rank(x: Array, t: ir.Type, rank: int) -> Array:
    """`x` with feature dims of size 1 in front of the others, so that values with rows broadcast as their features."""
    if t.space == UNIT:
        return x
    return x.reshape((x.shape[0], *[1] * (rank - len(t.shape)), *t.shape))
