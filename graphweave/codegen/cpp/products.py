"""Products of the rows of a tile, as calls of the micro-product."""

from __future__ import annotations

from collections.abc import Mapping

from graphweave.codegen.arrays import Array
from graphweave.codegen.cpp.half_products import half_of, print_half
from graphweave.codegen.cpp.names import ctype
from graphweave.codegen.cpp.operands import adds, array_of, extents, length, matrix, pointer, rows_of
from graphweave.codegen.cpp.printer import CppPrinter
from graphweave.core.errors import IRError
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.walk import statements

_VECTOR_BYTES = 16
"""The smallest vector. A matrix with narrower rows is read by columns (`row_products.h`)."""


def print_product(p: CppPrinter, stmt: loop.TileMatMul | loop.TileGram) -> None:
    """Prints the call that computes the product of the tile."""
    half = half_of(stmt, p.scope.arrays)
    if half is not None:
        print_half(p, stmt, half)
    elif by_rows(stmt):
        _print_by_rows(p, stmt)
    elif isinstance(stmt, loop.TileGram):
        _print_plain(p, "gw_gram", stmt, (stmt.out, stmt.x, stmt.y), (stmt.x, stmt.y))
    elif stmt.add is None:
        _print_plain(p, "gw_matmul", stmt, (stmt.out, stmt.x, stmt.w), (stmt.x, stmt.out))
    else:
        _print_plain(p, "gw_addmatmul", stmt, (stmt.out, stmt.add, stmt.x, stmt.w), (stmt.x, stmt.out))


def by_rows(stmt: loop.TileMatMul | loop.TileGram) -> bool:
    """Whether rows are gathered or scattered, or have several diagonal blocks, or the matrix is transposed."""
    if isinstance(stmt, loop.TileGram):
        return stmt.blocks > 1 or isinstance(stmt.x, loop.Rows) or isinstance(stmt.y, loop.Rows)
    return stmt.blocks > 1 or isinstance(stmt.x, loop.Rows) or isinstance(stmt.out, loop.Rows) or stmt.transposed


def scattered(kernel: loop.Kernel) -> list[tuple[loop.Buffer, str]]:
    """Outputs that products scatter without adding to them, and the CSR of the positions."""
    buffers = {b.name: b for b in kernel.buffers}
    inner = ((s, tiles.csr) for tiles in _tiles(kernel) for s in tiles.body)
    found = ((s, csr) for s, csr in inner if isinstance(s, loop.TileMatMul) and s.add is None)
    return [(buffers[s.out.buffer], csr) for s, csr in found if isinstance(s.out, loop.Rows)]


def gathering(kernel: loop.Kernel) -> set[str]:
    """CSRs along which products prefetch rows."""
    inner = ((s, tiles.csr) for tiles in _tiles(kernel) for s in tiles.body)
    return {csr for s, csr in inner if isinstance(s, loop.TileMatMul | loop.TileGram) and by_rows(s)}


def transposed_matrices(kernel: loop.Kernel, arrays: Mapping[str, Array]) -> list[loop.Alloc]:
    """Arrays for matrices that are transposed before rows are multiplied by them."""
    products = (s for tiles in _tiles(kernel) for s in tiles.body if isinstance(s, loop.TileMatMul) and by_rows(s))
    found = {s.w: arrays[s.w] for s in products if _turns(s, arrays)}
    return [loop.Alloc(_turned_name(w), info.dtype, info.shape, None) for w, info in found.items()]


def declare_transposed(p: CppPrinter, stmt: loop.Tiles) -> None:
    """Declares arrays for the matrices that `transpose` transposes, except large ones, which lie in the scratch."""
    for name in _turned_in(p, stmt):
        if name not in p.heap:
            info = p.scope.arrays[name]
            p.w.line(f"alignas(64) {ctype(info.dtype)} {p.scope.names.of(name)}[{info.numel}];")


def transpose(p: CppPrinter, stmt: loop.Tiles, first: str) -> None:
    """Transposes the matrices of a row's products in the row's first tile; `first` is the C++ condition for that."""
    for name, s in _turned_in(p, stmt).items():
        k, j = extents(s, p.scope.arrays)
        r, c = (j, k) if s.transposed else (k, j)
        p.w.line(f"if ({first}) gw_turn<{s.blocks}, {r}, {c}>({p.scope.names.of(name)}, {matrix(p, s)});")


