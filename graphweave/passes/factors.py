"""Reads values of edges as products of factors, and finds the factors that are the same for all edges of a row.

`x[16] * reshape(a / pull(d, m))[1]` has the factors x, a and 1/pull(d, m), each with the shape in which it takes part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from graphweave.core.lines import Location
from graphweave.core.types import UNIT, DType, Op, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder, operands, with_operands
from graphweave.ir.message.infer import numel

_ROW_WISE = (ir.Pointwise, ir.Cast, ir.Reduce, ir.Reshape, ir.Broadcast, ir.Permute, ir.Slice, ir.Pad, ir.Concat)


@dataclass(frozen=True, slots=True)
class Factor:
    """The value `ref`, viewed as `shape` (its own shape up to dims of size 1); a divisor if `inverse`."""

    ref: ir.Ref
    shape: tuple[int, ...]
    inverse: bool = False


@dataclass(frozen=True, slots=True)
class Product:
    """`sign` times the factors. A factor's shape has as many dims as `shape`, each of full size or of size 1."""

    sign: int
    factors: tuple[Factor, ...]
    shape: tuple[int, ...]


def value_type(build: Builder, ref: ir.Ref) -> ir.Type:
    t = build.types[ref]
    assert isinstance(t, ir.Type)
    return t


def product(build: Builder, ref: ir.Ref) -> Product:
    """`ref` as a product, through mul, div, neg, broadcasts and reshapes that add or drop dims of size 1.

    A value of more than `_MAX_FACTORS` factors, or below `_MAX_DEPTH` nested operations, stays one factor.
    """
    return _product(build, ref, {}, _MAX_DEPTH)


_MAX_FACTORS = 32
"""A product is taken apart into at most this many factors."""
_MAX_DEPTH = 64
"""A product is taken apart through at most this many nested operations."""


def _product(build: Builder, ref: ir.Ref, done: dict[ir.Ref, Product], depth: int) -> Product:
    if ref not in done:
        t = value_type(build, ref)
        found = _opened(build, ref, t, done, depth) if depth else None
        small = found is not None and len(found.factors) <= _MAX_FACTORS
        done[ref] = found if found is not None and small else Product(1, (Factor(ref, t.shape),), t.shape)
    return done[ref]


def _opened(build: Builder, ref: ir.Ref, t: ir.Type, done: dict[ir.Ref, Product], depth: int) -> Product | None:
    match build.nodes[ref]:
        case ir.Pointwise(Op.mul | Op.div as op, args):
            p, q = (_product(build, a, done, depth - 1) for a in args)
            second = (replace(f, inverse=f.inverse != (op is Op.div)) for f in _padded(q, t.shape))
            return Product(p.sign * q.sign, (*_padded(p, t.shape), *second), t.shape)
        case ir.Pointwise(Op.neg, (a,)):
            p = _product(build, a, done, depth - 1)
            return Product(-p.sign, p.factors, t.shape)
        case ir.Const(value) if value == 1:
            return Product(1, (), t.shape)
        case ir.Broadcast(x, shape):
            p = _product(build, x, done, depth - 1)
            return Product(p.sign, _padded(p, shape), shape)
        case ir.Reshape(x, shape) if same_but_ones(value_type(build, x).shape, shape):
            p = _product(build, x, done, depth - 1)
            return Product(p.sign, tuple(realigned(f, p.shape, shape) for f in p.factors), shape)
        case _:
            return None


def same_but_ones(a: Sequence[int], b: Sequence[int]) -> bool:
    return [n for n in a if n != 1] == [n for n in b if n != 1]


def realigned(f: Factor, old: Sequence[int], new: Sequence[int]) -> Factor:
    """The factor `f` of a product of shape `old`, for that product viewed as `new`, which differs in dims of size 1."""
    full = iter([n for n, whole in zip(f.shape, old, strict=True) if whole != 1])
    return replace(f, shape=tuple(1 if whole == 1 else next(full) for whole in new))


def _padded(p: Product, shape: tuple[int, ...]) -> tuple[Factor, ...]:
    ones = (1,) * (len(shape) - len(p.shape))
    return tuple(replace(f, shape=(*ones, *f.shape)) for f in p.factors)


