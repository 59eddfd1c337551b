"""Operands of products as C++: pointers to rows, the matrix, the number of rows."""

from __future__ import annotations

from collections.abc import Mapping

from graphweave.codegen.arrays import Array
from graphweave.codegen.cpp.names import ctype
from graphweave.codegen.cpp.printer import CppPrinter
from graphweave.ir.loop import nodes as loop


def array_of(place: loop.Place) -> str:
    return place.buffer if isinstance(place, loop.Rows) else place


def extents(stmt: loop.TileMatMul | loop.TileGram, arrays: Mapping[str, Array]) -> tuple[int, int]:
    """Rows and columns of one matrix of the product, or of one gram."""
    other = stmt.out if isinstance(stmt, loop.TileMatMul) else stmt.y
    k, j = (arrays[array_of(place)].numel // stmt.blocks for place in (stmt.x, other))
    return k, j


def adds(p: CppPrinter, gram: loop.TileGram) -> str:
    """The C++ condition under which a tile's gram is added. If the array is in `p.sums`, a row's first tile stores its
    gram instead."""
    return f"{p.scope.names.of(gram.tile)} > 0" if gram.out in p.sums else "true"


def pointer(p: CppPrinter, place: loop.Place, tile: str) -> str:
    """A pointer to the row of the tile's first position in a tile array, a stash, or a parameter of the kernel's rows;
    or to data without rows."""
    assert isinstance(place, str)
    info, name, begin = p.scope.arrays[place], p.scope.names.of(place), p.scope.names.derived(tile, "begin")
    if place in p.stashes:
        return f"{name} + ({begin} - {p.first(place)}) * {info.numel}"
    return f"{name} + {begin} * {info.numel}" if place not in p.tile_of and info.has_rows else name


def rows_of(p: CppPrinter, place: loop.Place, tile: str, const: str) -> str:
    """The C++ object that gives the row of a place for each position of the tile."""
    names = p.scope.names
    type_ = f"{const}{ctype(p.scope.arrays[array_of(place)].dtype)}"
    if isinstance(place, str):
        return f"gw_rows_of_tile<{type_}, void>{{{pointer(p, place, tile)}}}"
    index = ctype(p.scope.arrays[place.column].dtype)
    at = [names.of(place.column), names.derived(tile, "begin")]
    at += [] if place.shift is None else [names.of(place.shift)]
    return f"gw_rows_of_tile<{type_}, {index}>{{{names.of(place.buffer)}, {' + '.join(at)}}}"


def length(p: CppPrinter, tile: str) -> str:
    begin, end = (p.scope.names.derived(tile, what) for what in ("begin", "end"))
    return f"{end} - {begin}"


def matrix(p: CppPrinter, stmt: loop.TileMatMul) -> str:
    name = p.scope.names.of(stmt.w)
    if stmt.row is None:
        return name
    return f"{name} + (int64_t){p.scope.names.of(stmt.row)} * {p.scope.arrays[stmt.w].numel}"
