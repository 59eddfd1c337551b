"""Turns a pass over the edges of a row into a pass over the edges of a piece of it.

    edges k in csr[v] { f(k) }
->  edges within in pieces[piece] { let k = within + shift; f(k) }

Positions within the pieces are counted over all pieces, so that scratch for edges of divided rows is no longer than
these rows. Arrays of a tile are indexed by such a position. So are stashes. These become tensors, since several threads
walk a row's edges, and each pass is a kernel of its own. A stash is kept and not computed again, because only expensive
values are stashed. Its tensor has a row for each edge of the divided rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from graphweave.core.types import DType, Op
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.walk import Index, expressions, relocated, statements, subexpressions
from graphweave.lower.blocks import nest

PIECES = "pieces"
"""Name of the CSR with the edges of each piece."""

PIECE, WITHIN, SHIFT = "piece", "within", "shift"
"""Names of the piece (the kernel's row), of a position within the pieces, and of what is added to such a position to
get the one in the rows' CSR."""


def kept_name(stash: str) -> str:
    """The name of the tensor that holds a stash of the divided rows."""
    return f"{stash}_held"


@dataclass(frozen=True, slots=True)
class _Uses:
    """Names of the stashes that a pass stores to, loads from, and multiplies."""

    stored: frozenset[str]
    loaded: frozenset[str]
    multiplied: frozenset[str]
    made: frozenset[str]
    """Those that the pass computes: it stores to them, or they are results of products."""

    def is_local(self, stash: str) -> bool:
        """Whether the pass needs an array for the stash: it stores and loads it, or a product reads or writes it."""
        return stash in self.multiplied or (stash in self.stored and stash in self.loaded)


def on_pieces(
    walk: loop.Edges | loop.Tiles, stashes: Mapping[str, loop.Stash], index: DType
) -> loop.Edges | loop.Tiles:
    """`walk` over the edges of a piece; `index` is the dtype of positions."""
    uses = _uses(walk.body, stashes)
    local = {name: stash for name, stash in stashes.items() if uses.is_local(name)}
    moved = _OnPieces(uses, local, stashes, index)
    if isinstance(walk, loop.Edges):
        return moved.edges(walk)
    before: list[loop.Stmt] = []
    after: list[loop.Stmt] = []
    for name, stash in local.items():
        before.append(loop.TileArray(name, walk.tile, stash.dtype, stash.shape))
        if name not in uses.made:
            before.append(_copied(name, kept_name(name), stash, walk.tile))
        else:
            after.append(_copied(kept_name(name), name, stash, walk.tile))
    body = (*before, *(moved.in_tile(s) for s in walk.body), *after)
    return loop.Tiles(walk.tile, walk.size, PIECES, PIECE, body)


def _uses(body: Iterable[loop.Stmt], stashes: Mapping[str, loop.Stash]) -> _Uses:
    inner = list(statements(body))
    stored = {s.buffer for s in inner if isinstance(s, loop.Store)}
    tops = (top for s in inner for top in expressions(s))
    loaded = {e.buffer for top in tops for e in subexpressions(top) if isinstance(e, loop.Load)}
    products = [s for s in inner if isinstance(s, loop.TileMatMul)]
    results = {s.out for s in products if isinstance(s.out, str)}
    read = {x for s in inner for x in ((s.x,) if isinstance(s, loop.TileMatMul) else _pair(s)) if isinstance(x, str)}
    of = frozenset(stashes)
    return _Uses(of & stored, of & loaded, of & (results | read), of & (stored | results))


def _pair(stmt: loop.Stmt) -> tuple[loop.Place, ...]:
    return (stmt.x, stmt.y) if isinstance(stmt, loop.TileGram) else ()


def _shifted(place: loop.Place) -> loop.Place:
    return replace(place, shift=SHIFT) if isinstance(place, loop.Rows) else place


def _lanes(stash: loop.Stash) -> tuple[tuple[tuple[str, int], ...], tuple[loop.Expr, ...]]:
    lanes = tuple((f"{stash.name}_{d}", n) for d, n in enumerate(stash.shape))
    return lanes, tuple(loop.Var(lane) for lane, _ in lanes)


def _copied(to: str, source: str, stash: loop.Stash, tile: str) -> loop.Stmt:
    lanes, at = _lanes(stash)
    place = (loop.Var(WITHIN), *at)
    return loop.Edges(
        WITHIN, PIECES, PIECE, (), tuple(nest(lanes, [loop.Store(to, place, loop.Load(source, place))])), tile
    )


class _OnPieces:
    """Moves the statements of a pass to pieces. Arrays over positions are indexed by a position within the pieces."""

    def __init__(
        self, uses: _Uses, local: Mapping[str, loop.Stash], stashes: Mapping[str, loop.Stash], index: DType
    ) -> None:
        self._uses, self._local, self._stashes, self._index = uses, local, stashes, index
        self._tiled: set[str] = set()

    def in_tile(self, stmt: loop.Stmt) -> loop.Stmt:
        if isinstance(stmt, loop.TileArray):
            self._tiled.add(stmt.name)
        match stmt:
            case loop.Edges():
                return self.edges(stmt)
            case loop.TileMatMul(x=x, out=out):
                return replace(stmt, x=_shifted(x), out=_shifted(out))
            case loop.TileGram(x=x, y=y):
                return replace(stmt, x=_shifted(x), y=_shifted(y))
        return stmt

    def edges(self, walk: loop.Edges) -> loop.Edges:
        """A loop over edges, moved. Local stashes are arrays of the tile, or without tiles arrays of the edge."""
        if walk.tile is not None:
            self._tiled |= self._local.keys()
        within = loop.CastTo(loop.Var(WITHIN), self._index)
        k = loop.Let(walk.k, self._index, loop.Call(Op.add, (within, loop.Var(SHIFT))))
        body = [k, *(relocated(s, self._place) for s in walk.body)]
        if walk.tile is None:
            for name, stash in self._local.items():
                lanes, at = _lanes(stash)
                body.insert(1, loop.Alloc(name, stash.dtype, stash.shape, None))
                body += nest(lanes, [loop.Store(kept_name(name), (loop.Var(WITHIN), *at), loop.Load(name, at))])
        hints = tuple(replace(p, shift=SHIFT) for p in walk.prefetch)
        return loop.Edges(WITHIN, PIECES, PIECE, hints, tuple(body), walk.tile, walk.unroll)

    def _place(self, buffer: str, index: Index) -> tuple[str, Index]:
        if buffer in self._tiled:
            return buffer, (loop.Var(WITHIN), *index[1:])
        if buffer in self._local:
            return buffer, index[1:]
        if buffer in self._stashes:
            return kept_name(buffer), (loop.Var(WITHIN), *index[1:])
        return buffer, index
