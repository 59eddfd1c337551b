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

from graphweave.core.types import AnyFold, Fold, Op
from graphweave.ir.loop import nodes as loop
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

    Besides the buffers of the original kernel they have index buffers `piece_row`, `piece_shift`, `piece_slot` and
    `slot_row`, and scratch: `X_part` [pieces] and `X_whole` [slots] for each array X to which a pass adds, and `X_held`
    [edges of all pieces] for each stash X.
    """

    passes: tuple[tuple[loop.Kernel, loop.Kernel | None], ...]
    finish: loop.Kernel | None

    @property
    def kernels(self) -> tuple[loop.Kernel, ...]:
        """All kernels in the order in which they run."""
        every = [*(k for pair in self.passes for k in pair), self.finish]
        return tuple(k for k in every if k is not None)


def divided(kernel: loop.Kernel, *, anywhere: bool = False) -> Divided | None:
    """The kernels of `kernel` for divided rows; None if it walks no edges.

    A kernel over tiles of rows walks edges in only one of its loops over rows. With `anywhere` the pieces of a slot
    have any numbers, which the column `slot_piece` gives.
    """
    bodies = [kernel.body, *(s.body for s in kernel.body if isinstance(s, loop.TileRows))]
    for body in bodies:
        walks = [s for s in body if isinstance(s, loop.Edges | loop.Tiles)]
        if walks:
            return _Divide(kernel, body, walks, anywhere).done()
    return None


class _Divide:
    def __init__(
        self, kernel: loop.Kernel, body: tuple[loop.Stmt, ...], walks: Sequence[loop.Edges | loop.Tiles], anywhere: bool
    ) -> None:
        """`body` is what contains the `walks`: the kernel's body, or that of one of its loops over rows of a tile."""
        self._kernel, self._body, self._walks = kernel, body, walks
        piece = loop.Let(_PART, kernel.index, loop.Load(SLOT_PIECE, (loop.Var(WITHIN),)))
        self._piece = loop.Var(_PART if anywhere else WITHIN)
        self._of_slot: tuple[loop.Stmt, ...] = (piece,) if anywhere else ()
        self._allocs = {s.name: s for s in body if isinstance(s, loop.Alloc)}
        self._stashes = {s.name: s for s in kernel.stashes}
        self._roles = {s.name: loop.Role.output for s in kernel.body if isinstance(s, loop.TileArray)}
        self._roles |= {b.name: b.role for b in kernel.buffers}
        self._sums = [dict(self._added(walk.body)) for walk in walks]
        self._raises = [[s for s in walk.body if isinstance(s, loop.Raise)] for walk in walks]

    def done(self) -> Divided:
        passes = tuple((self._of_pieces(i), self._of_parts(i)) for i in range(len(self._walks)))
        return Divided(passes, self._of_slots())

    # -------------------------------------------------------- the kernels

    def _of_pieces(self, i: int) -> loop.Kernel:
        kernel, walk = self._kernel, self._walks[i]
        at, index = loop.Var(PIECE), kernel.index
        begin = [
            loop.Let(kernel.row, index, loop.Load("piece_row", (at,))),
            loop.Let(SHIFT, index, loop.Load("piece_shift", (at,))),
        ]
        if any(self._sums[:i]):
            begin.append(loop.Let(_SLOT, index, loop.Load("piece_slot", (at,))))
        before = _without(self._rows(self._body[: self._body.index(walk)]), self._roles)
        edges = on_pieces(walk, self._stashes, index)
        added = [*self._sums[i], *(r.reference for r in self._raises[i])]
        stores = [self._copy(f"{name}_part", at, name) for name in added]
        return self._make_kernel(f"pass_{i}", PIECE, (*begin, *before, edges, *stores))

    def _of_parts(self, i: int) -> loop.Kernel | None:
        if not self._sums[i]:
            return None
        relative = {s.buffer: (r.reference, s) for r in self._raises[i] for s in r.sums}
        starts, adds, later, stores = [], [], [], []
        for name, fold in self._sums[i].items():
            starts.append(self._empty(name, fold))
            stores.append(self._copy(f"{name}_whole", loop.Var(_SLOT), name))
            if name in relative:
                later.append(self._relative(*relative[name]))
            else:
                lanes, at = self._lanes(name)
                adds += nest(lanes, [loop.Accum(name, at, fold, loop.Load(f"{name}_part", (self._piece, *at)))])
        if not relative:
            edges: loop.Stmt = loop.Edges(WITHIN, SLOTS, _SLOT, (), (*self._of_slot, *adds))
            return self._make_kernel(f"fold_{i}", _SLOT, (*starts, edges, *stores))
        starts += [self._allocs[r.reference] for r in self._raises[i]]
        first, second = (loop.Edges(WITHIN, SLOTS, _SLOT, (), (*self._of_slot, *body), _RUN) for body in (adds, later))
        raises = (replace(r, tile=_RUN) for r in self._raises[i])
        edges = loop.Tiles(_RUN, _RUN_PIECES, SLOTS, _SLOT, (first, *raises, second))
        return self._make_kernel(f"fold_{i}", _SLOT, (*starts, edges, *stores))

    def _of_slots(self) -> loop.Kernel | None:
        kernel = self._kernel
        row = loop.Let(kernel.row, kernel.index, loop.Load("slot_row", (loop.Var(_SLOT),)))
        if kernel.tile is not None:
            tiles = tile_of_slots(kernel, {self._body: tuple(self._rows(self._body))}, row, _SLOT)
            return replace(self._make_kernel("finish", _SLOT, tiles), tile=kernel.tile)
        rows = self._rows(self._body)
        results = [name for name, role in self._roles.items() if role in (loop.Role.output, loop.Role.total)]
        written = {s.buffer for s in statements(rows) if isinstance(s, loop.Store | loop.Accum)}
        return self._make_kernel("finish", _SLOT, (row, *rows)) if written.intersection(results) else None

    def _rows(self, body: Iterable[loop.Stmt]) -> list[loop.Stmt]:
        """`body` with each of its passes replaced by loads of what it has folded."""
        out: list[loop.Stmt] = []
        for stmt in body:
            if isinstance(stmt, loop.Edges | loop.Tiles):
                for name in self._sums[self._walks.index(stmt)]:
                    lanes, at = self._lanes(name)
                    out += nest(lanes, [loop.Store(name, at, loop.Load(f"{name}_whole", (loop.Var(_SLOT), *at)))])
            elif not isinstance(stmt, loop.Comment):
                out.append(stmt)
        return out

    # -------------------------------------------------------- parts of the kernels

    def _added(self, body: Iterable[loop.Stmt]) -> Iterator[tuple[str, AnyFold]]:
        """Arrays of the row to which a pass adds, with the fold."""
        for stmt in statements(body):
            if isinstance(stmt, loop.Accum) and stmt.buffer in self._allocs:
                yield stmt.buffer, stmt.fold
            elif isinstance(stmt, loop.TileGram) and stmt.out in self._allocs:
                yield stmt.out, Fold.sum

    def _empty(self, name: str, fold: AnyFold) -> loop.Alloc:
        alloc = self._allocs[name]
        return replace(alloc, fill=identity(fold, alloc.dtype).value)

    def _relative(self, reference: str, sum_: loop.Rescaled) -> loop.Stmt:
        """Adds a part, relative to its piece's reference, to the sum, which is relative to that of all pieces so far.

        The part of a piece whose scores are all -inf is NaN. It counts as 0, unless the scores of all pieces are -inf.
        """
        dtype = self._allocs[reference].dtype
        part = loop.Load(f"{sum_.buffer}_part", (self._piece, *sum_.index))
        own, now = loop.Load(f"{reference}_part", (self._piece, sum_.of)), loop.Load(reference, (sum_.of,))
        zero, alike = loop.Lit(0.0, dtype), loop.Call(Op.eq, (own, now))
        below = loop.Call(Op.where, (alike, zero, loop.Call(Op.sub, (own, now))))
        nothing = loop.Call(Op.eq, (own, loop.Lit(-math.inf, dtype)))
        other = loop.Call(Op.where, (nothing, zero, loop.Call(Op.mul, (part, loop.Call(Op.exp, (below,))))))
        value = loop.Call(Op.where, (alike, part, other))
        return nest(sum_.lanes, [loop.Accum(sum_.buffer, sum_.index, Fold.sum, value)])[0]

    def _lanes(self, name: str) -> tuple[tuple[tuple[str, int], ...], tuple[loop.Expr, ...]]:
        lanes = tuple((f"{name}_{d}", n) for d, n in enumerate(self._allocs[name].shape))
        return lanes, tuple(loop.Var(lane) for lane, _ in lanes)

    def _copy(self, buffer: str, row: loop.Var, name: str) -> loop.Stmt:
        lanes, at = self._lanes(name)
        return nest(lanes, [loop.Store(buffer, (row, *at), loop.Load(name, at))])[0]

    def _make_kernel(self, name: str, row: str, body: tuple[loop.Stmt, ...]) -> loop.Kernel:
        """The kernel with `body` over pieces or slots, with the buffers and CSRs that the body uses."""
        kernel, used = self._kernel, set(_named(body))
        own = {PIECE: NUM_PIECES, _SLOT: NUM_SLOTS}
        indices = {"piece_row": PIECE, "piece_shift": PIECE, "piece_slot": PIECE, "slot_row": _SLOT}
        buffers = [b for b in kernel.buffers if b.name in used]
        buffers += [
            loop.Buffer(n, loop.Role.index, kernel.index, own[of], ()) for n, of in indices.items() if n in used
        ]
        if SLOT_PIECE in used:
            buffers.append(loop.Buffer(SLOT_PIECE, loop.Role.column, kernel.index, NUM_PIECES, ()))
        scratch: list[tuple[str, loop.Alloc | loop.Stash, str]]
        scratch = [(f"{a.name}_part", a, NUM_PIECES) for a in self._allocs.values()]
        scratch += [(f"{a.name}_whole", a, NUM_SLOTS) for a in self._allocs.values()]
        scratch += [(kept_name(s.name), s, NUM_HELD) for s in self._stashes.values()]
        stored = {s.buffer for s in statements(body) if isinstance(s, loop.Store)}
        for scratch_name, array, rows in scratch:
            if scratch_name in used:
                role = loop.Role.output if scratch_name in stored else loop.Role.input
                buffers.append(loop.Buffer(scratch_name, role, array.dtype, rows, array.shape))
        csrs = tuple(csr for csr in (*kernel.csrs, loop.Csr(PIECES), loop.Csr(SLOTS)) if csr.name in used)
        every = (NUM_PIECES, NUM_SLOTS, NUM_HELD)
        sizes = (own[row], *(size for size in every if size != own[row]), *kernel.sizes)
        return loop.Kernel(
            f"{kernel.name}_{name}", row, sizes, kernel.index, csrs, tuple(buffers), (), body, kernel.header,
            vectors=kernel.vectors,
        )  # fmt: skip


