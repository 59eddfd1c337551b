"""Half precision in kernels: it is for storage, computed with in float32.

Tensors are read and written as they lie in memory; scalars, arrays of a row and totals are float32, so sums are too.
Comparisons round both sides to half precision first, as PyTorch's have it: the backward of a maximum compares messages,
computed again, with the maximum that was stored, and rounding keeps the order of numbers, so that the largest message,
rounded, is the rounded maximum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from graphweave.core.types import HALF, DType, Op, computed
from graphweave.ir.loop.nodes import (
    Accum,
    Alloc,
    Call,
    CastTo,
    Degree,
    Edges,
    Expr,
    FoldLanes,
    IndexSum,
    Kernel,
    Lanes,
    Let,
    Lit,
    Load,
    Raise,
    Rescaled,
    Role,
    Stmt,
    Store,
    TileArray,
    TileRows,
    Tiles,
    Uniform,
    Var,
)
from graphweave.ir.loop.types import dtype_of, parameter_types
from graphweave.ir.loop.walk import expressions, statements, subexpressions

S = TypeVar("S", bound=Stmt)


def widened(kernel: Kernel) -> Kernel:
    """`kernel` with its arithmetic of half precision in float32; itself where it has none."""
    if not (any(b.dtype in HALF for b in kernel.buffers) or _casts_to_half(kernel)):
        return kernel
    stored = {b.name: b.dtype for b in kernel.buffers if b.dtype in HALF and b.role is not Role.total}
    stored |= _operands(kernel)
    body = _Widen(stored, parameter_types(kernel)).block(kernel.body)
    buffers = tuple(replace(b, dtype=computed(b.dtype)) if b.role is Role.total else b for b in kernel.buffers)
    stashes = tuple(replace(s, dtype=computed(s.dtype)) for s in kernel.stashes)
    return replace(kernel, buffers=buffers, stashes=stashes, body=body)


def _operands(kernel: Kernel) -> dict[str, DType]:
    """Arrays of a tile that are only stored to and multiplied: products take half precision as it is."""
    everything = list(statements(kernel.body))
    others = {s.buffer for s in everything if isinstance(s, Accum)}
    return {
        s.name: s.dtype for s in everything if isinstance(s, TileArray) and s.dtype in HALF and s.name not in others
    }


def _casts_to_half(kernel: Kernel) -> bool:
    """Is there half precision between loads and stores of other types?"""
    return any(
        isinstance(part, CastTo) and part.dtype in HALF
        for stmt in statements(kernel.body)
        for expr in expressions(stmt)
        for part in subexpressions(expr)
    )


class _Widen:
    """`stored` are the tensors in half precision; `types` those of names before widening."""

    def __init__(self, stored: dict[str, DType], types: dict[str, DType]) -> None:
        self._stored, self._types = stored, types

    def block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(self._statement(stmt) for stmt in body)

    def _statement(self, stmt: Stmt) -> Stmt:
        match stmt:
            case Let(name, dtype, value):
                self._types[name] = dtype
                return Let(name, computed(dtype), self._value(value))
            case Alloc(name, dtype) | TileArray(name, dtype=dtype):
                self._types[name] = dtype
                return stmt if name in self._stored else replace(stmt, dtype=computed(dtype))
            case Store(buffer, index, value):
                new = self._value(value)
                if buffer in self._stored:
                    new = CastTo(new, self._stored[buffer])
                return Store(buffer, self._index(index), new)
            case Accum(buffer, index, fold, value):
                return Accum(buffer, self._index(index), fold, self._value(value))
            case FoldLanes(name, dtype, body=body, value=value):
                new_body = tuple(self._let(let) for let in body)
                new_value = self._value(value)
                self._types[name] = dtype
                return replace(stmt, dtype=computed(dtype), body=new_body, value=new_value)
            case Raise(value=value, sums=sums):
                moved = tuple(Rescaled(s.lanes, s.buffer, self._index(s.index), s.of) for s in sums)
                return replace(stmt, value=self._value(value), sums=moved)
            case Lanes(body=body) | Edges(body=body) | Tiles(body=body) | TileRows(body=body):
                return replace(stmt, body=self.block(body))
            case _:
                return stmt

    def _let(self, let: Let) -> Let:
        self._types[let.name] = let.dtype
        return Let(let.name, computed(let.dtype), self._value(let.value))

    def _index(self, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(self._value(part) for part in index)

    def _value(self, expr: Expr) -> Expr:
        match expr:
            case Lit(value, dtype):
                return Lit(value, computed(dtype))
            case Load(buffer, index):
                load = Load(buffer, self._index(index))
                return CastTo(load, DType.f32) if buffer in self._stored else load
            case Call(op, args):
                return Call(op, tuple(self._operand(op, arg) for arg in args))
            case CastTo(x, dtype):
                return _rounded(self._value(x), dtype) if dtype in HALF else CastTo(self._value(x), dtype)
            case Degree(csr, row):
                return Degree(csr, self._value(row))
            case Uniform(dtype=dtype):
                return replace(expr, dtype=computed(dtype))
            case Var() | IndexSum():
                return expr

    def _operand(self, op: Op, arg: Expr) -> Expr:
        dtype = dtype_of(arg, self._types) if not isinstance(arg, Var | IndexSum) else self._types.get(_name(arg))
        value = self._value(arg)
        exact = isinstance(arg, Lit) or (isinstance(arg, Load) and arg.buffer in self._stored)
        return _rounded(value, dtype) if op.facts.compares and dtype in HALF and not exact else value


def _name(expr: Var | IndexSum) -> str:
    return expr.name if isinstance(expr, Var) else ""


def _rounded(value: Expr, dtype: DType | None) -> Expr:
    """`value` as half precision holds it, still in float32."""
    assert dtype is not None
    return CastTo(CastTo(value, dtype), DType.f32)
