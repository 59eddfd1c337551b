"""Feature tiles: a kernel computes some of its features at a time.

    for v: acc[64] = 0; for edges of v: acc[j] += x[u, j] (j < 64); out[v, j] = acc[j]
->  for f < 4: for v: acc[16] = 0; for edges of v: acc[j] += x[u, 16 f + j] (j < 16); out[v, 16 f + j] = acc[j]

A tile *around* the rows, as here, goes through the graph once for each value of f. The rows that edges gather are
narrower then, so that more of them stay in a cache, at the price of reading the graph again (Hu et al., "FeatGraph",
2020, section III-C.1 and figure 6). A tile *within* a row goes through the edges of the row once for each of its
values, so that few accumulators are in use at a time, which fit into registers. Both may stand around each other, and
tiles may cut several feature dimensions (figure 8).

An element is computed as before, so its bits are the same. What is narrower than the features (a weight of an edge) is
computed again for each tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.walk import expressions, mapped, statements, subexpressions
from graphweave.lower.feature_index import refine, total

AROUND, WITHIN_ROW = "f", "r"
"""Names of the lanes that count the tiles around the rows and within a row; of several dimensions with a number."""

_KNOWN = (loop.Accum, loop.Alloc, loop.Comment, loop.Edges, loop.FoldLanes, loop.Lanes, loop.Let, loop.Store)


class NotTiled(Exception):
    """Why a kernel cannot be tiled."""


@dataclass(frozen=True, slots=True)
class FeatureTiles:
    """`around`: features of a tile around the rows, taken together, or one number for each feature dimension. `within`:
    features of a tile within a row, taken together. None has no such tiles."""

    around: int | tuple[int, ...] | None = None
    within: int | None = None


def feature_tiles(kernel: loop.Kernel, tiles: FeatureTiles, shape: Sequence[int]) -> loop.Kernel:
    """`kernel` in tiles; `shape` are the feature dimensions of its results. NotTiled says why it cannot be."""
    width = _width(kernel)
    nests = _nests(kernel, width)
    shape = shape if math.prod(shape) == width else (width,)
    dims = _dims(shape, nests)
    around, within = _sizes(tiles, shape, dims)
    cut = _Cut(dims, around, within)
    if (tiles.around is not None and not cut.sweep) or (tiles.within is not None and not cut.within_row):
        raise NotTiled(f"the tile is all of the {width} features")
    body = _Tiled(cut, width, kernel).body(kernel.body)
    return replace(kernel, body=body, sweep=cut.sweep, within=cut.within_row)


def _width(kernel: loop.Kernel) -> int:
    """The width that tiles divide. NotTiled if there is none."""
    outputs = [b for b in kernel.buffers if b.role in (loop.Role.output, loop.Role.total)]
    if any(b.role is loop.Role.total for b in outputs) or kernel.tile is not None or kernel.stashes:
        raise NotTiled("the kernel has totals, products of rows, or values kept from one pass over edges to the next")
    if not all(isinstance(s, _KNOWN) for s in statements(kernel.body)):
        raise NotTiled("the kernel takes edges in tiles of their own, for products or an online softmax")
    widths = {math.prod(b.shape) for b in outputs}
    if 0 in widths:
        raise NotTiled("the kernel's results have no features")
    if len(widths) != 1:
        raise NotTiled(f"the kernel's results differ in width ({', '.join(map(str, sorted(widths)))} features)")
    return widths.pop()


def _nests(kernel: loop.Kernel, width: int) -> list[tuple[loop.Lane, ...]]:
    """The lanes of each loop over all features."""
    loops = [s.lanes for s in statements(kernel.body) if isinstance(s, loop.Lanes)]
    return [lanes for lanes in loops if math.prod(extent for _, extent in lanes) == width]


def _dims(shape: Sequence[int], nests: Iterable[tuple[loop.Lane, ...]]) -> tuple[int, ...]:
    """The coarsest dimensions of which `shape` and every loop over all features consist."""
    extents = [tuple(extent for _, extent in lanes) for lanes in nests]
    dims = tuple(n for n in refine(shape, extents) if n != 1)
    for own in extents:
        if not _ends(own) <= _ends(dims):
            raise NotTiled(f"loops over the features are {_times(dims)} and {_times(own)}, which no tile cuts alike")
    return dims


def _ends(dims: Sequence[int]) -> set[int]:
    """The numbers of features behind each dimension."""
    return {math.prod(dims[k:]) for k in range(len(dims) + 1)}


def _sizes(tiles: FeatureTiles, shape: Sequence[int], dims: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many of each of `dims` a tile around the rows has, and one within a row."""
    around = dims
    if isinstance(tiles.around, int):
        around = _last(tiles.around, dims)
    elif tiles.around is not None:
        if len(tiles.around) != len(shape):
            many = len(tiles.around)
            raise NotTiled(f"the kernel's results have the feature dimensions {_times(shape)}, and the tile has {many}")
        found: list[int] = []
        rest = list(dims)
        for size, extent in zip(tiles.around, shape, strict=True):
            own: list[int] = []
            while math.prod(own) < extent:
                own.append(rest.pop(0))
            found += _last(size, own)
        around = tuple(found)
    return around, around if tiles.within is None else _last(tiles.within, around)


