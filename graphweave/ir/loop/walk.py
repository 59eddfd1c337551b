"""Walks over the statements and expressions of a kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from graphweave.ir.loop.nodes import (
    Accum,
    Call,
    CastTo,
    Degree,
    Edges,
    Expr,
    FoldLanes,
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
