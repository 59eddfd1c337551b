"""Feature tiles: a kernel goes through the graph once for each tile of its features.

    for v: acc[64] = 0; for edges of v: acc[j] += x[u, j] (j < 64); out[v, j] = acc[j]
->  for f < 4: for v: acc[16] = 0; for edges of v: acc[j] += x[u, 16 f + j] (j < 16); out[v, 16 f + j] = acc[j]

The rows that edges gather are narrower then, so that more of them stay in a cache, at the price of reading the graph
once for each tile (Hu et al., "FeatGraph", 2020, section III-C.1 and figure 6). An element is computed as before, so
its bits are the same. What is narrower than the features (a weight of an edge) is computed again for each tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from graphweave.ir.loop.nodes import (
    Accum,
    Alloc,
    Comment,
    Edges,
    Expr,
    FoldLanes,
    IndexSum,
    Kernel,
    Lane,
    Lanes,
    Let,
    Load,
    Prefetch,
    Role,
    Stmt,
    Store,
    Term,
    Var,
)
from graphweave.ir.loop.walk import expressions, mapped, statements, subexpressions

TILE = "f"
"""Name of the variable that counts the tiles."""


class NotTiled(Exception):
    """Why a kernel cannot be tiled."""


def feature_tiles(kernel: Kernel, size: int) -> Kernel:
    """`kernel` in tiles of `size` features; NotTiled says why it cannot be."""
    width = check_feature_tiles(kernel, size)
    body = _Tiled(width, size, kernel).body(kernel.body)
    return replace(kernel, body=body, sweep=(TILE, width // size))


def check_feature_tiles(kernel: Kernel, size: int) -> int:
    """The width that tiles divide. NotTiled if there is none."""
    outputs = [b for b in kernel.buffers if b.role in (Role.output, Role.total)]
    widths = {math.prod(b.shape) for b in outputs}
    if any(b.role is Role.total for b in outputs) or kernel.tile is not None or kernel.stashes:
        raise NotTiled("the kernel has totals, products of rows, or values kept from one pass over edges to the next")
    if not all(isinstance(s, _KNOWN) for s in statements(kernel.body)):
        raise NotTiled("the kernel takes edges in tiles of their own, for products or an online softmax")
    if len(widths) != 1:
        raise NotTiled(f"the kernel's results differ in width ({', '.join(map(str, sorted(widths)))} features)")
    (width,) = widths
    if size >= width or width % size:
        raise NotTiled(f"{size} does not divide rows of {width} features into several tiles")
    return width


_KNOWN = (Accum, Alloc, Comment, Edges, FoldLanes, Lanes, Let, Store)


@dataclass(frozen=True, slots=True)
class _Split:
    """Lanes that count the features, cut: those of `fixed` are given by the tile, `cut` goes to `extent` in it.

    A tile is one of `parts` to each value of the fixed lanes. `ones` are the lanes of one value, which is 0.
    """

    fixed: tuple[Lane, ...]
    cut: str
    extent: int
    inner: tuple[Lane, ...]
    parts: int
    strides: dict[str, int]
    ones: frozenset[str]

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return ((self.cut, self.extent), *self.inner)

    def index(self, index: IndexSum) -> IndexSum:
        """The same index in terms of the tile."""
        of = {name: c for name, c in index.terms if name not in self.ones}
        mine = {name: of.pop(name, 0) for name in self.strides}
        rest: tuple[Term, ...] = tuple(of.items())
        fixed = [(name, mine[name]) for name, _ in self.fixed]
        kept = tuple((name, mine[name]) for name, _ in self.lanes if mine[name])
        step = mine[self.cut]
        if all(c * self.strides[self.cut] == step * self.strides[name] for name, c in fixed):
            tile = ((TILE, step * self.extent),) if step else ()
            return replace(index, terms=(*rest, *tile, *kept))
        last, unit = self.fixed[-1][0], self.strides[self.fixed[-1][0]]
        rows = all(c * unit == mine[last] * self.strides[name] for name, c in fixed)
        if not kept and not rest and rows and mine[last] == 1 and index.offset == 0:
            return replace(index, terms=((TILE, 1),), div=index.div * self.parts)
        raise NotTiled("a value is indexed by some of the feature dimensions in a way that tiles cannot follow")

    def local(self, index: IndexSum) -> IndexSum:
        """An index of an array of all features as one of the array of a tile."""
        same = {name: c for name, c in index.terms if c and name not in self.ones} == self.strides
        if not same or (index.offset, index.div, index.mod) != (0, 1, None):
            raise NotTiled("an array of features is read or written in another order than its own")
        return IndexSum(tuple((name, self.strides[name]) for name, _ in self.lanes))


def _split(every: tuple[Lane, ...], size: int) -> _Split:
    ones = frozenset(name for name, extent in every if extent == 1)
    lanes = tuple(lane for lane in every if lane[0] not in ones)
    stride, strides = 1, dict[str, int]()
    for name, extent in reversed(lanes):
        strides[name] = stride
        stride *= extent
    for i, (name, extent) in enumerate(lanes):
        inner = strides[name]
        if size % inner == 0 and extent % (size // inner) == 0:
            cut = size // inner
            return _Split(lanes[:i], name, cut, lanes[i + 1 :], extent // cut, strides, ones)
    extents = " x ".join(str(extent) for _, extent in lanes)
    raise NotTiled(f"{size} does not divide the feature dimensions {extents}")


def _as_sum(index: Expr, split: _Split) -> Expr:
    return IndexSum(((index.name, 1),)) if isinstance(index, Var) and index.name in split.strides else index


class _Tiled:
    def __init__(self, width: int, size: int, kernel: Kernel) -> None:
        self._width, self._size = width, size
        self._outputs = {b.name for b in kernel.buffers if b.role is Role.output}
        self._widths = {b.name: math.prod(b.shape) for b in kernel.buffers}
        arrays = [s for s in statements(kernel.body) if isinstance(s, Alloc)]
        self._wide = {s.name for s in arrays if math.prod(s.shape) == width}

    def body(self, body: Iterable[Stmt]) -> tuple[Stmt, ...]:
        return tuple(self._statement(s) for s in body)

    def _statement(self, stmt: Stmt) -> Stmt:
        match stmt:
            case Alloc(name) if name in self._wide:
                return replace(stmt, shape=(self._size,))
            case Lanes(lanes) if math.prod(extent for _, extent in lanes) == self._width:
                return self._lanes(stmt)
            case Lanes(body=body):
                return replace(stmt, body=self.body(body))
            case Edges(prefetch=prefetch, body=body):
                return replace(stmt, prefetch=tuple(map(self._prefetch, prefetch)), body=self.body(body))
            case Store(buffer) | Accum(buffer) if buffer in self._outputs | self._wide:
                raise NotTiled("a result is written element by element")
        if self._wide & {e.buffer for top in expressions(stmt) for e in subexpressions(top) if isinstance(e, Load)}:
            raise NotTiled("a number of an edge or a row is made of all its features")
        if isinstance(stmt, FoldLanes):
            self.body(stmt.body)  # raises where one reads an array of features
        return stmt

    def _lanes(self, stmt: Lanes) -> Lanes:
        split = _split(stmt.lanes, self._size)
        return Lanes(split.lanes, tuple(self._inside(s, split) for s in stmt.body))

    def _inside(self, stmt: Stmt, split: _Split) -> Stmt:
        if isinstance(stmt, Alloc | Edges):
            raise NotTiled("a loop over features has arrays or edges inside")
        if isinstance(stmt, Store | Accum):
            place = self._expr(Load(stmt.buffer, stmt.index), split)
            assert isinstance(place, Load)
            return replace(stmt, index=place.index, value=self._expr(stmt.value, split))
        return mapped(stmt, lambda e: self._expr(e, split), lambda s: self._inside(s, split))

    def _expr(self, expr: Expr, split: _Split) -> Expr:
        match expr:
            case IndexSum():
                return split.index(expr)
            case Load(buffer, index) if any(isinstance(i, Var) and i.name in split.strides for i in index):
                return self._expr(Load(buffer, tuple(_as_sum(i, split) for i in index)), split)
            case Load(buffer, (IndexSum() as feature,)) if buffer in self._wide:
                return Load(buffer, (split.local(feature),))
            case Var(name) if name in split.strides or name in split.ones:
                raise NotTiled("the number of a feature is itself a value")
        return mapped(expr, lambda e: self._expr(e, split))

    def _prefetch(self, hint: Prefetch) -> Prefetch:
        if self._widths[hint.buffer] != self._width:
            return hint
        return replace(hint, at=IndexSum(((TILE, self._size),)), size=self._size)
