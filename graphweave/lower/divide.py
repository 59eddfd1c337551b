"""Long rows divided among programs: one kernel becomes several, whose rows are pieces of its rows.

    for v: before; for edges of v: acc += f(edge); after
->  for each piece p of a row v: before; for edges of p: acc += f(edge); part[p] = acc
    for v: whole[v] = fold of part[p] over the pieces of v
    for v: before; acc = whole[v]; after

A kernel of n passes over its edges becomes 2 n + 1: what stands before a pass is computed again for each piece, from
values of the row and from what earlier passes have folded. There are no atomics: pieces are folded in their order, so
results are repeatable. Values of edges are written by the pieces, values of rows at the end. Sums of an online softmax
are relative to the maximum of their piece, so they are rescaled when they are folded, as between the tiles of a row.

The pieces of a row are rows of a CSR of their own, whose positions count the edges of all pieces; a `shift` for each
piece gives the position in the row's CSR. The caller provides the pieces (`runtime/row_pieces.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from graphweave.core.types import Fold, Op
from graphweave.ir.loop.nodes import (
    Accum,
    Alloc,
    Buffer,
    Call,
    Comment,
    Csr,
    Degree,
    Edges,
    Expr,
    Kernel,
    Lanes,
    Let,
    Lit,
    Load,
    Place,
    Raise,
    Rescaled,
    Role,
    Rows,
    Stash,
    Stmt,
    Store,
    TileArray,
    TileGram,
    TileMatMul,
    TileRows,
    Tiles,
    Var,
)
from graphweave.ir.loop.types import identity
from graphweave.ir.loop.walk import expressions, statements, subexpressions
from graphweave.lower.blocks import nest
from graphweave.lower.piece_walk import PIECE, PIECES, SHIFT, WITHIN, kept_name, on_pieces
from graphweave.lower.tile_of_slots import tile_of_slots

SLOT_PIECE = "slot_piece"
"""Column of the CSR of slots: a piece, where those of a slot are not numbered one after the other."""

SLOTS = "slots"
"""Name of the CSR with the pieces of each slot. A slot stands for a divided row."""

NUM_PIECES, NUM_SLOTS, NUM_HELD = "num_pieces", "num_slots", "num_held"
"""Names of sizes of divided kernels: numbers of pieces, of slots, and of the edges of all pieces."""

_SLOT, _RUN, _PART = "slot", "run", "part"
_RUN_PIECES = 8
"""Pieces that are folded at a time if their sums are relative to a maximum."""


@dataclass(frozen=True, slots=True)
class Divided:
    """`passes`: for each pass over the edges the kernel over pieces, and the one that folds them (None if the pass adds
    nothing to its row); then `finish`, over slots (None if nothing is left to do).

    Beside the buffers of the original kernel they have index buffers `piece_row`, `piece_shift`, `piece_slot` and
    `slot_row`, and scratch: `X_part` [pieces] and `X_whole` [slots] for each array X to which a pass adds, and `X_held`
    [edges of all pieces] for each stash X.
    """

    passes: tuple[tuple[Kernel, Kernel | None], ...]
    finish: Kernel | None

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels in the order in which they run."""
        every = [*(k for pair in self.passes for k in pair), self.finish]
        return tuple(k for k in every if k is not None)


def divided(kernel: Kernel, *, anywhere: bool = False) -> Divided | None:
    """The kernels of `kernel` for divided rows; None if it walks no edges.

    A kernel over tiles of rows walks edges in only one of its loops over rows. With `anywhere` the pieces of a slot
    have any numbers, which the column `slot_piece` gives.
    """
    bodies = [kernel.body, *(s.body for s in kernel.body if isinstance(s, TileRows))]
    for body in bodies:
        walks = [s for s in body if isinstance(s, Edges | Tiles)]
        if walks:
            return _Divide(kernel, body, walks, anywhere).done()
    return None


