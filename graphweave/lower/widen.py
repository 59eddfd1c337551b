"""Half precision in kernels: numbers are stored in it and computed with in float32.

Tensors are read and written as they are in memory; scalars, arrays of a row and totals are float32, and so are sums.
Comparisons round both sides to half precision first, as PyTorch does: the backward of a maximum computes messages again
and compares them with the stored maximum. Rounding keeps the order of numbers, so the rounded largest message equals
the stored maximum.
"""

from __future__ import annotations

from dataclasses import replace

from graphweave.core.types import HALF, DType, Op, computed
from graphweave.ir.loop.nodes import (
    Accum,
    Alloc,
    Call,
    CastTo,
    Expr,
    FoldLanes,
    IndexSum,
    Kernel,
    Let,
    Lit,
    Load,
    Raise,
    Role,
    Stmt,
    Store,
    TileArray,
    Uniform,
    Var,
)
from graphweave.ir.loop.types import dtype_of, parameter_types
from graphweave.ir.loop.walk import expressions, mapped, statements, subexpressions


def widened(kernel: Kernel) -> Kernel:
    """`kernel` with its half-precision arithmetic done in float32; itself if it has none."""
    if not (any(b.dtype in HALF for b in kernel.buffers) or _casts_to_half(kernel)):
        return kernel
    stored = {b.name: b.dtype for b in kernel.buffers if b.dtype in HALF and b.role is not Role.total}
    stored |= _operands(kernel)
    body = _Widen(stored, parameter_types(kernel)).block(kernel.body)
    buffers = tuple(replace(b, dtype=computed(b.dtype)) if b.role is Role.total else b for b in kernel.buffers)
    stashes = tuple(replace(s, dtype=computed(s.dtype)) for s in kernel.stashes)
    return replace(kernel, buffers=buffers, stashes=stashes, body=body)


def _operands(kernel: Kernel) -> dict[str, DType]:
    """Half-precision arrays of a tile that only products and comparisons read, which round their operands: they stay as
    they are.

    Another array is float32. It may hold what another kernel keeps in float32 or computes on the spot: if it were
    rounded here alone, what is made of it would differ between the two, and a message that is computed again would not
    equal the maximum that it was.
    """
    everything = list(statements(kernel.body))
    others = {s.buffer for s in everything if isinstance(s, Accum)}
    for stmt in everything:
        for expr in expressions(stmt):
            others |= _read_as_numbers(expr)
    return {
        s.name: s.dtype for s in everything if isinstance(s, TileArray) and s.dtype in HALF and s.name not in others
    }


def _read_as_numbers(expr: Expr) -> set[str]:
    """Arrays that `expr` reads elsewhere than as an operand of a comparison."""
    if isinstance(expr, Load):
        return {expr.buffer}.union(*map(_read_as_numbers, expr.index))
    compares = isinstance(expr, Call) and expr.op.facts.compares
    read = [p for p in expressions(expr) if not (compares and isinstance(p, Load))]
    return set().union(*map(_read_as_numbers, read))


def _casts_to_half(kernel: Kernel) -> bool:
    """Whether the kernel casts to half precision, even if no buffer is of that type."""
    return any(
        isinstance(part, CastTo) and part.dtype in HALF
        for stmt in statements(kernel.body)
        for expr in expressions(stmt)
        for part in subexpressions(expr)
    )


class _Widen:
    """`stored` are the arrays that stay in half precision; `types` are the types of names before widening."""

    def __init__(self, stored: dict[str, DType], types: dict[str, DType]) -> None:
        self._stored, self._types = stored, types

    def block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(self._statement(stmt) for stmt in body)

    def _statement(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, Let | Alloc | TileArray | FoldLanes):
            self._types[stmt.name] = stmt.dtype
        new = mapped(stmt, self._value, self._statement)
        match new:
            case Let(name, dtype) | Alloc(name, dtype) | TileArray(name, dtype=dtype) | FoldLanes(name, dtype):
                return new if name in self._stored else replace(new, dtype=computed(dtype))
            case Store(buffer, index, value) if buffer in self._stored:
                return Store(buffer, index, CastTo(value, self._stored[buffer]))
            case Raise(sums=sums):
                return replace(new, sums=tuple(mapped(s, self._value) for s in sums))
        return new

    def _value(self, expr: Expr) -> Expr:
        match expr:
            case Call(op, args):
                return Call(op, tuple(self._operand(op, arg) for arg in args))
            case CastTo(x, dtype) if dtype in HALF:
                return _rounded(self._value(x), dtype)
        new = mapped(expr, self._value)
        match new:
            case Lit(value, dtype):
                return Lit(value, computed(dtype))
            case Load(buffer) if buffer in self._stored:
                return CastTo(new, DType.f32)
            case Uniform(dtype=dtype):
                return replace(new, dtype=computed(dtype))
        return new

    def _operand(self, op: Op, arg: Expr) -> Expr:
        dtype = dtype_of(arg, self._types) if not isinstance(arg, Var | IndexSum) else self._types.get(_name(arg))
        value = self._value(arg)
        exact = isinstance(arg, Lit) or (isinstance(arg, Load) and arg.buffer in self._stored)
        return _rounded(value, dtype) if op.facts.compares and dtype in HALF and not exact else value


def _name(expr: Var | IndexSum) -> str:
    return expr.name if isinstance(expr, Var) else ""


def _rounded(value: Expr, dtype: DType | None) -> Expr:
    """`value` rounded to half precision, as float32."""
    assert dtype is not None
    return CastTo(CastTo(value, dtype), DType.f32)
