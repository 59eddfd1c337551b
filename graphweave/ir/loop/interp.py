"""Slow reference interpreter of the loop IR: one scalar at a time, every scalar a torch tensor of its own dtype.

Operators therefore mean exactly what they mean in torch, and values are rounded where the kernel rounds them (except
that a product may be added to an accumulator in one step).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from graphweave.core.types import AnyFold, DType, Fold, Op, OwnFold
from graphweave.ir.fold_rows import value_of
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.types import identity
from graphweave.ir.operator_calls import call_of
from graphweave.ir.philox import uniform

_TORCH = {
    DType.f64: torch.float64, DType.f32: torch.float32, DType.f16: torch.float16, DType.bf16: torch.bfloat16,
    DType.i64: torch.int64, DType.i32: torch.int32, DType.i16: torch.int16, DType.i8: torch.int8,
    DType.u8: torch.uint8, DType.bool: torch.bool,
}  # fmt: skip
FOLDS: dict[Fold, Callable[..., Tensor]] = {fold: call_of(fold.op) for fold in Fold}
"""The function of two tensors that each fold repeats."""


def _combined(fold: AnyFold, x: Tensor, y: Tensor) -> Tensor:
    return value_of(fold.combine, x=x, y=y) if isinstance(fold, OwnFold) else FOLDS[fold](x, y)


def run(kernel: loop.Kernel, buffers: dict[str, Tensor], csrs: dict[str, Tensor], sizes: dict[str, int]) -> None:
    """Runs a well-formed kernel on tensors by name, and writes outputs and totals in place.

    `csrs` has the indptr of each CSR that has one. Row counts of the kernel, of runs and of items are read from
    `sizes`.
    """
    for buffer in kernel.buffers:
        if buffer.role is loop.Role.total:
            assert buffer.fold is not None
            buffers[buffer.name].fill_(identity(buffer.fold, buffer.dtype).value)
    rows = sizes[kernel.sizes[0]]
    runs = ((csr.name, sizes[csr.positions]) for csr in kernel.csrs if csr.positions is not None)
    csrs = csrs | {name: torch.arange(rows + 1) * (count // max(rows, 1)) for name, count in runs}
    for item in range(1 if kernel.items is None else sizes[kernel.items] // max(rows, 1)):
        mine = {b.name: _of_item(b, buffers[b.name], item, sizes) for b in kernel.buffers}
        for known in _steps(kernel.sweep):
            _rows(kernel, mine, csrs, rows, known)


def _of_item(buffer: loop.Buffer, tensor: Tensor, item: int, sizes: Mapping[str, int]) -> Tensor:
    """The rows of a buffer that the kernel's body sees for an item."""
    if not buffer.items:
        return tensor
    return tensor[item] if buffer.rows is None else tensor[item * sizes[buffer.rows] :][: sizes[buffer.rows]]


def _steps(lanes: tuple[loop.Lane, ...]) -> Iterator[dict[str, Tensor]]:
    """Every combination of values of `lanes`; the last lane varies fastest."""
    for values in itertools.product(*(range(extent) for _, extent in lanes)):
        yield {name: torch.tensor(i) for (name, _), i in zip(lanes, values, strict=True)}


def _rows(
    kernel: loop.Kernel, buffers: dict[str, Tensor], csrs: dict[str, Tensor], rows: int, known: dict[str, Tensor]
) -> None:
    """Runs all rows for one combination of the sweep's lanes, whose values are `known`."""
    if kernel.tile is not None:
        tile, size = kernel.tile
        for first in range(0, rows, size):
            frame = _Frame(dict(buffers), csrs, kernel, dict(known))
            frame.tiles[tile] = range(first, min(first + size, rows))
            frame.block(kernel.body)
        return
    for row in range(rows):
        for inner in _steps(kernel.within):
            _Frame(dict(buffers), csrs, kernel, known | inner).row(row, kernel.body)


