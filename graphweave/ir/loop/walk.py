"""Walks over the statements and expressions of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TypeAlias

from graphweave.ir.loop.nodes import (
    Accum,
    Call,
    CastTo,
    Degree,
    Edges,
    Expr,
    FoldLanes,
    Kernel,
    Lanes,
    Let,
    Load,
    Raise,
    Stmt,
    Store,
    TileRows,
    Tiles,
    Uniform,
)


def statements(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """Every statement of `body`, outer before inner."""
    for stmt in body:
        yield stmt
        if isinstance(stmt, FoldLanes | Lanes | Edges | Tiles | TileRows):
            yield from statements(stmt.body)


def csrs_around(kernel: Kernel) -> dict[str, str | None]:
    """For each CSR that is walked the one whose positions are its rows; None where these are the kernel's rows."""
    walks = [s for s in statements(kernel.body) if isinstance(s, Edges | Tiles)]
    csr_of = {s.k: s.csr for s in walks if isinstance(s, Edges)}
    return {s.csr: csr_of.get(s.row) for s in walks}


def expressions(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions a statement itself evaluates (not those of its body)."""
    match stmt:
        case Let(_, _, value) | FoldLanes(value=value) | Raise(value=value):
            return (value,)
        case Store(_, index, value) | Accum(_, index, _, value):
            return (*index, value)
    return ()


def subexpressions(expr: Expr) -> Iterator[Expr]:
    """`expr` and all that it is made of."""
    yield expr
    match expr:
        case Load(_, parts) | Call(_, parts):
            for part in parts:
                yield from subexpressions(part)
        case CastTo(x, _) | Degree(_, x):
            yield from subexpressions(x)
        case Uniform(seed, row, _, index):
            for part in (seed, row, index):
                yield from subexpressions(part)


Index: TypeAlias = tuple[Expr, ...]


def relocated(stmt: Stmt, place: Callable[[str, Index], tuple[str, Index]]) -> Stmt:
    """`stmt` of a row or an edge, and what stands inside, with every access array[index] where `place` says."""

    def value(expr: Expr) -> Expr:
        match expr:
            case Load(buffer, index):
                return Load(*place(buffer, tuple(map(value, index))))
            case Call(op, args):
                return Call(op, tuple(map(value, args)))
            case CastTo(x, dtype):
                return CastTo(value(x), dtype)
            case Uniform(seed=seed, row=row):
                return replace(expr, seed=value(seed), row=value(row))
        return expr

    match stmt:
        case Let(value=x):
            return replace(stmt, value=value(x))
        case Store(buffer, index, x):
            return Store(*place(buffer, tuple(map(value, index))), value(x))
        case Accum(buffer, index, fold, x):
            return Accum(*place(buffer, tuple(map(value, index))), fold, value(x))
        case FoldLanes(body=lets, value=x):
            return replace(stmt, body=tuple(replace(let, value=value(let.value)) for let in lets), value=value(x))
        case Lanes(body=body):
            return replace(stmt, body=tuple(relocated(s, place) for s in body))
    return stmt
