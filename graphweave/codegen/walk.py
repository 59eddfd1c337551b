"""Names and arrays of a kernel, for all printers."""

from __future__ import annotations

from collections.abc import Iterator

from graphweave.codegen.arrays import Array
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.walk import expressions, statements, subexpressions

Access = tuple[str, tuple[loop.Expr, ...]]


def arrays_of(kernel: loop.Kernel) -> dict[str, Array]:
    """All arrays of the kernel: its parameters, and those that it declares."""
    parameters = {b.name: Array(b.name, b.dtype, b.shape, b.rows is not None) for b in kernel.buffers}
    return parameters | local_arrays(kernel.body)


def local_arrays(body: tuple[loop.Stmt, ...]) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for stmt in statements(body):
        if isinstance(stmt, loop.Alloc):
            found[stmt.name] = Array(stmt.name, stmt.dtype, stmt.shape, has_rows=False, is_scalar=not stmt.shape)
        elif isinstance(stmt, loop.TileArray):
            found[stmt.name] = Array(stmt.name, stmt.dtype, stmt.shape, has_rows=True)
    return found


def tile_sizes(kernel: loop.Kernel) -> dict[str, int]:
    """The largest number of positions of each tile."""
    sizes = {stmt.tile: stmt.size for stmt in statements(kernel.body) if isinstance(stmt, loop.Tiles)}
    return sizes if kernel.tile is None else {**sizes, kernel.tile[0]: kernel.tile[1]}


def binders(body: tuple[loop.Stmt, ...]) -> Iterator[str]:
    """Every name that `body` defines."""
    for stmt in statements(body):
        match stmt:
            case loop.Let(name) | loop.Alloc(name) | loop.TileArray(name) | loop.Tiles(name):
                yield name
            case loop.FoldLanes(name, _, _, lanes):
                yield name
                yield from (lane for lane, _ in lanes)
            case loop.Lanes(lanes):
                yield from (lane for lane, _ in lanes)
            case loop.Raise(_, _, (lane, _), _, sums):
                yield lane
                yield from (lane for s in sums for lane, _ in s.lanes)
            case loop.Edges(k):
                yield k


def accesses(body: tuple[loop.Stmt, ...]) -> Iterator[Access]:
    """Every `array[index]` in `body`, read or written."""
    for stmt in statements(body):
        if isinstance(stmt, loop.Store | loop.Accum):
            yield stmt.buffer, stmt.index
        for top in expressions(stmt):
            for expr in subexpressions(top):
                if isinstance(expr, loop.Load):
                    yield expr.buffer, expr.index