def multiplied(build: Builder, factors: Iterable[Factor], dtype: DType, space: Space, loc: Location) -> ir.Ref:
    """The product of `factors`, narrow ones first; their order in `factors` does not matter.

    A divisor narrower than the whole product becomes a reciprocal: one division a row instead of one an element. No
    factors give the constant 1 on `space`; factors that are all shared data are multiplied with it.
    """
    factors = list(factors)
    widest = max((numel(f.shape) for f in factors), default=0)
    total: ir.Ref | None = None
    for f in sorted(factors, key=lambda f: (numel(f.shape), f.inverse, f.ref)):
        value = viewed(build, f, loc)
        if total is None or (f.inverse and numel(f.shape) < widest):
            value = _inverse(build, value, dtype, loc) if f.inverse else value
            total = value if total is None else build.add(ir.Pointwise(Op.mul, (total, value)), loc)
        else:
            total = build.add(ir.Pointwise(Op.div if f.inverse else Op.mul, (total, value)), loc)
    if total is not None and (space == UNIT or value_type(build, total).space != UNIT):
        return total
    one = build.add(ir.Const(1.0, ir.Type(space, (), dtype)), loc)
    return one if total is None else build.add(ir.Pointwise(Op.mul, (one, total)), loc)


def viewed(build: Builder, f: Factor, loc: Location) -> ir.Ref:
    own = value_type(build, f.ref).shape
    if (1,) * (len(f.shape) - len(own)) + own == f.shape:
        return f.ref
    while len(f.shape) > 0 and f.shape[0] == 1:
        f = replace(f, shape=f.shape[1:])
    return build.add(ir.Reshape(below_reshapes(build, f.ref), f.shape), loc)


def below_reshapes(build: Builder, ref: ir.Ref) -> ir.Ref:
    while isinstance(node := build.nodes[ref], ir.Reshape):
        ref = node.x
    return ref


def _inverse(build: Builder, ref: ir.Ref, dtype: DType, loc: Location) -> ir.Ref:
    return build.add(ir.Pointwise(Op.div, (build.add(ir.Const(1.0, ir.Type(UNIT, (), dtype)), loc), ref)), loc)


def negated(build: Builder, ref: ir.Ref, sign: int, loc: Location) -> ir.Ref:
    return ref if sign > 0 else build.add(ir.Pointwise(Op.neg, (ref,)), loc)


def shaped(build: Builder, ref: ir.Ref, shape: tuple[int, ...], loc: Location) -> ir.Ref:
    """`ref` with exactly this shape: reshaped if it has as many elements, else broadcast."""
    own = value_type(build, ref).shape
    if own == shape:
        return ref
    if numel(own) == numel(shape):
        return build.add(ir.Reshape(below_reshapes(build, ref), shape), loc)
    return build.add(ir.Broadcast(ref, shape), loc)


def lifted(build: Builder, ref: ir.Ref, m: ir.Ref) -> ir.Ref | None:
    """The value on the codomain of `m` whose pull along `m` is `ref`; None where there is none.

    It exists where `ref` is row-wise work, of at most `_MAX_LIFTED` nodes, on shared data and values pulled along `m`.
    """
    if not _can_lift(build, ref, m, set()):
        return None
    return _lift(build, ref, m, {})


_MAX_LIFTED = 64
"""Row-wise work is lifted from edges to rows if it has at most this many nodes."""


def _can_lift(build: Builder, ref: ir.Ref, m: ir.Ref, seen: set[ir.Ref]) -> bool:
    if ref in seen:
        return True
    seen.add(ref)
    t = build.types[ref]
    if not isinstance(t, ir.Type) or len(seen) > _MAX_LIFTED:
        return False
    if t.space == UNIT:
        return True
    node = build.nodes[ref]
    if isinstance(node, ir.Pull):
        return node.map == m
    if isinstance(node, ir.Const):
        return True
    return isinstance(node, _ROW_WISE) and all(_can_lift(build, r, m, seen) for r in operands(node))


def _lift(build: Builder, ref: ir.Ref, m: ir.Ref, done: dict[ir.Ref, ir.Ref]) -> ir.Ref:
    if ref in done:
        return done[ref]
    node, t, mt = build.nodes[ref], value_type(build, ref), build.types[m]
    assert isinstance(mt, ir.MapType)
    if t.space == UNIT:
        out = ref
    elif isinstance(node, ir.Pull):
        out = node.x
    elif isinstance(node, ir.Const):
        out = build.add(ir.Const(node.value, replace(t, space=mt.cod)), build.locs[ref])
    else:
        out = build.add(with_operands(node, lambda r: _lift(build, r, m, done)), build.locs[ref])
    done[ref] = out
    return out
