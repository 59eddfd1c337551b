"""Half precision in kernels: numbers are stored in it and computed with in float32.

Tensors are read and written as they are in memory; scalars, arrays of a row and totals are float32, and so are sums.
Comparisons round both sides to half precision first, as PyTorch does: the backward of a maximum computes messages again
and compares them with the stored maximum. Rounding keeps the order of numbers, so the rounded largest message equals
the stored maximum.
"""

from __future__ import annotations

from dataclasses import replace

from graphweave.core.types import HALF, DType, Op, computed
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.types import dtype_of, parameter_types
from graphweave.ir.loop.walk import expressions, mapped, statements, subexpressions


def widened(kernel: loop.Kernel) -> loop.Kernel:
    """`kernel` with its half-precision arithmetic done in float32; itself if it has none."""
    if not (any(b.dtype in HALF for b in kernel.buffers) or _casts_to_half(kernel)):
        return kernel
    stored = {b.name: b.dtype for b in kernel.buffers if b.dtype in HALF and b.role is not loop.Role.total}
    stored |= _operands(kernel)
    body = _Widen(stored, parameter_types(kernel)).block(kernel.body)
    buffers = tuple(replace(b, dtype=computed(b.dtype)) if b.role is loop.Role.total else b for b in kernel.buffers)
    stashes = tuple(replace(s, dtype=computed(s.dtype)) for s in kernel.stashes)
    return replace(kernel, buffers=buffers, stashes=stashes, body=body)


def _operands(kernel: loop.Kernel) -> dict[str, DType]:
    """Half-precision arrays of a tile that only products and comparisons read, which round their operands: they stay as
    they are.

    Another array is float32. It may hold what another kernel keeps in float32 or computes on the spot: if it were
    rounded here alone, what is made of it would differ between the two, and a message that is computed again would not
    equal the maximum that it was.
    """
    everything = list(statements(kernel.body))
    others = {s.buffer for s in everything if isinstance(s, loop.Accum)}
    for stmt in everything:
        for expr in expressions(stmt):
            others |= _read_as_numbers(expr)
    return {
        s.name: s.dtype
        for s in everything
        if isinstance(s, loop.TileArray) and s.dtype in HALF and s.name not in others
    }


def _read_as_numbers(expr: loop.Expr) -> set[str]:
    """Arrays that `expr` reads elsewhere than as an operand of a comparison."""
    if isinstance(expr, loop.Load):
        return {expr.buffer}.union(*map(_read_as_numbers, expr.index))
    compares = isinstance(expr, loop.Call) and expr.op.facts.compares
    read = [p for p in expressions(expr) if not (compares and isinstance(p, loop.Load))]
    return set().union(*map(_read_as_numbers, read))


def _casts_to_half(kernel: loop.Kernel) -> bool:
    """Whether the kernel casts to half precision, even if no buffer is of that type."""
    return any(
        isinstance(part, loop.CastTo) and part.dtype in HALF
        for stmt in statements(kernel.body)
        for expr in expressions(stmt)
        for part in subexpressions(expr)
    )


class _Widen:
    """`stored` are the arrays that stay in half precision; `types` are the types of names before widening."""

    def __init__(self, stored: dict[str, DType], types: dict[str, DType]) -> None:
        self._stored, self._types = stored, types

    def block(self, body: tuple[loop.Stmt, ...]) -> tuple[loop.Stmt, ...]:
        return tuple(self._statement(stmt) for stmt in body)

    def _statement(self, stmt: loop.Stmt) -> loop.Stmt:
        if isinstance(stmt, loop.Let | loop.Alloc | loop.TileArray | loop.FoldLanes):
            self._types[stmt.name] = stmt.dtype
        new = mapped(stmt, self._value, self._statement)
        match new:
            case (
                loop.Let(name, dtype)
                | loop.Alloc(name, dtype)
                | loop.TileArray(name, dtype=dtype)
                | loop.FoldLanes(name, dtype)
            ):
                return new if name in self._stored else replace(new, dtype=computed(dtype))
            case loop.Store(buffer, index, value) if buffer in self._stored:
                return loop.Store(buffer, index, loop.CastTo(value, self._stored[buffer]))
            case loop.Raise(sums=sums):
                return replace(new, sums=tuple(mapped(s, self._value) for s in sums))
        return new

    def _value(self, expr: loop.Expr) -> loop.Expr:
        match expr:
            case loop.Call(op, args):
                return loop.Call(op, tuple(self._operand(op, arg) for arg in args))
            case loop.CastTo(x, dtype) if dtype in HALF:
                return _rounded(self._value(x), dtype)
        new = mapped(expr, self._value)
        match new:
            case loop.Lit(value, dtype):
                return loop.Lit(value, computed(dtype))
            case loop.Load(buffer) if buffer in self._stored:
                return loop.CastTo(new, DType.f32)
            case loop.Uniform(dtype=dtype):
                return replace(new, dtype=computed(dtype))
        return new

    def _operand(self, op: Op, arg: loop.Expr) -> loop.Expr:
        dtype = (
            dtype_of(arg, self._types) if not isinstance(arg, loop.Var | loop.IndexSum) else self._types.get(_name(arg))
        )
        value = self._value(arg)
        exact = isinstance(arg, loop.Lit) or (isinstance(arg, loop.Load) and arg.buffer in self._stored)
        return _rounded(value, dtype) if op.facts.compares and dtype in HALF and not exact else value


def _name(expr: loop.Var | loop.IndexSum) -> str:
    return expr.name if isinstance(expr, loop.Var) else ""


def _rounded(value: loop.Expr, dtype: DType | None) -> loop.Expr:
    """`value` rounded to half precision, as float32."""
    assert dtype is not None
    return loop.CastTo(loop.CastTo(value, dtype), DType.f32)
