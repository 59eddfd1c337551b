"""Well-formedness of loop-IR kernels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from graphweave.core.errors import IRError
from graphweave.core.numbers import holds
from graphweave.core.types import DType, Op
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.indices import bounds, lanes_of, loads
from graphweave.ir.loop.types import POSITION, dtype_of, parameter_types, supports
from graphweave.ir.loop.verify_parameters import PlacedError, fail, one_line, verify_parameters
from graphweave.ir.loop.verify_products import INDEX, ROWS, Products, Visible, inside_tile

_INTEGERS = (DType.i64, DType.i32, DType.i16, DType.i8, DType.u8)
_OF_TILES = (loop.Comment, loop.TileArray, loop.TileRows, loop.TileMatMul, loop.TileGram)
"""Statements that may stand in a tile of rows, outside its rows."""


def verify(kernel: loop.Kernel) -> None:
    """Checks scopes, names, types, index arity, static index ranges, and who may read or write what.

    Raises:
        IRError: naming the place, such as "body[1].edges[0].let u: ...".
    """
    verify_parameters(kernel)
    scope = Visible(types=parameter_types(kernel))
    for name, extent in (*kernel.sweep, *kernel.within):
        if extent < 1:
            fail(f"kernel {kernel.name}", f"a sweep has at least one step (got {extent}).")
        if any(b.role is loop.Role.total for b in kernel.buffers):
            fail(f"kernel {kernel.name}", "totals would be summed anew at each step of a sweep.")
        if kernel.stashes or kernel.tile is not None:
            fail(f"kernel {kernel.name}", "a sweep has neither stashes nor tiles of rows.")
        if name in scope.types:
            fail(f"kernel {kernel.name}", f"'{name}' is already defined.")
        scope.types[name], scope.extents[name] = POSITION, extent
    if kernel.tile is not None:
        tile, size = kernel.tile
        if size < 1:
            fail(f"kernel {kernel.name}", f"a tile has at least one row (got {size}).")
        scope.enter(tile, ROWS)
        scope.types[tile] = POSITION
    _Verifier(kernel).block(kernel.body, scope, "body")


class _Verifier:
    def __init__(self, kernel: loop.Kernel) -> None:
        self.kernel = kernel
        self.buffers = {buffer.name: buffer for buffer in kernel.buffers}
        self.stashes = {stash.name: stash for stash in kernel.stashes}
        self.csrs = {csr.name for csr in kernel.csrs}
        self.globals = {*kernel.sizes, *self.csrs}
        self.swept = {name for name, _ in (*kernel.sweep, *kernel.within)}
        self.products = Products(kernel)

    def block(self, body: Iterable[loop.Stmt], scope: Visible, path: str) -> None:
        """Verifies a block. It writes to `scope`: pass a fresh one for every block."""
        for i, stmt in enumerate(body):
            place = f"{path}[{i}].{_label(stmt)}"
            try:
                self._statement(stmt, scope, place)
            except PlacedError:
                raise
            except IRError as error:
                raise PlacedError(f"{place}: {error}") from None

    def _statement(self, stmt: loop.Stmt, scope: Visible, place: str) -> None:
        if self.kernel.tile is not None and not scope.positions and not isinstance(stmt, _OF_TILES):
            fail(place, "what is done for a row of a tile stands in 'rows of' it.")
        match stmt:
            case loop.Comment(text):
                one_line(text, place)
            case loop.Let(name, dtype, value):
                self._typed(value, dtype, scope, place)
                self._bind(name, dtype, scope, place)
            case loop.Alloc():
                self._alloc(stmt, scope, place)
            case loop.Store(buffer, index, value):
                self._store(buffer, index, value, scope, place)
            case loop.Accum():
                self._accum(stmt, scope, place)
            case loop.Raise():
                self._raise(stmt, scope, place)
            case loop.FoldLanes():
                self._fold_lanes(stmt, scope, place)
            case loop.Lanes(lanes, body):
                inner = scope.inside()
                self._bind_lanes(lanes, inner, place)
                parallel = (*scope.parallel, *(name for name, extent in lanes if extent > 1))
                self.block(body, replace(inner, parallel=parallel), place)
            case loop.Edges():
                self._edges(stmt, scope, place)
            case loop.Tiles():
                self._tiles(stmt, scope, place)
            case loop.TileRows():
                self._tile_rows(stmt, scope, place)
            case loop.TileArray(name, tile, dtype, shape):
                inside_tile(tile, scope, place)
                if min(shape, default=0) < 0:
                    fail(place, f"extents must not be negative (got {shape}).")
                self._bind(name, dtype, scope, place)
                scope.tile_arrays[name] = (tile, shape)
            case loop.TileMatMul() | loop.TileGram():
                self.products.verify(stmt, scope, place)

    # ------------------------------------------------------------ statements

    def _bind(self, name: str, dtype: DType, scope: Visible, place: str) -> None:
        if not (name.isidentifier() and name.isascii()):
            fail(place, f"'{name}' is not a name.")
        if name in scope.types or name in self.globals:
            fail(place, f"'{name}' is already defined.")
        scope.types[name] = dtype

    def _bind_lanes(self, lanes: tuple[tuple[str, int], ...], scope: Visible, place: str) -> None:
        for name, extent in lanes:
            if extent < 0:
                fail(place, f"lane '{name}' must have zero or more iterations (got {extent}).")
            self._bind(name, POSITION, scope, place)
            scope.extents[name] = extent

    def _alloc(self, stmt: loop.Alloc, scope: Visible, place: str) -> None:
        if scope.parallel:
            fail(place, "an alloc belongs to a row or an edge, not to a lane.")
        if min(stmt.shape, default=0) < 0:
            fail(place, f"extents must not be negative (got {stmt.shape}).")
        self._bind(stmt.name, stmt.dtype, scope, place)
        scope.allocs[stmt.name] = stmt.shape

    def _store(self, buffer: str, index: tuple[loop.Expr, ...], value: loop.Expr, scope: Visible, place: str) -> None:
        role = self.buffers[buffer].role if buffer in self.buffers else None
        if role is not None and role is not loop.Role.output:
            fail(place, f"'{buffer}' is not an output, an alloc or a stash.")
        if role is loop.Role.output and self.swept and not any(self.swept <= lanes_of(part) for part in index):
            fail(place, f"'{buffer}' would be stored at each step of the sweep.")
        self._target(buffer, index, value, scope, place)

    def _accum(self, stmt: loop.Accum, scope: Visible, place: str) -> None:
        parameter = self.buffers.get(stmt.buffer)
        if stmt.buffer in self.stashes or (parameter is not None and parameter.role is not loop.Role.total):
            fail(place, f"'{stmt.buffer}' is neither an alloc or a tile's array nor a total.")
        if parameter is not None and parameter.fold is not stmt.fold:
            fail(place, f"'{stmt.buffer}' is folded with another operator (got {stmt.fold.value}).")
        self._target(stmt.buffer, stmt.index, stmt.value, scope, place)

    def _target(self, buffer: str, index: tuple[loop.Expr, ...], value: loop.Expr, scope: Visible, place: str) -> None:
        if not self._is_array(buffer, scope):
            fail(place, f"'{buffer}' is not defined here.")
        self._element(buffer, index, scope)
        self._typed(value, scope.types[buffer], scope, place)
        used = {name for part in index for name in lanes_of(part)}
        shared = [lane for lane in scope.parallel if lane not in used]
        if shared and not any(loads(part) for part in index):
            fail(place, f"lanes of '{shared[0]}' conflict: they all write the same element.")

    def _raise(self, stmt: loop.Raise, scope: Visible, place: str) -> None:
        inside_tile(stmt.tile, scope, place)
        _, size = stmt.lane
        if scope.allocs.get(stmt.reference) != (size,) or size < 1:
            fail(place, f"'{stmt.reference}' is not an alloc of [{size}] elements.")
        dtype = scope.types[stmt.reference]
        if not dtype.is_float:
            fail(place, f"'{stmt.reference}' must hold floats (got {dtype.value}).")
        inner = scope.inside()
        self._bind_lanes((stmt.lane,), inner, place)
        self._typed(stmt.value, dtype, inner, place)
        changed = [stmt.reference, *(s.buffer for s in stmt.sums)]
        if len(set(changed)) < len(changed):
            fail(place, "each sum is rescaled once, and the reference is none.")
        for s in stmt.sums:
            self._rescaled(s, size, dtype, scope.inside(), place)

    def _rescaled(self, stmt: loop.Rescaled, size: int, dtype: DType, scope: Visible, place: str) -> None:
        self._bind_lanes(stmt.lanes, scope, place)
        parallel = tuple(name for name, extent in stmt.lanes if extent > 1)
        if stmt.buffer not in scope.allocs:
            fail(place, f"'{stmt.buffer}' is not an alloc.")
        self._target(
            stmt.buffer, stmt.index, loop.Load(stmt.buffer, stmt.index), replace(scope, parallel=parallel), place
        )
        if scope.types[stmt.buffer] is not dtype:
            fail(place, f"'{stmt.buffer}' is not {dtype.value}.")
        self._index_sum(stmt.of, scope)
        span = bounds(stmt.of, scope.extents)
        if span is not None and not 0 <= span[0] <= span[1] < size and 0 not in scope.extents.values():
            fail(place, f"'{stmt.buffer}' belongs to elements {span[0]}..{span[1]} of {size}.")

    def _fold_lanes(self, stmt: loop.FoldLanes, scope: Visible, place: str) -> None:
        if stmt.parts is not None and (stmt.parts < 1 or stmt.parts & (stmt.parts - 1)):
            fail(place, f"a fold has a power of two of partial results (got {stmt.parts}).")
        inner = scope.inside()
        self._bind_lanes(stmt.lanes, inner, place)
        for let in stmt.body:
            if not isinstance(let, loop.Let):
                fail(place, "the body of a fold holds only lets.")
        self.block(stmt.body, inner, place)
        self._typed(stmt.value, stmt.dtype, inner, place)
        self._bind(stmt.name, stmt.dtype, scope, place)

    def _edges(self, stmt: loop.Edges, scope: Visible, place: str) -> None:
        self._walk(stmt, scope, place)
        of_edges = [tile for tile, csr in scope.tiles.items() if csr != ROWS]
        if stmt.tile is None and any(stmt.row not in scope.within(tile) for tile in of_edges):
            fail(place, "edges inside a tile are those of the tile, or of its positions.")
        if stmt.tile is not None and scope.tiles.get(stmt.tile) != stmt.csr:
            fail(place, f"'{stmt.tile}' is not a tile of '{stmt.csr}' here.")
        for prefetch in stmt.prefetch:
            self._prefetch(prefetch, scope, place)
        inner = scope.inside()
        self._bind(stmt.k, POSITION, inner, place)
        inner.positions[stmt.k] = (stmt.csr, stmt.tile)
        self.block(stmt.body, inner, place)

    def _walk(self, stmt: loop.Edges | loop.Tiles, scope: Visible, place: str) -> None:
        if stmt.csr not in self.csrs:
            fail(place, f"'{stmt.csr}' is not a CSR of the kernel.")
        if stmt.row != self.kernel.row and stmt.row not in scope.positions:
            fail(place, f"the row must be the kernel's, '{self.kernel.row}', or a position (got '{stmt.row}').")
        if scope.parallel or scope.extents.keys() - self.swept:
            fail(place, "edges belong to a row, not to a lane.")

    # ------------------------------------------------------------ tiles

    def _tiles(self, stmt: loop.Tiles, scope: Visible, place: str) -> None:
        self._walk(stmt, scope, place)
        if stmt.size < 1:
            fail(place, f"a tile has at least one position (got {stmt.size}).")
        of_edges = any(csr != ROWS for csr, _ in scope.positions.values())
        if any(csr != ROWS for csr in scope.tiles.values()) or (stmt.row == self.kernel.row and of_edges):
            fail(place, "tiles belong to a row, not to a tile or to another edge of the row.")
        inner = scope.inside()
        self._bind(stmt.tile, POSITION, inner, place)
        inner.enter(stmt.tile, stmt.csr)
        self.block(stmt.body, inner, place)

    def _tile_rows(self, stmt: loop.TileRows, scope: Visible, place: str) -> None:
        inside_tile(stmt.tile, scope, place)
        if scope.tiles[stmt.tile] != ROWS:
            fail(place, f"'{stmt.tile}' is no tile of rows.")
        inner = scope.inside()
        self._bind(self.kernel.row, POSITION, inner, place)
        inner.positions[self.kernel.row] = (ROWS, stmt.tile)
        self.block(stmt.body, inner, place)

    def _prefetch(self, prefetch: loop.Prefetch, scope: Visible, place: str) -> None:
        column, buffer = self.buffers.get(prefetch.column), self.buffers.get(prefetch.buffer)
        if column is None or column.role is not loop.Role.column:
            fail(place, f"'{prefetch.column}' is not a column of the kernel.")
        if buffer is None or buffer.rows is None or buffer.role in (loop.Role.output, loop.Role.total):
            fail(place, f"'{prefetch.buffer}' is not an input with rows.")
        if prefetch.shift is not None and scope.types.get(prefetch.shift) not in INDEX:
            fail(place, f"'{prefetch.shift}' is not an index here.")
        if (prefetch.at is None) != (prefetch.size is None):
            fail(place, "a prefetch of some features says from where on, and how many.")
        if prefetch.at is not None and prefetch.size is not None:
            self._index_sum(prefetch.at, scope)
            span, width = bounds(prefetch.at, scope.extents), math.prod(self.buffers[prefetch.buffer].shape)
            if prefetch.size < 1 or span is None or span[0] < 0 or span[1] + prefetch.size > width:
                fail(place, f"'{prefetch.buffer}' has {width} features a row.")
        if prefetch.distance < 1:
            fail(place, f"the prefetch distance must be positive (got {prefetch.distance}).")

    # ------------------------------------------------------------ expressions

    def _typed(self, value: loop.Expr, dtype: DType, scope: Visible, place: str) -> None:
        self._expr(value, scope)
        found = dtype_of(value, scope.types)
        if found is not dtype:
            fail(place, f"the value is {found.value}, expected {dtype.value}.")

    def _expr(self, expr: loop.Expr, scope: Visible) -> None:
        match expr:
            case loop.Var(name):
                if name not in scope.types or name in scope.tiles or self._is_array(name, scope):
                    raise IRError(f"'{name}' is not a variable here.")
            case loop.Load(buffer, index):
                if not self._is_array(buffer, scope):
                    raise IRError(f"'{buffer}' is not a buffer here.")
                if buffer in self.buffers and self.buffers[buffer].role in (loop.Role.output, loop.Role.total):
                    raise IRError(f"'{buffer}' is an output and is never loaded.")
                self._element(buffer, index, scope)
            case loop.Call(op, args):
                self._call(op, args, scope)
            case loop.CastTo(x, _):
                self._expr(x, scope)
            case loop.IndexSum():
                self._index_sum(expr, scope)
            case loop.Degree(csr, row):
                if csr not in self.csrs:
                    raise IRError(f"'{csr}' is not a CSR of the kernel.")
                self._index_expr(row, scope)
            case loop.Uniform():
                self._uniform(expr, scope)
            case loop.Lit(value, dtype):
                if dtype is DType.bool and not isinstance(value, bool):
                    raise IRError(f"a bool literal is true or false (got {value!r}).")
                if not dtype.is_float and (isinstance(value, float) or not holds(dtype, value)):
                    raise IRError(f"a literal of {dtype.value} is an integer that it holds (got {value!r}).")

    def _call(self, op: Op, args: tuple[loop.Expr, ...], scope: Visible) -> None:
        if len(args) != op.facts.arity:
            raise IRError(f"{op.value} takes {op.facts.arity} operands (got {len(args)}).")
        for arg in args:
            self._expr(arg, scope)
        types = [dtype_of(arg, scope.types) for arg in args]
        if op.facts.condition and types.pop(0) is not DType.bool:
            raise IRError(f"the condition of {op.value} must be bool.")
        if len(set(types)) > 1:
            raise IRError(f"operands of {op.value} differ in type: {', '.join(dtype.value for dtype in types)}.")
        if not supports(op, types[0]):
            raise IRError(f"{op.value} is not defined on {types[0].value}; cast its operand first.")

    def _uniform(self, expr: loop.Uniform, scope: Visible) -> None:
        self._expr(expr.seed, scope)
        seed = dtype_of(expr.seed, scope.types)
        if seed is not DType.i64 or expr.dtype not in (DType.f32, DType.f64):
            raise IRError(f"uniform draws f32 or f64 by an i64 seed (got {expr.dtype.value}, {seed.value}).")
        self._index_expr(expr.row, scope)
        self._index_sum(expr.index, scope)
        span = bounds(expr.index, scope.extents)
        if span is not None and not 0 <= span[0] <= span[1] < expr.size and 0 not in scope.extents.values():
            raise IRError(f"uniform is indexed {span[0]}..{span[1]} in a row of {expr.size}.")

    def _index_sum(self, index: loop.IndexSum, scope: Visible) -> None:
        for name, _ in index.terms:
            if name not in scope.extents:
                raise IRError(f"'{name}' is not a lane here.")
        if index.div < 1 or (index.mod is not None and index.mod < 1):
            raise IRError(f"div and mod must be positive (got {index.div}, {index.mod}).")

    def _index_expr(self, expr: loop.Expr, scope: Visible) -> None:
        self._expr(expr, scope)
        dtype = dtype_of(expr, scope.types)
        if dtype not in _INTEGERS:
            raise IRError(f"an index must be an integer (got {dtype.value}).")

    def _element(self, buffer: str, index: tuple[loop.Expr, ...], scope: Visible) -> None:
        has_rows, shape = self._layout(buffer, scope)
        if len(index) != len(shape) + has_rows:
            raise IRError(f"'{buffer}' takes {len(shape) + has_rows} indices (got {len(index)}).")
        for part in index:
            self._index_expr(part, scope)
        if buffer in self.stashes or buffer in scope.tile_arrays:
            self._position(buffer, index[0], scope)
        empty = any(extent == 0 for extent in scope.extents.values())
        if empty:
            return
        for part, extent in zip(index[has_rows:], shape, strict=True):
            span = bounds(part, scope.extents)
            if span is not None and not 0 <= span[0] <= span[1] < extent:
                raise IRError(f"'{buffer}' is indexed {span[0]}..{span[1]} along a dimension of {extent}.")

    def _position(self, array: str, position: loop.Expr, scope: Visible) -> None:
        csr, tile = scope.positions.get(position.name, ("", None)) if isinstance(position, loop.Var) else ("", None)
        if array in scope.tile_arrays:
            if tile != scope.tile_arrays[array][0]:
                raise IRError(f"'{array}' is indexed by a position of its tile '{scope.tile_arrays[array][0]}'.")
        elif csr != self.stashes[array].csr:
            raise IRError(
                f"stash '{array}' is indexed by a position of its CSR '{self.stashes[array].csr}', inside its edges."
            )

    def _is_array(self, name: str, scope: Visible) -> bool:
        return name in scope.allocs or name in self.buffers or name in self.stashes or name in scope.tile_arrays

    def _layout(self, name: str, scope: Visible) -> tuple[bool, tuple[int, ...]]:
        if name in scope.allocs:
            return False, scope.allocs[name]
        if name in scope.tile_arrays:
            return True, scope.tile_arrays[name][1]
        if name in self.stashes:
            return True, self.stashes[name].shape
        return self.buffers[name].rows is not None, self.buffers[name].shape


def _label(stmt: loop.Stmt) -> str:
    match stmt:
        case loop.Let(name) | loop.Alloc(name) | loop.FoldLanes(name):
            return f"{type(stmt).__name__.lower()} {name}"
        case loop.Store(buffer) | loop.Accum(buffer):
            return f"{type(stmt).__name__.lower()} {buffer}"
    return type(stmt).__name__.lower()
