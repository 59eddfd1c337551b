"""Long rows divided among programs: one kernel becomes several, whose rows are pieces of its rows.

    for v: before; for edges of v: acc += f(edge); after
->  for each piece p of a row v: before; for edges of p: acc += f(edge); part[p] = acc
    for v: whole[v] = fold of part[p] over the pieces of v
    for v: before; acc = whole[v]; after

A kernel of n passes over its edges becomes 2 n + 1: what stands before a pass is computed again for each piece, from
values of the row and from what earlier passes have folded. No atomics: pieces are folded in their order, so results are
repeatable. Values of edges are written by the pieces, values of rows at the end.

The pieces of a row are rows of a CSR of their own, whose positions count the edges of all pieces; a `shift` for each
piece gives the position in the row's CSR. Where pieces come from is the caller's (`runtime/row_pieces.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from graphweave.core.types import Fold, Op
from graphweave.ir.loop.nodes import (
    Accum,
    Alloc,
    Buffer,
    Call,
    CastTo,
    Comment,
    Csr,
    Degree,
    Edges,
    Expr,
    Kernel,
    Lanes,
    Let,
    Load,
    Role,
    Stmt,
    Store,
    Tiles,
    Var,
)
from graphweave.ir.loop.types import identity
from graphweave.ir.loop.walk import expressions, statements, subexpressions
from graphweave.lower.blocks import nest

PIECES, SLOTS = "pieces", "slots"
"""CSRs: the edges of each piece, and the pieces of each slot. A slot is a row that is divided."""

_PIECE, _SLOT, _AT = "piece", "slot", "within"
_NUM_PIECES, _NUM_SLOTS = "num_pieces", "num_slots"


@dataclass(frozen=True, slots=True)
class Divided:
    """`passes`: for each pass over the edges the kernel of pieces, and the one that folds them (None if the pass adds
    nothing to its row); then `finish`, over slots.

    Beside buffers of the kernel that they were made of they have index buffers `piece_row`, `piece_shift`, `piece_slot`
    and `slot_row`, and scratch: `X_part` [pieces] and `X_whole` [slots] for each array X that a pass adds to.
    """

    passes: tuple[tuple[Kernel, Kernel | None], ...]
    finish: Kernel


def divided(kernel: Kernel) -> Divided | None:
    """None for a kernel without edges, and for one that multiplies edges by matrices or keeps a stash."""
    walks = [s for s in kernel.body if isinstance(s, Edges)]
    if not walks or kernel.stashes or any(isinstance(s, Tiles) for s in kernel.body):
        return None
    return _Divide(kernel, walks).done()


class _Divide:
    def __init__(self, kernel: Kernel, walks: Sequence[Edges]) -> None:
        self._kernel, self._walks = kernel, walks
        self._allocs = {s.name: s for s in kernel.body if isinstance(s, Alloc)}
        self._roles = {b.name: b.role for b in kernel.buffers}
        self._sums = [dict(self._added(walk.body)) for walk in walks]

    def done(self) -> Divided:
        passes = tuple((self._of_pieces(i), self._of_parts(i)) for i in range(len(self._walks)))
        row = Let(self._kernel.row, self._kernel.index, Load("slot_row", (Var(_SLOT),)))
        body = (row, *self._rows(self._kernel.body))
        return Divided(passes, self._made("finish", _SLOT, body))

    # -------------------------------------------------------- the kernels

    def _of_pieces(self, i: int) -> Kernel:
        kernel, walk = self._kernel, self._walks[i]
        at, index = Var(_PIECE), kernel.index
        begin = [Let(kernel.row, index, Load("piece_row", (at,))), Let("shift", index, Load("piece_shift", (at,)))]
        if any(self._sums[:i]):
            begin.append(Let(_SLOT, index, Load("piece_slot", (at,))))
        before = _without(self._rows(kernel.body[: kernel.body.index(walk)]), self._roles)
        k = Let(walk.k, index, Call(Op.add, (CastTo(Var(_AT), index), Var("shift"))))
        edges = Edges(_AT, PIECES, _PIECE, (), (k, *walk.body))
        stores = [self._copy(f"{name}_part", at, name) for name in self._sums[i]]
        return self._made(f"pass_{i}", _PIECE, (*begin, *before, edges, *stores))

    def _of_parts(self, i: int) -> Kernel | None:
        if not self._sums[i]:
            return None
        starts, adds, stores = [], [], []
        for name, fold in self._sums[i].items():
            alloc = self._allocs[name]
            starts.append(replace(alloc, fill=identity(fold, alloc.dtype).value))
            lanes, at = self._lanes(name)
            adds += nest(lanes, [Accum(name, at, fold, Load(f"{name}_part", (Var(_AT), *at)))])
            stores.append(self._copy(f"{name}_whole", Var(_SLOT), name))
        edges = Edges(_AT, SLOTS, _SLOT, (), tuple(adds))
        return self._made(f"fold_{i}", _SLOT, (*starts, edges, *stores))

    def _rows(self, body: Iterable[Stmt]) -> list[Stmt]:
        """`body` with what its passes have folded in place of the passes."""
        out: list[Stmt] = []
        for stmt in body:
            if isinstance(stmt, Edges):
                for name in self._sums[self._walks.index(stmt)]:
                    lanes, at = self._lanes(name)
                    out += nest(lanes, [Store(name, at, Load(f"{name}_whole", (Var(_SLOT), *at)))])
            elif not isinstance(stmt, Comment):
                out.append(stmt)
        return out

    # -------------------------------------------------------- parts of them

    def _added(self, body: Iterable[Stmt]) -> Iterator[tuple[str, Fold]]:
        """Arrays of the row that a pass adds to."""
        for stmt in statements(body):
            if isinstance(stmt, Accum) and stmt.buffer in self._allocs:
                yield stmt.buffer, stmt.fold

    def _lanes(self, name: str) -> tuple[tuple[tuple[str, int], ...], tuple[Expr, ...]]:
        lanes = tuple((f"{name}_{d}", n) for d, n in enumerate(self._allocs[name].shape))
        return lanes, tuple(Var(lane) for lane, _ in lanes)

    def _copy(self, buffer: str, row: Var, name: str) -> Stmt:
        lanes, at = self._lanes(name)
        return nest(lanes, [Store(buffer, (row, *at), Load(name, at))])[0]

    def _made(self, name: str, row: str, body: tuple[Stmt, ...]) -> Kernel:
        """The kernel of `body` over pieces or slots, with the buffers and CSRs that it names."""
        kernel, used = self._kernel, set(_named(body))
        own = {_PIECE: _NUM_PIECES, _SLOT: _NUM_SLOTS}
        indices = {"piece_row": _PIECE, "piece_shift": _PIECE, "piece_slot": _PIECE, "slot_row": _SLOT}
        buffers = [b for b in kernel.buffers if b.name in used]
        buffers += [Buffer(n, Role.index, kernel.index, own[of], ()) for n, of in indices.items() if n in used]
        stored = {s.buffer for s in statements(body) if isinstance(s, Store)}
        for alloc in self._allocs.values():
            for kind, of in (("part", _PIECE), ("whole", _SLOT)):
                scratch = f"{alloc.name}_{kind}"
                if scratch in used:
                    role = Role.output if scratch in stored else Role.input
                    buffers.append(Buffer(scratch, role, alloc.dtype, own[of], alloc.shape))
        csrs = tuple(csr for csr in (*kernel.csrs, Csr(PIECES), Csr(SLOTS)) if csr.name in used)
        sizes = (own[row], *(size for size in (_NUM_PIECES, _NUM_SLOTS) if size != own[row]), *kernel.sizes)
        return Kernel(f"{kernel.name}_{name}", row, sizes, kernel.index, csrs, tuple(buffers), (), body, kernel.header)


def _without(body: Iterable[Stmt], roles: dict[str, Role]) -> list[Stmt]:
    """`body` without what it writes for others to see."""
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
        elif isinstance(stmt, Edges):
            yield stmt.csr
        for top in expressions(stmt):
            for expr in subexpressions(top):
                if isinstance(expr, Load):
                    yield expr.buffer
                elif isinstance(expr, Degree):
                    yield expr.csr


def of_pieces(buffer: Buffer) -> bool:
    """Whether a buffer of a divided kernel has a row for each piece."""
    return buffer.rows == _NUM_PIECES