class _Divide:
    def __init__(self, kernel: Kernel, body: tuple[Stmt, ...], walks: Sequence[Edges | Tiles], anywhere: bool) -> None:
        """`body` is what contains the `walks`: the kernel's body, or that of one of its loops over rows of a tile."""
        self._kernel, self._body, self._walks = kernel, body, walks
        piece = Let(_PART, kernel.index, Load(SLOT_PIECE, (Var(WITHIN),)))
        self._piece = Var(_PART if anywhere else WITHIN)
        self._of_slot: tuple[Stmt, ...] = (piece,) if anywhere else ()
        self._allocs = {s.name: s for s in body if isinstance(s, Alloc)}
        self._stashes = {s.name: s for s in kernel.stashes}
        self._roles = {s.name: Role.output for s in kernel.body if isinstance(s, TileArray)}
        self._roles |= {b.name: b.role for b in kernel.buffers}
        self._sums = [dict(self._added(walk.body)) for walk in walks]
        self._raises = [[s for s in walk.body if isinstance(s, Raise)] for walk in walks]

    def done(self) -> Divided:
        passes = tuple((self._of_pieces(i), self._of_parts(i)) for i in range(len(self._walks)))
        return Divided(passes, self._of_slots())

    # -------------------------------------------------------- the kernels

    def _of_pieces(self, i: int) -> Kernel:
        kernel, walk = self._kernel, self._walks[i]
        at, index = Var(PIECE), kernel.index
        begin = [Let(kernel.row, index, Load("piece_row", (at,))), Let(SHIFT, index, Load("piece_shift", (at,)))]
        if any(self._sums[:i]):
            begin.append(Let(_SLOT, index, Load("piece_slot", (at,))))
        before = _without(self._rows(self._body[: self._body.index(walk)]), self._roles)
        edges = on_pieces(walk, self._stashes, index)
        added = [*self._sums[i], *(r.reference for r in self._raises[i])]
        stores = [self._copy(f"{name}_part", at, name) for name in added]
        return self._made(f"pass_{i}", PIECE, (*begin, *before, edges, *stores))

    def _of_parts(self, i: int) -> Kernel | None:
        if not self._sums[i]:
            return None
        relative = {s.buffer: (r.reference, s) for r in self._raises[i] for s in r.sums}
        starts, adds, later, stores = [], [], [], []
        for name, fold in self._sums[i].items():
            starts.append(self._empty(name, fold))
            stores.append(self._copy(f"{name}_whole", Var(_SLOT), name))
            if name in relative:
                later.append(self._relative(*relative[name]))
            else:
                lanes, at = self._lanes(name)
                adds += nest(lanes, [Accum(name, at, fold, Load(f"{name}_part", (self._piece, *at)))])
        if not relative:
            edges: Stmt = Edges(WITHIN, SLOTS, _SLOT, (), (*self._of_slot, *adds))
            return self._made(f"fold_{i}", _SLOT, (*starts, edges, *stores))
        starts += [self._allocs[r.reference] for r in self._raises[i]]
        first, second = (Edges(WITHIN, SLOTS, _SLOT, (), (*self._of_slot, *body), _RUN) for body in (adds, later))
        raises = (replace(r, tile=_RUN) for r in self._raises[i])
        edges = Tiles(_RUN, _RUN_PIECES, SLOTS, _SLOT, (first, *raises, second))
        return self._made(f"fold_{i}", _SLOT, (*starts, edges, *stores))

    def _of_slots(self) -> Kernel | None:
        kernel = self._kernel
        row = Let(kernel.row, kernel.index, Load("slot_row", (Var(_SLOT),)))
        if kernel.tile is not None:
            tiles = tile_of_slots(kernel, {self._body: tuple(self._rows(self._body))}, row, _SLOT)
            return replace(self._made("finish", _SLOT, tiles), tile=kernel.tile)
        rows = self._rows(self._body)
        results = [name for name, role in self._roles.items() if role in (Role.output, Role.total)]
        written = {s.buffer for s in statements(rows) if isinstance(s, Store | Accum)}
        return self._made("finish", _SLOT, (row, *rows)) if written.intersection(results) else None

    def _rows(self, body: Iterable[Stmt]) -> list[Stmt]:
        """`body` with each of its passes replaced by loads of what it has folded."""
        out: list[Stmt] = []
        for stmt in body:
            if isinstance(stmt, Edges | Tiles):
                for name in self._sums[self._walks.index(stmt)]:
                    lanes, at = self._lanes(name)
                    out += nest(lanes, [Store(name, at, Load(f"{name}_whole", (Var(_SLOT), *at)))])
            elif not isinstance(stmt, Comment):
                out.append(stmt)
        return out

    # -------------------------------------------------------- parts of the kernels

    def _added(self, body: Iterable[Stmt]) -> Iterator[tuple[str, Fold]]:
        """Arrays of the row to which a pass adds, with the fold."""
        for stmt in statements(body):
            if isinstance(stmt, Accum) and stmt.buffer in self._allocs:
                yield stmt.buffer, stmt.fold
            elif isinstance(stmt, TileGram) and stmt.out in self._allocs:
                yield stmt.out, Fold.sum

    def _empty(self, name: str, fold: Fold) -> Alloc:
        alloc = self._allocs[name]
        return replace(alloc, fill=identity(fold, alloc.dtype).value)

    def _relative(self, reference: str, sum_: Rescaled) -> Stmt:
        """Adds a part, relative to its piece's reference, to the sum, which is relative to that of all pieces so far.

        The part of a piece whose scores are all -inf is NaN. It counts as 0, unless the scores of all pieces are -inf.
        """
        dtype = self._allocs[reference].dtype
        part = Load(f"{sum_.buffer}_part", (self._piece, *sum_.index))
        own, now = Load(f"{reference}_part", (self._piece, sum_.of)), Load(reference, (sum_.of,))
        zero, alike = Lit(0.0, dtype), Call(Op.eq, (own, now))
        below = Call(Op.where, (alike, zero, Call(Op.sub, (own, now))))
        nothing = Call(Op.eq, (own, Lit(-math.inf, dtype)))
        other = Call(Op.where, (nothing, zero, Call(Op.mul, (part, Call(Op.exp, (below,))))))
        value = Call(Op.where, (alike, part, other))
        return nest(sum_.lanes, [Accum(sum_.buffer, sum_.index, Fold.sum, value)])[0]

    def _lanes(self, name: str) -> tuple[tuple[tuple[str, int], ...], tuple[Expr, ...]]:
        lanes = tuple((f"{name}_{d}", n) for d, n in enumerate(self._allocs[name].shape))
        return lanes, tuple(Var(lane) for lane, _ in lanes)

    def _copy(self, buffer: str, row: Var, name: str) -> Stmt:
        lanes, at = self._lanes(name)
        return nest(lanes, [Store(buffer, (row, *at), Load(name, at))])[0]

    def _made(self, name: str, row: str, body: tuple[Stmt, ...]) -> Kernel:
        """The kernel with `body` over pieces or slots, with the buffers and CSRs that the body uses."""
        kernel, used = self._kernel, set(_named(body))
        own = {PIECE: NUM_PIECES, _SLOT: NUM_SLOTS}
        indices = {"piece_row": PIECE, "piece_shift": PIECE, "piece_slot": PIECE, "slot_row": _SLOT}
        buffers = [b for b in kernel.buffers if b.name in used]
        buffers += [Buffer(n, Role.index, kernel.index, own[of], ()) for n, of in indices.items() if n in used]
        if SLOT_PIECE in used:
            buffers.append(Buffer(SLOT_PIECE, Role.column, kernel.index, NUM_PIECES, ()))
        scratch: list[tuple[str, Alloc | Stash, str]]
        scratch = [(f"{a.name}_part", a, NUM_PIECES) for a in self._allocs.values()]
        scratch += [(f"{a.name}_whole", a, NUM_SLOTS) for a in self._allocs.values()]
        scratch += [(kept_name(s.name), s, NUM_HELD) for s in self._stashes.values()]
        stored = {s.buffer for s in statements(body) if isinstance(s, Store)}
        for scratch_name, array, rows in scratch:
            if scratch_name in used:
                role = Role.output if scratch_name in stored else Role.input
                buffers.append(Buffer(scratch_name, role, array.dtype, rows, array.shape))
        csrs = tuple(csr for csr in (*kernel.csrs, Csr(PIECES), Csr(SLOTS)) if csr.name in used)
        every = (NUM_PIECES, NUM_SLOTS, NUM_HELD)
        sizes = (own[row], *(size for size in every if size != own[row]), *kernel.sizes)
        return Kernel(
            f"{kernel.name}_{name}", row, sizes, kernel.index, csrs, tuple(buffers), (), body, kernel.header,
            vectors=kernel.vectors,
        )  # fmt: skip