def _without(body: Iterable[loop.Stmt], roles: dict[str, loop.Role]) -> list[loop.Stmt]:
    """`body` without its stores to outputs and totals."""
    out: list[loop.Stmt] = []
    for stmt in body:
        if isinstance(stmt, loop.Store | loop.Accum) and roles.get(stmt.buffer) in (loop.Role.output, loop.Role.total):
            continue
        if isinstance(stmt, loop.Lanes):
            inner = tuple(_without(stmt.body, roles))
            if not inner:
                continue
            stmt = loop.Lanes(stmt.lanes, inner)
        out.append(stmt)
    return out


def _named(body: Iterable[loop.Stmt]) -> Iterator[str]:
    """Buffers and CSRs that `body` reads, writes or walks."""
    for stmt in statements(body):
        if isinstance(stmt, loop.Store | loop.Accum):
            yield stmt.buffer
        elif isinstance(stmt, loop.Edges | loop.Tiles):
            yield stmt.csr
        elif isinstance(stmt, loop.TileMatMul):
            yield from (stmt.w, *_parameters(stmt.x, stmt.out))
        elif isinstance(stmt, loop.TileGram):
            yield from (stmt.out, *_parameters(stmt.x, stmt.y))
        for top in expressions(stmt):
            for expr in subexpressions(top):
                if isinstance(expr, loop.Load):
                    yield expr.buffer
                elif isinstance(expr, loop.Degree):
                    yield expr.csr


def _parameters(*places: loop.Place) -> Iterator[str]:
    """Buffers and columns of the rows that products gather or scatter."""
    for place in places:
        if isinstance(place, loop.Rows):
            yield from (place.buffer, place.column)
