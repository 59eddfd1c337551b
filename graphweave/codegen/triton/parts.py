"""Shares arrays of a row that are too large for one program's registers, a gram or others, among several programs.

A gram is divided into tiles of its matrix; each program sums one tile. If a kernel walks all its arrays element by
element, as one that folds grams does, each program takes a run of consecutive elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from graphweave.codegen.arrays import Affine, Array, flatten, strides
from graphweave.codegen.sums import Sum
from graphweave.codegen.triton.axes import power_of_two
from graphweave.codegen.walk import accesses
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.walk import statements

DOT = 16
"""The least number of rows or columns of a matrix that `tl.dot` takes."""

LARGEST_ARRAY = 1 << 13
"""An array of a row or edge has at most this many elements in the registers of a program."""

LARGEST_GRAM = 1 << 12
"""A gram of at most this many elements fits into registers together with the other work of a program."""

MIN_BLOCK_ELEMENTS = 512
"""A gram's diagonal block counts as at least this many elements: a smaller one takes as many registers, since every
warp has a copy."""

RUN = 512
"""Elements of each array in a program, if the programs of a row share its arrays."""

MAX_TILE_SIDE = 64
"""The tile of a gram in a program has at most this many rows and columns, if the programs of a row share the gram."""


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
    """`count` programs for each row share a gram, in the tiles `gram`, or all arrays, which have `elements` elements.

    At most one of the two is set.
    """

    count: int = 1
    gram: GramTiles | None = None
    elements: int = 0


def parts_of(kernel: loop.Kernel, arrays: Mapping[str, Array], sums: Mapping[str, Sum]) -> Parts:
    """How the programs of a row share its arrays; one program has them all if they fit."""
    if any(buffer.role is loop.Role.total for buffer in kernel.buffers):
        return Parts()
    wide = [found for found in sums.values() if gram_room(found.gram, arrays) > LARGEST_GRAM]
    if len(wide) == 1 and wide[0].copy is not None:
        tiles = _tiles(wide[0].gram, arrays)
        return Parts(tiles.blocks * tiles.rows * tiles.columns, gram=tiles)
    elements = _walked_in_order(kernel, arrays)
    return Parts(-(-elements // RUN), elements=elements) if elements > LARGEST_ARRAY else Parts()


def gram_extents(gram: loop.TileGram, arrays: Mapping[str, Array]) -> tuple[int, int]:
    """Rows and columns of each block of a gram."""
    names = (place.buffer if isinstance(place, loop.Rows) else place for place in (gram.x, gram.y))
    i, j = (arrays[name].numel // gram.blocks for name in names)
    return i, j


def gram_room(gram: loop.TileGram, arrays: Mapping[str, Array]) -> int:
    """The number of elements that a gram's blocks take in registers."""
    i, j = gram_extents(gram, arrays)
    return gram.blocks * max(padded(i) * padded(j), MIN_BLOCK_ELEMENTS)


def padded(n: int) -> int:
    """Rows or columns in registers of a matrix that has `n`."""
    return max(power_of_two(n), DOT)


def _tiles(gram: loop.TileGram, arrays: Mapping[str, Array]) -> GramTiles:
    extents = gram_extents(gram, arrays)
    i, j = (min(padded(n), MAX_TILE_SIDE) for n in extents)
    return GramTiles(gram.blocks, -(-extents[0] // i), -(-extents[1] // j), i, j)


def _walked_in_order(kernel: loop.Kernel, arrays: Mapping[str, Array]) -> int:
    """The elements of each array of the row if the kernel only does the same for every element, in order; else 0."""
    inner = list(statements(kernel.body))
    own = {s.name for s in inner if isinstance(s, loop.Alloc)}
    lanes = [s for s in inner if isinstance(s, loop.Lanes)]
    sizes = {arrays[name].numel for name in own} | {math.prod(n for _, n in s.lanes) for s in lanes}
    touched = [(s, name, index) for s in lanes for name, index in accesses(s.body) if name in own]
    every = [name for name, _ in accesses(kernel.body) if name in own]
    if (
        len(sizes) != 1
        or len(touched) != len(every)
        or any(isinstance(s, loop.FoldLanes | loop.Tiles | loop.TileRows) for s in inner)
    ):
        return 0
    return sizes.pop() if all(_in_order(s, flatten(index, arrays[name].shape)) for s, name, index in touched) else 0


def _in_order(stmt: loop.Lanes, at: tuple[Affine, list[tuple[loop.Expr, int]]]) -> bool:
    """Whether the lanes walk the array from its first element to its last."""
    affine, rest = at
    steps = zip(stmt.lanes, strides(tuple(n for _, n in stmt.lanes)), strict=True)
    order = {lane: stride for (lane, n), stride in steps if n > 1}
    return not rest and affine.offset == 0 and {lane: c for lane, c in affine.terms.items() if c} == order