def _without(body: Iterable[Stmt], roles: dict[str, Role]) -> list[Stmt]:
    """`body` without its stores to outputs and totals."""
    out: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Store | Accum) and roles.get(stmt.buffer) in (Role.output, Role.total):
            continue
        if isinstance(stmt, Lanes):
            inner = tuple(_without(stmt.body, roles))
            if not inner:
                continue
            stmt = Lanes(stmt.lanes, inner)
        out.append(stmt)
    return out


def _named(body: Iterable[Stmt]) -> Iterator[str]:
    """Buffers and CSRs that `body` reads, writes or walks."""
    for stmt in statements(body):
        if isinstance(stmt, Store | Accum):
            yield stmt.buffer
        elif isinstance(stmt, Edges | Tiles):
            yield stmt.csr
        elif isinstance(stmt, TileMatMul):
            yield from (stmt.w, *_parameters(stmt.x, stmt.out))
        elif isinstance(stmt, TileGram):
            yield from (stmt.out, *_parameters(stmt.x, stmt.y))
        for top in expressions(stmt):
            for expr in subexpressions(top):
                if isinstance(expr, Load):
                    yield expr.buffer
                elif isinstance(expr, Degree):
                    yield expr.csr


def _parameters(*places: Place) -> Iterator[str]:
    """Buffers and columns of the rows that products gather or scatter."""
    for place in places:
        if isinstance(place, Rows):
            yield from (place.buffer, place.column)
