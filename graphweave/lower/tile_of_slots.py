"""Finishes divided rows in a kernel over tiles of rows: a tile of slots, whose rows are at arbitrary addresses.

    rows of t { a[v, c] = f(x[v, c]) }      rows of t { let v = slot_row[slot]; a[slot, c] = f(x[v, c]) }
    matmul y = a, w of t                ->  matmul y_near = a, w of t
                                            rows of t { let v = slot_row[slot]; y[v, c] = y_near[slot, c] }

Arrays of the tile are indexed by slots. Buffers of the kernel's rows that a product reads are copied to such an array
before the product; those that it writes are copied from one afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.walk import Index, relocated
from graphweave.lower.blocks import nest


def tile_of_slots(
    kernel: loop.Kernel, bodies: Mapping[tuple[loop.Stmt, ...], tuple[loop.Stmt, ...]], row: loop.Let, slot: str
) -> tuple[loop.Stmt, ...]:
    """The body of `kernel` over slots. `bodies` maps bodies of loops that walked edges to those that replace them;
    `row` binds the row of a slot."""
    assert kernel.tile is not None
    return tuple(_OfSlots(kernel, row, slot).body(bodies))


class _OfSlots:
    def __init__(self, kernel: loop.Kernel, row: loop.Let, slot: str) -> None:
        assert kernel.tile is not None
        self._kernel, self._let, self._slot, self._tile = kernel, row, slot, kernel.tile[0]
        self._arrays = {s.name for s in kernel.body if isinstance(s, loop.TileArray)}
        self._buffers = {b.name: b for b in kernel.buffers if b.rows == kernel.sizes[0]}
        self._near: dict[str, str] = {}  # buffers that products read: the arrays that hold their rows

    def body(self, bodies: Mapping[tuple[loop.Stmt, ...], tuple[loop.Stmt, ...]]) -> Iterable[loop.Stmt]:
        for stmt in self._kernel.body:
            match stmt:
                case loop.TileRows(tile, body):
                    rows = (relocated(s, self._in_slot) for s in bodies.get(body, body))
                    yield loop.TileRows(tile, (self._let, *rows))
                case loop.TileMatMul(x=str(x), out=str(out), add=str() | None as add):
                    reads = [name for name in (x, add) if name is not None]
                    yield from self._read(reads)
                    into = self._array(out) if out in self._buffers else out
                    if into != out:
                        yield self._declared(out)
                    added = None if add is None else self._place(add)
                    yield replace(stmt, out=into, x=self._place(x), add=added)
                    if into != out:
                        yield self._copied(out, self._kernel.row, into, self._slot)
                case loop.TileGram(x=str(x), y=str(y)):
                    yield from self._read([x, y])
                    yield replace(stmt, x=self._place(x), y=self._place(y))
                case _:
                    yield stmt

    def _read(self, names: Iterable[str]) -> Iterable[loop.Stmt]:
        for name in names:
            if name in self._buffers and name not in self._near:
                self._near[name] = self._array(name)
                yield self._declared(name)
                yield self._copied(self._near[name], self._slot, name, self._kernel.row)

    def _place(self, name: str) -> str:
        return self._near.get(name, name)

    def _array(self, buffer: str) -> str:
        return f"{buffer}_near"

    def _declared(self, name: str) -> loop.TileArray:
        buffer = self._buffers[name]
        return loop.TileArray(self._array(name), self._tile, buffer.dtype, buffer.shape)

    def _copied(self, to: str, to_row: str, source: str, source_row: str) -> loop.Stmt:
        """A loop that copies each row of `source` to `to`."""
        buffer: loop.Buffer = self._buffers[source if source in self._buffers else to]
        lanes = tuple((f"{buffer.name}_{d}", n) for d, n in enumerate(buffer.shape))
        at: tuple[loop.Expr, ...] = tuple(loop.Var(lane) for lane, _ in lanes)
        store = loop.Store(to, (loop.Var(to_row), *at), loop.Load(source, (loop.Var(source_row), *at)))
        return loop.TileRows(self._tile, (self._let, *nest(lanes, [store])))

    def _in_slot(self, array: str, index: Index) -> tuple[str, Index]:
        """Arrays of the tile are indexed by slots."""
        return array, (loop.Var(self._slot), *index[1:]) if array in self._arrays else index
