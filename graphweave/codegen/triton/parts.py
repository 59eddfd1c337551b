"""Programs of one row that share out what is too large for the registers of one: a gram, or arrays of many elements.

A gram is cut into tiles of the matrix, of which each program sums one. A kernel that walks all its arrays element by
element, as one that folds grams does, is cut anywhere: each program has a run of the elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from graphweave.codegen.arrays import Affine, Array, flatten, strides
from graphweave.codegen.sums import Sum
from graphweave.codegen.triton.axes import power_of_two
from graphweave.codegen.walk import accesses
from graphweave.ir.loop.nodes import Alloc, Expr, FoldLanes, Kernel, Lanes, Role, Rows, TileGram, TileRows, Tiles
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
    wide = [found for found in sums.values() if gram_room(found.gram, arrays) > LARGEST_GRAM]
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


def gram_room(gram: TileGram, arrays: Mapping[str, Array]) -> int:
    """Elements of a gram's blocks in registers."""
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
    inner = list(statements(kernel.body))
    own = {s.name for s in inner if isinstance(s, Alloc)}
    lanes = [s for s in inner if isinstance(s, Lanes)]
    sizes = {arrays[name].numel for name in own} | {math.prod(n for _, n in s.lanes) for s in lanes}
    touched = [(s, name, index) for s in lanes for name, index in accesses(s.body) if name in own]
    every = [name for name, _ in accesses(kernel.body) if name in own]
    if len(sizes) != 1 or len(touched) != len(every) or any(isinstance(s, FoldLanes | Tiles | TileRows) for s in inner):
        return 0
    return sizes.pop() if all(_in_order(s, flatten(index, arrays[name].shape)) for s, name, index in touched) else 0


def _in_order(stmt: Lanes, at: tuple[Affine, list[tuple[Expr, int]]]) -> bool:
    """Whether the lanes walk the array from its first element to its last."""
    affine, rest = at
    steps = zip(stmt.lanes, strides(tuple(n for _, n in stmt.lanes)), strict=True)
    order = {lane: stride for (lane, n), stride in steps if n > 1}
    return not rest and affine.offset == 0 and {lane: c for lane, c in affine.terms.items() if c} == order
