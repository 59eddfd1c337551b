"""Walks over the statements and expressions of a kernel, for every printer."""

from __future__ import annotations

from collections.abc import Iterator

from graphweave.codegen.arrays import Array
from graphweave.ir.loop.nodes import (
    Accum,
    Alloc,
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
    TileArray,
    Tiles,
    Uniform,
)


def statements(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Every statement of `body`, outer before inner."""
    for stmt in body:
        yield stmt
        if isinstance(stmt, FoldLanes | Lanes | Edges | Tiles):
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


def local_arrays(body: tuple[Stmt, ...]) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for stmt in statements(body):
        if isinstance(stmt, Alloc):
            found[stmt.name] = Array(stmt.name, stmt.dtype, stmt.shape, has_rows=False, is_scalar=not stmt.shape)
        elif isinstance(stmt, TileArray):
            found[stmt.name] = Array(stmt.name, stmt.dtype, stmt.shape, has_rows=True)
    return found


def tile_sizes(body: tuple[Stmt, ...]) -> dict[str, int]:
    """Positions that each tile has at most."""
    return {stmt.tile: stmt.size for stmt in statements(body) if isinstance(stmt, Tiles)}


def binders(body: tuple[Stmt, ...]) -> Iterator[str]:
    """Every name that `body` defines."""
    for stmt in statements(body):
        match stmt:
            case Let(name) | Alloc(name) | TileArray(name) | Tiles(name):
                yield name
            case FoldLanes(name, _, _, lanes):
                yield name
                yield from (lane for lane, _ in lanes)
            case Lanes(lanes):
                yield from (lane for lane, _ in lanes)
            case Raise(_, _, (lane, _), _, sums):
                yield lane
                yield from (lane for s in sums for lane, _ in s.lanes)
            case Edges(k):
                yield k
