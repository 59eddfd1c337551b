"""push(pull(b, m) * x, m) -> b * push(x, m), and the same for division, signs and shared data.

Legal for sums: a factor that all edges of a row share leaves the row's loop. A row without edges must stay 0: where `b`
is not known to be finite there (and not 0, if it is a divisor), the row's degree decides between the result and 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from graphweave.core.lines import Location
from graphweave.core.numbers import Number, rounded
from graphweave.core.types import UNIT, DType, Fold, Op
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder, operands
from graphweave.passes.factors import Factor, lifted, multiplied, negated, product, shaped, value_type
from graphweave.passes.rules.rule import Rule


def factor(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """push(pull(b, m) * x, m) -> b * push(x, m)"""
    push = build.nodes[ref]
    if not is_edge_sum(build, push):
        return None
    assert isinstance(push, ir.Push)
    p = product(build, push.x)
    local: list[Factor] = []
    rest: list[Factor] = []
    for f in p.factors:
        above = lifted(build, f.ref, push.map)
        if above is None:
            rest.append(f)
        else:
            local.append(Factor(above, f.shape, f.inverse))
    if not local:
        return None
    loc, t = build.locs[ref], value_type(build, ref)
    inner = multiplied(build, rest, t.dtype, value_type(build, push.x).space, loc)
    pushed = build.add(ir.Push(inner, push.map, Fold.sum), loc)
    own = value_type(build, pushed).shape
    pushed_factor = Factor(pushed, (1,) * (len(p.shape) - len(own)) + own)
    out = multiplied(build, [pushed_factor, *local], t.dtype, t.space, loc)
    out = negated(build, out, p.sign, loc)
    if not all(is_harmless(build, f, push.map) for f in local):
        out = where_edges(build, out, push.map, t.dtype, loc)
    return shaped(build, out, t.shape, loc)


def is_edge_sum(build: Builder, push: object) -> bool:
    """Whether this is a push that sums floats, other than a constant, along a map into rows (not into unit)."""
    if not isinstance(push, ir.Push) or not push.is_plain_sum:
        return False
    if not isinstance(build.nodes[push.map], ir.MapOf) or isinstance(build.nodes[push.x], ir.Const):
        return False
    return value_type(build, push.x).dtype.is_float


def where_edges(build: Builder, value: ir.Ref, m: ir.Ref, dtype: DType, loc: Location) -> ir.Ref:
    """`value` in rows to which `m` sends edges, 0 in the others."""
    mt = build.types[m]
    assert isinstance(mt, ir.MapType)
    one = build.add(ir.Const(1.0, ir.Type(mt.dom, (), dtype)), loc)
    zero = build.add(ir.Const(0.0, ir.Type(UNIT, (), dtype)), loc)
    some = build.add(ir.Pointwise(Op.gt, (build.add(ir.Push(one, m, Fold.sum), loc), zero)), loc)
    return build.add(ir.Pointwise(Op.where, (some, value, zero)), loc)


def is_harmless(build: Builder, f: Factor, m: ir.Ref) -> bool:
    """Whether factor `f` is known to keep 0 at 0 in rows to which `m` sends no edge: it is finite and no divisor 0."""
    value = at_empty_rows(build, f.ref, m)
    if value is None or not math.isfinite(value):
        return False
    return not f.inverse or (value != 0 and math.isfinite(_rounded_to(1 / value, value_type(build, f.ref).dtype)))


def at_empty_rows(build: Builder, ref: ir.Ref, m: ir.Ref) -> float | None:
    """The number to which all elements of `ref` are equal in rows to which `m` sends no edge; None if not known."""
    return _at_empty_rows(build, ref, m, {}, _MAX_DEPTH)


_MAX_DEPTH = 64
"""Values of rows without edges are followed through at most this many nested operations."""


def _at_empty_rows(
    build: Builder, ref: ir.Ref, m: ir.Ref, done: dict[ir.Ref, float | None], depth: int
) -> float | None:
    if ref not in done:
        value = _value_there(build, ref, m, done, depth - 1) if depth else None
        done[ref] = None if value is None else _rounded_to(value, value_type(build, ref).dtype)
    return done[ref]


def _value_there(build: Builder, ref: ir.Ref, m: ir.Ref, done: dict[ir.Ref, float | None], depth: int) -> float | None:
    node = build.nodes[ref]
    match node:
        case ir.Const(value, _):
            return _as_float(value)
        case ir.Push(_, along, _, empty) if along == m:
            return _as_float(empty)
        case ir.Reshape(x, _) | ir.Broadcast(x, _):
            return _at_empty_rows(build, x, m, done, depth)
        case ir.Cast(x, dtype) if dtype.is_float:
            return _at_empty_rows(build, x, m, done, depth)
        case ir.Pointwise(op, _) if op in _PYTHON:
            args = [_at_empty_rows(build, r, m, done, depth) for r in operands(node)]
            known = [a for a in args if a is not None]
            return _PYTHON[op](*known) if len(known) == len(args) and not any(map(math.isnan, known)) else None
        case _:
            return None


def _as_float(value: Number) -> float | None:
    """`value` as a float; None for an integer that no float holds."""
    return float(value) if float(value) == value or math.isnan(value) else None


def _rounded_to(value: float, dtype: DType) -> float:
    return rounded(value, dtype) if dtype.is_float else value


def _divide(a: float, b: float) -> float:
    return a / b if b else math.nan


_PYTHON: dict[Op, Callable[..., float]] = {
    Op.add: lambda a, b: a + b,
    Op.sub: lambda a, b: a - b,
    Op.mul: lambda a, b: a * b,
    Op.div: _divide,
    Op.neg: lambda a: -a,
    Op.maximum: max,
    Op.minimum: min,
}
"""Operators on Python floats, for the arithmetic of degrees and factors. Through other operators nothing is known."""

RULE = Rule("factor", "push(pull(b, m) * x, m)", "b * push(x, m)", factor)
