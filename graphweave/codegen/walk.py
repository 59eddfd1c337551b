"""Names and arrays of a kernel, for all printers."""

from __future__ import annotations

from collections.abc import Iterator

from graphweave.codegen.arrays import Array
from graphweave.ir.loop.nodes import (
    Accum,
    Alloc,
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
    TileArray,
    Tiles,
)
from graphweave.ir.loop.walk import expressions, statements, subexpressions

Access = tuple[str, tuple[Expr, ...]]


def arrays_of(kernel: Kernel) -> dict[str, Array]:
    """All arrays of the kernel: its parameters, and those that it declares."""
    parameters = {b.name: Array(b.name, b.dtype, b.shape, b.rows is not None) for b in kernel.buffers}
    return parameters | local_arrays(kernel.body)


def local_arrays(body: tuple[Stmt, ...]) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for stmt in statements(body):
        if isinstance(stmt, Alloc):
            found[stmt.name] = Array(stmt.name, stmt.dtype, stmt.shape, has_rows=False, is_scalar=not stmt.shape)
        elif isinstance(stmt, TileArray):
            found[stmt.name] = Array(stmt.name, stmt.dtype, stmt.shape, has_rows=True)
    return found


def tile_sizes(kernel: Kernel) -> dict[str, int]:
    """The largest number of positions of each tile."""
    sizes = {stmt.tile: stmt.size for stmt in statements(kernel.body) if isinstance(stmt, Tiles)}
    return sizes if kernel.tile is None else {**sizes, kernel.tile[0]: kernel.tile[1]}


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


def accesses(body: tuple[Stmt, ...]) -> Iterator[Access]:
    """Every `array[index]` in `body`, read or written."""
    for stmt in statements(body):
        if isinstance(stmt, Store | Accum):
            yield stmt.buffer, stmt.index
        for top in expressions(stmt):
            for expr in subexpressions(top):
                if isinstance(expr, Load):
                    yield expr.buffer, expr.index
