"""Programs of one row that share out what is too large for the registers of one: a gram, or arrays of many elements.

A gram is cut into tiles of the matrix, of which each program sums one. A kernel that walks all its arrays element by
element, as one that folds grams does, is cut anywhere: each program has a run of the elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from graphweave.codegen.arrays import Affine, Array, flatten, strides
from graphweave.codegen.sums import Sum
from graphweave.codegen.triton.axes import power_of_two
from graphweave.codegen.walk import accesses
from graphweave.ir.loop.nodes import (
    Alloc,
    Edges,
    Kernel,
    Lanes,
    Let,
    Role,
    Rows,
    Stmt,
    Store,
    TileGram,
    TileMatMul,
    TileRows,
    Tiles,
)
from graphweave.ir.loop.walk import statements

DOT = 16
"""The least extent of a matrix that `tl.dot` takes."""

LARGEST_ARRAY = 1 << 13
"""Elements of an array of a row, or of an edge, that the registers of a program hold."""

LARGEST_GRAM = 1 << 12
"""Elements of a gram that registers hold beside what else a program does."""

FEWEST = 512
"""Elements of a gram's block, at least: a smaller one takes as many registers, since every warp has a copy."""

RUN = 512
"""Elements of each array in a program, where its arrays are cut."""

SIDE = 64
"""Rows and columns of the tile of a gram in a program, at most, where grams are cut."""


@dataclass(frozen=True, slots=True)
class GramTiles:
    """`blocks` x `rows` x `columns` tiles of `i` x `j` elements."""

    blocks: int
    rows: int
    columns: int
    i: int
    j: int


@dataclass(frozen=True, slots=True)
class Parts:
    """`count` programs for each row. `gram`: how grams are cut; `elements`: how many elements an array that is cut has.

    At most one of the two.
    """

    count: int = 1
    gram: GramTiles | None = None
    elements: int = 0


def parts_of(kernel: Kernel, arrays: Mapping[str, Array], sums: Mapping[str, Sum]) -> Parts:
    """How the programs of a row share out its arrays: a single one does all, if it can."""
    if any(buffer.role is Role.total for buffer in kernel.buffers):
        return Parts()
    wide = [found for found in sums.values() if _room(found.gram, arrays) > LARGEST_GRAM]
    if len(wide) == 1 and wide[0].copy is not None:
        tiles = _tiles(wide[0].gram, arrays)
        return Parts(tiles.blocks * tiles.rows * tiles.columns, gram=tiles)
    elements = _walked_in_order(kernel, arrays)
    return Parts(-(-elements // RUN), elements=elements) if elements > LARGEST_ARRAY else Parts()


def gram_extents(gram: TileGram, arrays: Mapping[str, Array]) -> tuple[int, int]:
    """Rows and columns of each block of a gram."""
    names = (place.buffer if isinstance(place, Rows) else place for place in (gram.x, gram.y))
    i, j = (arrays[name].numel // gram.blocks for name in names)
    return i, j


def _room(gram: TileGram, arrays: Mapping[str, Array]) -> int:
    i, j = gram_extents(gram, arrays)
    return gram.blocks * max(padded(i) * padded(j), FEWEST)


def padded(n: int) -> int:
    """Extent of a matrix in registers."""
    return max(power_of_two(n), DOT)


def _tiles(gram: TileGram, arrays: Mapping[str, Array]) -> GramTiles:
    extents = gram_extents(gram, arrays)
    i, j = (min(padded(n), SIDE) for n in extents)
    return GramTiles(gram.blocks, -(-extents[0] // i), -(-extents[1] // j), i, j)


def _walked_in_order(kernel: Kernel, arrays: Mapping[str, Array]) -> int:
    """Elements of each array of the row, if the kernel does the same for every element, and nothing else; else 0."""
    allocs = {s.name: s for s in kernel.body if isinstance(s, Alloc)}
    sizes = {arrays[name].numel for name in allocs}
    own = [s for s in statements(kernel.body) if isinstance(s, Alloc)]
    if len(sizes) != 1 or len(own) != len(allocs) or any(isinstance(s, _WHOLE) for s in statements(kernel.body)):
        return 0
    size = sizes.pop()
    return size if all(_in_order(s, size, set(allocs), arrays) for s in _leaves(kernel.body)) else 0


_WHOLE = Tiles | TileRows | TileGram | TileMatMul


def _leaves(body: Iterable[Stmt]) -> Iterator[Stmt]:
    for stmt in body:
        if isinstance(stmt, Edges):
            yield from _leaves(stmt.body)
        else:
            yield stmt


def _in_order(stmt: Stmt, size: int, allocs: set[str], arrays: Mapping[str, Array]) -> bool:
    """Whether `stmt` is of the row alone, or of each of `size` elements and touches no other of the same array."""
    touched = [index for name, index in accesses((stmt,)) if name in allocs]
    if not isinstance(stmt, Lanes):
        return not touched and not isinstance(stmt, Store)
    extents = tuple(n for _, n in stmt.lanes)
    if math.prod(extents) != size or any(
        not isinstance(s, Let | Store) and not _is_accum(s, allocs) for s in stmt.body
    ):
        return False
    order = {lane: stride for (lane, n), stride in zip(stmt.lanes, strides(extents), strict=True) if n > 1}
    shapes = {name: arrays[name].shape for name in allocs}
    found = (flatten(index, shapes[name]) for name, index in accesses((stmt,)) if name in allocs)
    return all(not rest and _terms(affine) == order and affine.offset == 0 for affine, rest in found)


def _is_accum(stmt: Stmt, allocs: set[str]) -> bool:
    return getattr(stmt, "buffer", None) in allocs


def _terms(affine: Affine) -> dict[str, int]:
    return {lane: c for lane, c in affine.terms.items() if c}
