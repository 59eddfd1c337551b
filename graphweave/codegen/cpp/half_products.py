"""Products of half precision, as calls of the micro-product on packed operands (`half_products.h`).

A matrix that all rows share is packed before the rows, a matrix that a row chooses in the row's first tile, and a
matrix that a row computes before each product.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphweave.codegen.arrays import Array
from graphweave.codegen.cpp.names import ctype
from graphweave.codegen.cpp.operands import adds, array_of, extents, length, matrix, rows_of
from graphweave.codegen.cpp.printer import CppPrinter
from graphweave.core.types import HALF, DType
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.walk import statements

_NUMBERS_PER_ELEMENT = {DType.bf16: 2, DType.f16: 1}
"""How many numbers an element of a packed operand holds."""
_ELEMENT_TYPE = {DType.bf16: DType.i32, DType.f16: DType.f32}
"""The type of the elements of a packed operand."""
_MIN_COLUMNS = 4
"""A packed matrix is padded to at least this many columns."""


def half_of(stmt: loop.TileMatMul | loop.TileGram, arrays: Mapping[str, Array]) -> DType | None:
    """The half-precision type in which the product takes its operands; None if none of them is of half precision."""
    others = (stmt.w, stmt.add) if isinstance(stmt, loop.TileMatMul) else (stmt.y,)
    found = (arrays[array_of(place)].dtype for place in (stmt.x, stmt.out, *others) if place is not None)
    return next((dtype for dtype in found if dtype in HALF), None)


def packed(kernel: loop.Kernel, arrays: Mapping[str, Array]) -> list[loop.Alloc]:
    """Arrays for the packed matrices."""
    found = {}
    for stmt in _products(kernel):
        dtype = half_of(stmt, arrays)
        if dtype is not None:
            k, j = extents(stmt, arrays)
            elements = stmt.blocks * -(-k // _NUMBERS_PER_ELEMENT[dtype]) * max(j, _MIN_COLUMNS)
            found[_packed_name(stmt)] = loop.Alloc(_packed_name(stmt), _ELEMENT_TYPE[dtype], (elements,), None)
    return list(found.values())


def pack_before_rows(p: CppPrinter, kernel: loop.Kernel) -> None:
    """Declares arrays for packed matrices, except large ones, which lie in the thread's scratch; packs shared ones."""
    for alloc in packed(kernel, p.scope.arrays):
        if alloc.name not in p.heap:
            p.w.line(f"alignas(64) {ctype(alloc.dtype)} {p.scope.names.of(alloc.name)}[{alloc.shape[0]}];")
    inputs = {b.name for b in kernel.buffers}
    shared = [s for s in _products(kernel) if s.w in inputs and s.row is None]
    for stmt in {_packed_name(s): s for s in shared if half_of(s, p.scope.arrays)}.values():
        p.packed.add(_packed_name(stmt))
        _pack(p, stmt)


def pack_for_row(p: CppPrinter, tiles: loop.Tiles, first: str) -> None:
    """Packs the matrices that the row chooses, in the row's first tile."""
    for stmt in tiles.body:
        if isinstance(stmt, loop.TileMatMul) and stmt.row is not None and half_of(stmt, p.scope.arrays):
            p.packed.add(_packed_name(stmt))
            with p.w.block(f"if ({first})"):
                _pack(p, stmt)


def print_half(p: CppPrinter, stmt: loop.TileMatMul | loop.TileGram, half: DType) -> None:
    tile = stmt.tile
    p.scope.headers.add("half_products")
    template = ", ".join(map(str, (ctype(half), stmt.blocks, *extents(stmt, p.scope.arrays), p.tiles[tile])))
    x, n = rows_of(p, stmt.x, tile, "const "), length(p, tile)
    if isinstance(stmt, loop.TileGram):
        y = rows_of(p, stmt.y, tile, "const ")
        p.w.line(f"gw_half_gram<{template}>({p.scope.names.of(stmt.out)}, {x}, {y}, {n}, {adds(p, stmt)});")
        return
    if _packed_name(stmt) not in p.packed:
        _pack(p, stmt)
    none = "gw_rows_of_tile<const float, void>{nullptr}"
    add = none if stmt.add is None else rows_of(p, stmt.add, tile, "const ")
    w, out = p.scope.names.of(_packed_name(stmt)), rows_of(p, stmt.out, tile, "")
    p.w.line(f"gw_half_matmul<{template}>({out}, {x}, {w}, {add}, {n});")


def _pack(p: CppPrinter, stmt: loop.TileMatMul) -> None:
    half = half_of(stmt, p.scope.arrays)
    assert half is not None
    k, j = extents(stmt, p.scope.arrays)
    template = ", ".join((ctype(half), str(stmt.blocks), str(k), str(j), str(stmt.transposed).lower()))
    p.w.line(f"gw_pack_matrices<{template}>({p.scope.names.of(_packed_name(stmt))}, {matrix(p, stmt)});")


def _products(kernel: loop.Kernel) -> Iterator[loop.TileMatMul]:
    return (stmt for stmt in statements(kernel.body) if isinstance(stmt, loop.TileMatMul))


def _packed_name(stmt: loop.TileMatMul) -> str:
    return f"{stmt.w}_packed{'_turned' if stmt.transposed else ''}"