def _last(size: int, dims: Sequence[int]) -> tuple[int, ...]:
    """How many of each of `dims` the last `size` elements have, row by row. NotTiled if such runs do not fill them."""
    found: list[int] = []
    rest = size
    for extent in reversed(dims):
        taken = math.gcd(rest, extent)
        found.insert(0, taken)
        rest //= taken
        if taken < extent:
            break
    if rest != 1:
        raise NotTiled(f"{size} does not divide feature dimensions of {_times(dims)}")
    return (*(1 for _ in range(len(dims) - len(found))), *found)


def _times(dims: Sequence[int]) -> str:
    return " x ".join(map(str, dims)) or "1"


class _Cut:
    """Each of `dims` n as n / a tiles of a around the rows, and each of these as a / w tiles of w within a row."""

    def __init__(self, dims: tuple[int, ...], around: tuple[int, ...], within: tuple[int, ...]) -> None:
        self.dims, self.within = dims, within
        self._around = around
        self._sweeps = _named(AROUND, [n // a for n, a in zip(dims, around, strict=True)])
        self._rows = _named(WITHIN_ROW, [a // w for a, w in zip(around, within, strict=True)])

    @property
    def sweep(self) -> tuple[loop.Lane, ...]:
        return tuple(lane for lane in self._sweeps if lane[1] > 1)

    @property
    def within_row(self) -> tuple[loop.Lane, ...]:
        return tuple(lane for lane in self._rows if lane[1] > 1)

    def first(self, k: int) -> loop.IndexSum:
        """The position in dimension k at which a tile begins."""
        outer, inner = self._sweeps[k], self._rows[k]
        terms = [(outer[0], self._around[k])] * (outer[1] > 1) + [(inner[0], self.within[k])] * (inner[1] > 1)
        return loop.IndexSum(tuple(terms))

    def begin(self) -> loop.IndexSum:
        """The feature at which a tile begins."""
        return total(_scaled(self.first(k), stride) for k, stride in enumerate(_strides(self.dims)))

    def run(self) -> int:
        """Neighbouring features of a tile, at least so many."""
        size = 1
        for w, n in zip(reversed(self.within), reversed(self.dims), strict=True):
            size *= w
            if w < n:
                break
        return size


def _named(name: str, extents: Sequence[int]) -> list[loop.Lane]:
    counted = sum(extent > 1 for extent in extents)
    return [(name if counted == 1 else f"{name}{k}", extent) for k, extent in enumerate(extents)]


def _strides(dims: Sequence[int]) -> list[int]:
    return [math.prod(dims[k + 1 :]) for k in range(len(dims))]


def _scaled(index: loop.IndexSum, factor: int) -> loop.IndexSum:
    return loop.IndexSum(tuple((name, c * factor) for name, c in index.terms), index.offset * factor)


class _Nest:
    """The lanes of a loop over all features in terms of a tile: each goes over some of the dimensions."""

    def __init__(self, lanes: tuple[loop.Lane, ...], cut: _Cut) -> None:
        self.lanes: list[loop.Lane] = []
        self._of: dict[str, loop.IndexSum] = {}
        self._strides: dict[str, int] = {}
        local: list[tuple[str, int]] = []
        k = 0
        for name, extent in lanes:
            first = k
            while math.prod(cut.dims[first:k]) < extent:
                k += 1
            dims = range(first, k)
            strides = dict(zip(dims, _strides(cut.dims[first:k]), strict=True))
            inner = self._inner(name, dims, cut)
            parts = [_scaled(cut.first(d), strides[d]) for d in dims]
            self._of[name] = total([*parts, loop.IndexSum(tuple((lane, strides[d]) for lane, d in inner))])
            self._strides[name] = math.prod(cut.dims[k:])
            local += inner
        within = _strides(cut.within)
        self.local = loop.IndexSum(tuple((lane, within[d]) for lane, d in local))

    def _inner(self, name: str, dims: range, cut: _Cut) -> list[tuple[str, int]]:
        """Adds the lanes of a tile for `dims`, and gives each with its last dim. Dims that a tile has whole are in the
        lane of those before them."""
        runs: list[tuple[int, int]] = []  # the last dimension, the extent
        for d in dims:
            if cut.within[d] == 1:
                continue
            if runs and runs[-1][0] == d - 1 and cut.within[d] == cut.dims[d]:
                runs[-1] = d, runs[-1][1] * cut.within[d]
            else:
                runs.append((d, cut.within[d]))
        names = [name if i == 0 else f"{name}_{i}" for i in range(len(runs))]
        self.lanes += [(lane, extent) for lane, (_, extent) in zip(names, runs, strict=True)]
        return [(lane, d) for lane, (d, _) in zip(names, runs, strict=True)]

    def __contains__(self, name: str) -> bool:
        return name in self._of

    def index(self, index: loop.IndexSum) -> loop.IndexSum:
        """The same index in terms of the tile."""
        parts = [_scaled(self._of[name], c) if name in self else loop.IndexSum(((name, c),)) for name, c in index.terms]
        return replace(index, terms=total(parts).terms)

    def local_index(self, index: loop.IndexSum) -> loop.IndexSum:
        """An index of an array of all features as one of the array of a tile."""
        own = {name: c for name, c in index.terms if c and self._of.get(name) != loop.IndexSum(())}
        wanted = {name: stride for name, stride in self._strides.items() if self._of[name] != loop.IndexSum(())}
        if own != wanted or (index.offset, index.div, index.mod) != (0, 1, None):
            raise NotTiled("an array of features is read or written in another order than its own")
        return self.local


class _Tiled:
    def __init__(self, cut: _Cut, width: int, kernel: loop.Kernel) -> None:
        self._cut, self._width = cut, width
        self._outputs = {b.name for b in kernel.buffers if b.role is loop.Role.output}
        self._widths = {b.name: math.prod(b.shape) for b in kernel.buffers}
        arrays = [s for s in statements(kernel.body) if isinstance(s, loop.Alloc)]
        self._wide = {s.name for s in arrays if math.prod(s.shape) == width}

    def body(self, body: Iterable[loop.Stmt]) -> tuple[loop.Stmt, ...]:
        return tuple(self._statement(s) for s in body)

    def _statement(self, stmt: loop.Stmt) -> loop.Stmt:
        match stmt:
            case loop.Alloc(name) if name in self._wide:
                return replace(stmt, shape=(math.prod(self._cut.within),))
            case loop.Lanes(lanes) if math.prod(extent for _, extent in lanes) == self._width:
                return self._lanes(stmt)
            case loop.Lanes(body=body):
                return replace(stmt, body=self.body(body))
            case loop.Edges(prefetch=prefetch, body=body):
                return replace(stmt, prefetch=tuple(map(self._prefetch, prefetch)), body=self.body(body))
            case loop.Store(buffer) | loop.Accum(buffer) if buffer in self._outputs | self._wide:
                raise NotTiled("a result is written element by element")
        if self._wide & {
            e.buffer for top in expressions(stmt) for e in subexpressions(top) if isinstance(e, loop.Load)
        }:
            raise NotTiled("a number of an edge or a row is made of all its features")
        if isinstance(stmt, loop.FoldLanes):
            self.body(stmt.body)  # raises where one reads an array of features
        return stmt

    def _lanes(self, stmt: loop.Lanes) -> loop.Lanes:
        nest = _Nest(stmt.lanes, self._cut)
        return loop.Lanes(tuple(nest.lanes), tuple(self._inside(s, nest) for s in stmt.body))

    def _inside(self, stmt: loop.Stmt, nest: _Nest) -> loop.Stmt:
        if isinstance(stmt, loop.Alloc | loop.Edges):
            raise NotTiled("a loop over features has arrays or edges inside")
        if isinstance(stmt, loop.Store | loop.Accum):
            place = self._expr(loop.Load(stmt.buffer, stmt.index), nest)
            assert isinstance(place, loop.Load)
            return replace(stmt, index=place.index, value=self._expr(stmt.value, nest))
        return mapped(stmt, lambda e: self._expr(e, nest), lambda s: self._inside(s, nest))

    def _expr(self, expr: loop.Expr, nest: _Nest) -> loop.Expr:
        match expr:
            case loop.IndexSum():
                return nest.index(expr)
            case loop.Load(buffer, index) if any(isinstance(i, loop.Var) and i.name in nest for i in index):
                return self._expr(loop.Load(buffer, tuple(_as_sum(i, nest) for i in index)), nest)
            case loop.Load(buffer, (loop.IndexSum() as feature,)) if buffer in self._wide:
                return loop.Load(buffer, (nest.local_index(feature),))
            case loop.Var(name) if name in nest:
                raise NotTiled("the number of a feature is itself a value")
        return mapped(expr, lambda e: self._expr(e, nest))

    def _prefetch(self, hint: loop.Prefetch) -> loop.Prefetch:
        if self._widths[hint.buffer] != self._width:
            return hint
        return replace(hint, at=self._cut.begin(), size=self._cut.run())


def _as_sum(index: loop.Expr, nest: _Nest) -> loop.Expr:
    return loop.IndexSum(((index.name, 1),)) if isinstance(index, loop.Var) and index.name in nest else index