@dataclass
class _Frame:
    """One row, or tile of rows, in progress: arrays and scalars by name, the positions of tiles, and the `first`
    position of each array over positions."""

    arrays: dict[str, Tensor]
    csrs: Mapping[str, Tensor]
    kernel: loop.Kernel
    scalars: dict[str, Tensor] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    tiles: dict[str, range] = field(default_factory=dict)
    begun: dict[str, bool] = field(default_factory=dict)  # whether a tile is not the row's first

    def row(self, row: int, body: tuple[loop.Stmt, ...]) -> None:
        """Runs `body` for one row, with stashes of its own."""
        self.scalars[self.kernel.row] = torch.tensor(row)
        for stash in self.kernel.stashes:
            positions = self._positions(stash.csr, self.kernel.row)
            self.first[stash.name] = positions.start
            self.arrays[stash.name] = torch.zeros(len(positions), *stash.shape, dtype=_TORCH[stash.dtype])
        self.block(body)

    def block(self, body: tuple[loop.Stmt, ...]) -> None:
        for stmt in body:
            self._statement(stmt)

    def _statement(self, stmt: loop.Stmt) -> None:
        match stmt:
            case loop.Let(name, dtype, value):
                self.scalars[name] = self.value(value).to(_TORCH[dtype])
            case loop.Alloc(name, dtype, shape, fill):
                self.arrays[name] = torch.full(shape, fill if fill is not None else 0, dtype=_TORCH[dtype])
            case loop.Store(buffer, index, value):
                self.arrays[buffer][self._index(buffer, index)] = self.value(value)
            case loop.Accum(buffer, index, fold, value):
                at, array = self._index(buffer, index), self.arrays[buffer]
                array[at] = _combined(fold, array[at], self.value(value))
            case loop.Raise():
                self._raise(stmt)
            case loop.FoldLanes(name, dtype, fold, lanes, body, value):
                total = torch.tensor(identity(fold, dtype).value, dtype=_TORCH[dtype])
                for _ in self._iterate(lanes):
                    self.block(body)
                    total = FOLDS[fold](total, self.value(value))
                self.scalars[name] = total
            case loop.Lanes(lanes, inner):
                for _ in self._iterate(lanes):
                    self.block(inner)
            case loop.Edges(k, csr, row, _, inner, tile):
                for position in self._positions(csr, row) if tile is None else self.tiles[tile]:
                    self.scalars[k] = torch.tensor(position)
                    self.block(inner)
            case loop.Tiles(tile, size, csr, row, inner):
                positions = self._positions(csr, row)
                for start in range(0, len(positions), size):
                    self.tiles[tile], self.begun[tile] = positions[start : start + size], start > 0
                    self.block(inner)
            case loop.TileRows(tile, inner):
                for here in self.tiles[tile]:
                    self.row(here, inner)
            case loop.TileArray(name, tile, dtype, shape):
                self.first[name] = self.tiles[tile].start
                self.arrays[name] = torch.zeros(len(self.tiles[tile]), *shape, dtype=_TORCH[dtype])
            case loop.TileMatMul() | loop.TileGram():
                self._product(stmt)

    def _raise(self, stmt: loop.Raise) -> None:
        reference = self.arrays[stmt.reference]
        values = torch.stack([self.value(stmt.value) for _ in self._iterate((stmt.lane,))]).reshape(reference.shape)
        raised = ~(values <= reference)
        for sum_ in stmt.sums if self.begun[stmt.tile] else ():
            for _ in self._iterate(sum_.lanes):
                at, i = self._index(sum_.buffer, sum_.index), int(self.value(sum_.of))
                if raised[i]:
                    kept = self.arrays[sum_.buffer][at] * torch.exp(reference[i] - values[i])
                    self.arrays[sum_.buffer][at] = torch.zeros_like(kept) if reference[i] == -torch.inf else kept
        self.arrays[stmt.reference] = torch.maximum(reference, values)

    def _positions(self, csr: str, row: str) -> range:
        indptr, here = self.csrs[csr], int(self.scalars[row])
        return range(int(indptr[here]), int(indptr[here + 1]))

    def _product(self, stmt: loop.TileMatMul | loop.TileGram) -> None:
        x = self._rows(stmt.x, stmt).unflatten(1, (stmt.blocks, -1))
        if isinstance(stmt, loop.TileMatMul):
            w = self.arrays[stmt.w] if stmt.row is None else self.arrays[stmt.w][int(self.scalars[stmt.row])]
            shape = (stmt.blocks, -1, x.shape[2]) if stmt.transposed else (stmt.blocks, x.shape[2], -1)
            x, w = _factors(x, w.reshape(shape).mT if stmt.transposed else w.reshape(shape))
            out = torch.zeros(len(x), stmt.blocks, w.shape[2], dtype=w.dtype)
            if stmt.add is not None:
                out.copy_(self._rows(stmt.add, stmt).view_as(out))
            for i in range(x.shape[2]):
                out.addcmul_(x[:, :, i, None], w[:, i])
            self._put(stmt, out.flatten(1))
        else:
            x, y = _factors(x, self._rows(stmt.y, stmt).unflatten(1, (stmt.blocks, -1)))
            total = self.arrays[stmt.out].view(stmt.blocks, x.shape[2], -1)
            for i in range(len(x)):
                total.addcmul_(x[i, :, :, None], y[i, :, None])

    def _rows(self, place: loop.Place, stmt: loop.TileMatMul | loop.TileGram) -> Tensor:
        """The row at each position of the tile, [positions, elements]: a view if the rows lie one after the other."""
        tile = self.tiles[stmt.tile]
        if isinstance(place, loop.Rows):
            return self.arrays[place.buffer][self._named(place, tile)].flatten(1)
        first = self.first.get(place, 0)  # inputs and outputs begin with row 0
        return self.arrays[place][tile.start - first : tile.stop - first].flatten(1)

    def _named(self, place: loop.Rows, tile: range) -> Tensor:
        shift = 0 if place.shift is None else int(self.scalars[place.shift])
        return self.arrays[place.column][tile.start + shift : tile.stop + shift].long()

    def _put(self, stmt: loop.TileMatMul, rows: Tensor) -> None:
        if isinstance(stmt.out, loop.Rows):
            array = self.arrays[stmt.out.buffer]
            rows = rows.view(len(rows), *array.shape[1:]).to(array.dtype)
            array[self._named(stmt.out, self.tiles[stmt.tile])] = rows
        else:
            self._rows(stmt.out, stmt).copy_(rows)

    def _iterate(self, lanes: tuple[tuple[str, int], ...]) -> Iterator[None]:
        for combination in itertools.product(*(range(extent) for _, extent in lanes)):
            self.scalars.update((name, torch.tensor(i)) for (name, _), i in zip(lanes, combination, strict=True))
            yield

    def _index(self, buffer: str, index: tuple[loop.Expr, ...]) -> tuple[int, ...]:
        parts = [int(self.value(part)) for part in index]
        if buffer in self.first:
            parts[0] -= self.first[buffer]
        if any(part < 0 for part in parts):
            raise IndexError(f"'{buffer}' is indexed with {parts}.")
        return tuple(parts)

    def value(self, expr: loop.Expr) -> Tensor:
        match expr:
            case loop.Var(name):
                return self.scalars[name]
            case loop.Lit(value, dtype):
                return torch.tensor(value, dtype=_TORCH[dtype])
            case loop.Load(buffer, index):
                return self.arrays[buffer][self._index(buffer, index)].clone()
            case loop.Call(Op.where, (condition, yes, no)):
                return self.value(yes if bool(self.value(condition)) else no)  # the other branch may be out of range
            case loop.Call(Op.pow, (base, loop.Lit(exponent, _))):
                return torch.pow(self.value(base), exponent)  # torch rounds some constant exponents differently
            case loop.Call(op, args):
                return call_of(op)(*(self.value(arg) for arg in args))
            case loop.CastTo(x, dtype):
                return self.value(x).to(_TORCH[dtype])
            case loop.IndexSum(terms, offset, div, mod):
                total = (offset + sum(c * int(self.scalars[name]) for name, c in terms)) // div
                return torch.tensor(total if mod is None else total % mod)
            case loop.Uniform(seed, row, size, index, dtype):
                position = self.value(row).to(torch.int64) * size + self.value(index)
                return uniform(self.value(seed), position, _TORCH[dtype])
            case loop.Degree(csr, row):
                here = int(self.value(row))
                return (self.csrs[csr][here + 1] - self.csrs[csr][here]).to(torch.int64)


def _factors(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The factors of a product. If one is of half precision, both are rounded to its type and given as float32."""
    half = next((t.dtype for t in (x, y) if t.dtype in (torch.float16, torch.bfloat16)), None)
    return (x, y) if half is None else (x.to(half).float(), y.to(half).float())