def _turned_in(p: CppPrinter, stmt: loop.Tiles) -> dict[str, loop.TileMatMul]:
    products = (s for s in stmt.body if isinstance(s, loop.TileMatMul) and by_rows(s))
    return {_turned_name(s.w): s for s in products if _turns(s, p.scope.arrays)}


# ---------------------------------------------------------------- rows one after the other


def _print_plain(
    p: CppPrinter,
    function: str,
    stmt: loop.TileMatMul | loop.TileGram,
    arrays: tuple[loop.Place, ...],
    widths: tuple[loop.Place, loop.Place],
) -> None:
    """Prints a call of `function` of `products.h`; its template arguments are the row widths of `widths`."""
    template = ", ".join(str(p.scope.arrays[array_of(array)].numel) for array in widths)
    pointers = [
        matrix(p, stmt) if isinstance(stmt, loop.TileMatMul) and array == stmt.w else pointer(p, array, stmt.tile)
        for array in arrays
    ]
    p.scope.headers.add("products")
    given = [*pointers, length(p, stmt.tile)]
    given += [p.scope.names.derived(b.name, "streams") for b in p.streamed if b.name == arrays[0]]
    p.w.line(f"{function}<{template}>({', '.join(given)});")


def multiplied(kernel: loop.Kernel) -> list[loop.Buffer]:
    """Inputs whose rows the products of a tile of rows read from memory."""
    products = [s for s in kernel.body if isinstance(s, loop.TileMatMul | loop.TileGram)]
    read = {r for s in products for r in ((s.x, s.add) if isinstance(s, loop.TileMatMul) else (s.x, s.y))}
    return [b for b in kernel.buffers if b.name in read]


# ---------------------------------------------------------------- rows that are gathered or scattered


def _print_by_rows(p: CppPrinter, stmt: loop.TileMatMul | loop.TileGram) -> None:
    names, tile = p.scope.names, stmt.tile
    p.scope.headers.add("row_products")
    other = stmt.out if isinstance(stmt, loop.TileMatMul) else stmt.y
    x, n = rows_of(p, stmt.x, tile, "const "), length(p, tile)
    shifted = any(isinstance(place, loop.Rows) and place.shift is not None for place in (stmt.x, other))
    if tile not in p.csr_of:
        raise IRError("a product of a tile of rows has one matrix for all rows, not transposed and without blocks.")
    limit = names.derived(p.csr_of[tile], "end" if shifted else "positions")
    known = f"{limit} - {names.derived(tile, 'begin')}"
    template = ", ".join(map(str, (stmt.blocks, *extents(stmt, p.scope.arrays), p.tiles[tile])))
    if isinstance(stmt, loop.TileGram):
        y = rows_of(p, stmt.y, tile, "const ")
        p.w.line(f"gw_row_gram<{template}>({names.of(stmt.out)}, {x}, {y}, {n}, {known}, {adds(p, stmt)});")
        return
    if isinstance(stmt.add, str):
        raise IRError(
            "a product of gathered rows, of blocks or with a transposed matrix cannot add to rows of an array."
        )
    out = rows_of(p, stmt.out, tile, "")
    w = names.of(_turned_name(stmt.w)) if _turns(stmt, p.scope.arrays) else matrix(p, stmt)
    if stmt.add is not None:
        p.w.line(f"gw_row_matmul<{template}, true>({out}, {x}, {w}, {n}, {known}, false);")
        return
    streams = names.derived(stmt.out.buffer, "streams") if isinstance(stmt.out, loop.Rows) else "false"
    p.w.line(f"gw_row_matmul<{template}, false>({out}, {x}, {w}, {n}, {known}, {streams});")


# ---------------------------------------------------------------- parts of both


def _tiles(kernel: loop.Kernel) -> list[loop.Tiles]:
    return [s for s in statements(kernel.body) if isinstance(s, loop.Tiles)]


def _turned_name(w: str) -> str:
    return f"{w}_turned"


def _turns(stmt: loop.TileMatMul, arrays: Mapping[str, Array]) -> bool:
    """Whether the matrix must be transposed to be read. A matrix of one row or column never is: both ways are equal."""
    if half_of(stmt, arrays) is not None:
        return False
    k, j = extents(stmt, arrays)
    narrow = stmt.add is None and j * arrays[stmt.w].dtype.itemsize < _VECTOR_BYTES
    return stmt.transposed != narrow and k > 1 and j > 1
