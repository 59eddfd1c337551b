"""Well-formedness of products of the rows of a tile, and the names that are visible at a statement."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from graphweave.core.types import HALF, DType, Fold, computed
from graphweave.ir.loop.nodes import Kernel, Place, Role, Rows, Store, TileGram, TileMatMul
from graphweave.ir.loop.verify_parameters import fail
from graphweave.ir.loop.walk import statements

INDEX = (DType.i64, DType.i32)
ROWS = ""
"""Stands in place of a CSR for the positions of a tile of rows."""


@dataclass(frozen=True)
class Visible:
    """The names that a statement can see: `types` of all names, `extents` of lanes, shapes of `allocs`, the CSR
    and the tile (None: no tile) of `positions`, the CSR of `tiles`, the positions `around` each tile, and tile and
    shape of `tile_arrays`."""

    types: dict[str, DType]
    extents: dict[str, int] = field(default_factory=dict)
    allocs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    positions: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    tiles: dict[str, str] = field(default_factory=dict)
    around: dict[str, frozenset[str]] = field(default_factory=dict)
    tile_arrays: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    parallel: tuple[str, ...] = ()  # lanes of the enclosing Lanes statements that have more than one iteration

    def inside(self) -> Visible:
        return Visible(
            dict(self.types), dict(self.extents), dict(self.allocs), dict(self.positions), dict(self.tiles),
            dict(self.around), dict(self.tile_arrays), self.parallel,
        )  # fmt: skip

    def enter(self, tile: str, csr: str) -> None:
        self.tiles[tile], self.around[tile] = csr, frozenset(self.positions)

    def within(self, tile: str) -> set[str]:
        """The positions of loops inside the tile."""
        return self.positions.keys() - self.around[tile]


def inside_tile(tile: str, scope: Visible, place: str) -> None:
    if tile not in scope.tiles or scope.within(tile) or scope.extents:
        fail(place, f"belongs into the tile '{tile}', outside its edges and lanes.")


class Products:
    """Verifies the products of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.buffers = {buffer.name: buffer for buffer in kernel.buffers}
        self.stashes = {stash.name: stash for stash in kernel.stashes}
        self.stored = {s.buffer for s in statements(kernel.body) if isinstance(s, Store)}

    def verify(self, stmt: TileMatMul | TileGram, scope: Visible, place: str) -> None:
        inside_tile(stmt.tile, scope, place)
        x = self._tile_row(stmt.x, stmt.tile, scope, place)
        if isinstance(stmt, TileMatMul):
            y = self._tile_row(stmt.out, stmt.tile, scope, place, Role.output)
            if stmt.out in (stmt.x, stmt.w):
                fail(place, f"'{stmt.out}' is both operand and result.")
            self._begun(stmt, y, scope, place)
            whole, numel = stmt.w, self._matrix(stmt, scope, place)
        else:
            y = self._tile_row(stmt.y, stmt.tile, scope, place)
            whole, numel = stmt.out, self._sum(stmt.out, scope, place)
        if stmt.blocks < 1 or x % stmt.blocks or y % stmt.blocks:
            fail(place, f"rows of {x} and {y} elements do not consist of {stmt.blocks} blocks.")
        if numel * stmt.blocks != x * y:
            blocks = "" if stmt.blocks == 1 else f"{stmt.blocks} x "
            fail(place, f"'{whole}' must have {blocks}{x // stmt.blocks} x {y // stmt.blocks} elements (got {numel}).")
        self._element_types(stmt, scope, place)

    def _element_types(self, stmt: TileMatMul | TileGram, scope: Visible, place: str) -> None:
        """Verifies that operands and result have one float type; or one half type and f32, in which products of that
        type are summed."""
        others = (stmt.w, stmt.add or stmt.x) if isinstance(stmt, TileMatMul) else (stmt.y,)
        types = {scope.types[at.buffer if isinstance(at, Rows) else at] for at in (stmt.x, stmt.out, *others)}
        if len({computed(t) for t in types}) > 1 or len(types.intersection(HALF)) > 1 or not types.pop().is_float:
            fail(place, "operands and result must be of one float type, or of one half type and f32.")
        if isinstance(stmt, TileGram) and scope.types[stmt.out] in HALF:
            fail(place, f"a sum of products is f32 (got {scope.types[stmt.out].value}).")

    def _begun(self, stmt: TileMatMul, elements: int, scope: Visible, place: str) -> None:
        """Verifies `add`, with which the sums begin."""
        if isinstance(stmt.add, Rows):
            if stmt.add != stmt.out:
                fail(place, "rows that are named are added to where they lie.")
            if stmt.add.buffer not in self.stored:
                fail(place, f"'{stmt.add.buffer}' is added to, and nothing is stored there.")
        elif stmt.add is not None and self._tile_row(stmt.add, stmt.tile, scope, place) != elements:
            fail(place, f"'{stmt.add}' must have {elements} elements a row.")

    def _matrix(self, stmt: TileMatMul, scope: Visible, place: str) -> int:
        """Number of elements of the matrices by which rows are multiplied."""
        buffer = self.buffers.get(stmt.w)
        if stmt.row is not None:
            if scope.types.get(stmt.row) not in INDEX:
                fail(place, f"'{stmt.row}' is not an index here.")
            if buffer is None or buffer.role is not Role.input or buffer.rows is None:
                fail(place, f"'{stmt.w}' is not an input with rows.")
            return math.prod(buffer.shape)
        if stmt.w in scope.allocs:
            return math.prod(scope.allocs[stmt.w])
        if buffer is None or buffer.role is not Role.input or buffer.rows is not None:
            fail(place, f"'{stmt.w}' is neither shared data nor an alloc of the row.")
        return math.prod(buffer.shape)

    def _sum(self, name: str, scope: Visible, place: str) -> int:
        """Number of elements of the array to which a gram adds."""
        if name in scope.allocs:
            return math.prod(scope.allocs[name])
        buffer = self.buffers.get(name)
        if buffer is None or buffer.role is not Role.total or buffer.fold is not Fold.sum:
            fail(place, f"'{name}' is neither a total that sums nor an alloc of the row.")
        return math.prod(buffer.shape)

    def _tile_row(self, at: Place, tile: str, scope: Visible, place: str, role: Role = Role.input) -> int:
        """Number of elements that a tile array of `tile`, a stash of its CSR or a parameter of its rows has for each
        position."""
        if isinstance(at, Rows):
            return self._named_rows(at, scope, place, role)
        name, buffer, csr = at, self.buffers.get(at), scope.tiles[tile]
        if scope.tile_arrays.get(name, ("", ()))[0] == tile:
            shape = scope.tile_arrays[name][1]
        elif name in self.stashes and self.stashes[name].csr == csr:
            shape = self.stashes[name].shape
        elif csr == ROWS and buffer is not None and buffer.role is role and buffer.rows == self.kernel.sizes[0]:
            shape = buffer.shape
        else:
            of = (
                f"an {'output' if role is Role.output else 'input'} of its rows"
                if csr == ROWS
                else "a stash of its CSR"
            )
            fail(place, f"'{name}' is neither an array of the tile nor {of}.")
        if math.prod(shape) < 1 or not shape:
            fail(place, f"'{name}' must have rows of one element or more (got {shape}).")
        return math.prod(shape)

    def _named_rows(self, at: Rows, scope: Visible, place: str, role: Role) -> int:
        buffer, column = self.buffers.get(at.buffer), self.buffers.get(at.column)
        if column is None or column.role is not Role.column:
            fail(place, f"'{at.column}' is not a column of the kernel.")
        if at.shift is not None and scope.types.get(at.shift) not in INDEX:
            fail(place, f"'{at.shift}' is not an index here.")
        if buffer is None or buffer.role is not role or buffer.rows is None or math.prod(buffer.shape) < 1:
            fail(place, f"'{at.buffer}' is not an {role.name} with rows of one element or more.")
        return math.prod(buffer.shape)
