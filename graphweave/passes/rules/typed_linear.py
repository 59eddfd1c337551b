"""sum_k x[k] * pull(w, t)[k, j] -> the typed product of x and w; push(outer product, t) -> the typed gram.

Legal for sums. The matrix is then read where it lies instead of being copied for each row (Hector, section 2.3). The
user may have written bmm, matmul, einsum, or a sum of products. Matrices of fewer than `_MIN_ELEMENTS` elements are
left to the kernels around them, where they cost less than a call that stores its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphweave.core.lines import Location
from graphweave.core.types import UNIT, Fold
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import numel
from graphweave.passes.factors import (
    Factor,
    below_reshapes,
    multiplied,
    negated,
    product,
    shaped,
    value_type,
)
from graphweave.passes.rules.rule import Rule

_MIN_ELEMENTS = 64
"""A matrix must have this many elements for a typed product."""


def typed_linear(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """sum_k x[k] * pull(w, t)[k, j] -> matmul(x, w, t); push(x[i] * y[j], t) -> gram(x, y, t)"""
    match build.nodes[ref]:
        case ir.Reduce(x, Fold.sum, (dim,), _):
            return _matmul(build, ref, x, dim)
        case ir.Push(x, m, Fold.sum, 0) if isinstance(build.nodes[m], ir.MapOf):
            return _gram(build, ref, x, m)
        case _:
            return None


def _matmul(build: Builder, ref: ir.Ref, x: ir.Ref, dim: int) -> ir.Ref | None:
    t = value_type(build, x)
    if t.space == UNIT or not t.dtype.is_float or len(t.shape) not in (2, 3) or dim < len(t.shape) - 2:
        return None
    kept = 2 * len(t.shape) - 3 - dim  # the other one of the last two dims
    if numel(t.shape) < _MIN_ELEMENTS or min(t.shape[-2:]) < 2:
        return None
    p = product(build, x)
    for f in p.factors:
        others = [g for g in p.factors if g is not f]
        if f.inverse or f.shape != t.shape or any(g.shape[kept] != 1 for g in others):
            continue
        found = pulled_matrices(build, f, t.shape)
        if found is None:
            continue
        w, m = found
        loc = build.locs[ref]
        rank = len(t.shape)
        if dim == rank - 1:
            w = build.add(ir.Permute(w, (*range(rank - 2), rank - 1, rank - 2)), loc)
        rows = _rows(build, others, t, t.shape, kept, loc)
        out = build.add(ir.MatMul(rows, w, m), loc)
        return negated(build, shaped(build, out, value_type(build, ref).shape, loc), p.sign, loc)
    return None


def pulled_matrices(build: Builder, f: Factor, shape: Sequence[int]) -> tuple[ir.Ref, ir.Ref] | None:
    """(w, t) if `f` is pull(w, t), up to a transposition and reshapes; w is viewed with the features `shape`."""
    swap = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    node = build.nodes[f.ref]
    loc = build.locs[f.ref]
    if isinstance(node, ir.Permute) and node.perm == swap and value_type(build, f.ref).shape == tuple(shape):
        pull = build.nodes[below_reshapes(build, node.x)]
        before = tuple(shape[d] for d in swap)
        if isinstance(pull, ir.Pull) and isinstance(build.nodes[pull.map], ir.MapOf):
            w = _viewed(build, pull.x, before, loc)
            return None if w is None else (build.add(ir.Permute(w, swap), loc), pull.map)
        return None
    pull = build.nodes[below_reshapes(build, f.ref)]
    if isinstance(pull, ir.Pull) and isinstance(build.nodes[pull.map], ir.MapOf):
        w = _viewed(build, pull.x, tuple(shape), loc)
        return None if w is None else (w, pull.map)
    return None


def _viewed(build: Builder, w: ir.Ref, shape: tuple[int, ...], loc: Location) -> ir.Ref | None:
    own = value_type(build, w).shape
    if own == shape:
        return w
    return build.add(ir.Reshape(below_reshapes(build, w), shape), loc) if numel(own) == numel(shape) else None


def _gram(build: Builder, ref: ir.Ref, x: ir.Ref, m: ir.Ref) -> ir.Ref | None:
    if not value_type(build, x).dtype.is_float or not any(_has_types(build, n, m) for n in build.nodes):
        return None
    return _summed(build, x, m, build.locs[ref])


def _summed(build: Builder, x: ir.Ref, m: ir.Ref, loc: Location) -> ir.Ref | None:
    """push(x, m) as a gram, if `x` is an outer product up to reshapes and permutations; None otherwise."""
    found = _outer(build, x, m, loc)
    if found is not None:
        return found
    match build.nodes[x]:
        case ir.Reshape(inner, shape) if (found := _summed(build, inner, m, loc)) is not None:
            return shaped(build, found, shape, loc)
        case ir.Permute(inner, perm) if (found := _summed(build, inner, m, loc)) is not None:
            return build.add(ir.Permute(found, perm), loc)
        case _:
            return None


def _has_types(build: Builder, node: ir.Node, m: ir.Ref) -> bool:
    """Whether `node` is a typed product along `m`, or along another map into its rows: pairs of rows and types have a
    map of their own to the types."""
    match node:
        case ir.MatMul(map=int(types)):
            here, there = build.types[m], build.types[types]
            return isinstance(here, ir.MapType) and isinstance(there, ir.MapType) and here.cod == there.cod
        case _:
            return False


def _outer(build: Builder, x: ir.Ref, m: ir.Ref, loc: Location) -> ir.Ref | None:
    t = value_type(build, x)
    p = product(build, x)
    shape = p.shape
    if len(shape) not in (2, 3) or numel(shape) < _MIN_ELEMENTS or min(shape[-2:]) < 2:
        return None
    left = [f for f in p.factors if f.shape[-2] != 1]
    right = [f for f in p.factors if f.shape[-2] == 1]
    if any(f.shape[-1] != 1 for f in left) or not left or all(f.shape[-1] == 1 for f in right):
        return None
    x_rows = _rows(build, left, t, shape, len(shape) - 1, loc)
    y_rows = _rows(build, right, t, shape, len(shape) - 2, loc)
    return negated(build, build.add(ir.Gram(x_rows, y_rows, m), loc), p.sign, loc)


def _rows(
    build: Builder, factors: Sequence[Factor], t: ir.Type, shape: tuple[int, ...], drop: int, loc: Location
) -> ir.Ref:
    """The product of `factors`, all of which have size 1 along dim `drop` of `shape`, without that dim."""
    own = shape[:drop] + shape[drop + 1 :]
    factors = [replace(f, shape=f.shape[:drop] + f.shape[drop + 1 :]) for f in factors]
    return shaped(build, multiplied(build, factors, t.dtype, t.space, loc), own, loc)


RULE = Rule("typed-linear", "sum_k x[k] * pull(w, t)[k, j]", "matmul(x, w, t)", typed_linear)
