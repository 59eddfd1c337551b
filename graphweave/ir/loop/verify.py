"""Well-formedness of loop-IR kernels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from graphweave.core.errors import IRError
from graphweave.core.types import ARITY, DType, Fold, Op
from graphweave.ir.loop.indices import bounds, lanes_of, loads
from graphweave.ir.loop.nodes import (
    Accum,
    Alloc,
    Call,
    CastTo,
    Comment,
    Degree,
    Edges,
    Expr,
    FoldLanes,
    IndexSum,
    Kernel,
    Lanes,
    Let,
    Lit,
    Load,
    Place,
    Prefetch,
    Raise,
    Rescaled,
    Role,
    Rows,
    Stmt,
    Store,
    TileArray,
    TileGram,
    TileMatMul,
    TileRows,
    Tiles,
    Uniform,
    Var,
)
from graphweave.ir.loop.types import POSITION, dtype_of, parameter_types, supports
from graphweave.ir.loop.verify_parameters import fail, one_line, verify_parameters

_INTEGERS = (DType.i64, DType.i32, DType.i16, DType.i8, DType.u8)
_INDEX = (DType.i64, DType.i32)
_OF_TILES = (Comment, TileArray, TileRows, TileMatMul, TileGram)
"""What stands in a tile of rows, outside its rows."""
_ROWS = ""
"""In place of a CSR, what the positions of a tile of rows belong to."""


def verify(kernel: Kernel) -> None:
    """Checks scopes, names, types, index arity, static index ranges, and who may read or write what.

    Raises:
        IRError: naming the place, such as "body[1].edges[0].let u: ...".
    """
    verify_parameters(kernel)
    scope = _Scope(types=parameter_types(kernel))
    if kernel.tile is not None:
        tile, size = kernel.tile
        if size < 1 or kernel.stashes:
            fail(f"kernel {kernel.name}", f"a tile has at least one row (got {size}), and its kernel no stashes.")
        scope.tiles[tile], scope.types[tile] = _ROWS, POSITION
    _Verifier(kernel).block(kernel.body, scope, "body")


@dataclass(frozen=True)
class _Scope:
    """What is visible: types of names, extents of lanes, shapes of allocs, the CSR (and tile) of each position.

    `tiles`: the CSR of each tile; `tile_arrays`: tile and shape of each.
    """

    types: dict[str, DType]
    extents: dict[str, int] = field(default_factory=dict)
    allocs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    positions: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    tiles: dict[str, str] = field(default_factory=dict)
    tile_arrays: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    parallel: tuple[str, ...] = ()  # lanes of the enclosing Lanes statements that have more than one iteration

    def inside(self) -> _Scope:
        return _Scope(
            dict(self.types), dict(self.extents), dict(self.allocs), dict(self.positions), dict(self.tiles),
            dict(self.tile_arrays), self.parallel,
        )  # fmt: skip


class _Verifier:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.buffers = {buffer.name: buffer for buffer in kernel.buffers}
        self.stashes = {stash.name: stash for stash in kernel.stashes}
        self.csrs = {csr.name for csr in kernel.csrs}
        self.globals = {*kernel.sizes, *self.csrs}

    def block(self, body: Iterable[Stmt], scope: _Scope, path: str) -> None:
        """`scope` is written to: pass a fresh one for every block."""
        for i, stmt in enumerate(body):
            place = f"{path}[{i}].{_label(stmt)}"
            try:
                self._statement(stmt, scope, place)
            except IRError as error:
                if str(error).startswith("body["):
                    raise
                raise IRError(f"{place}: {error}") from None

    def _statement(self, stmt: Stmt, scope: _Scope, place: str) -> None:
        if self.kernel.tile is not None and not scope.positions and not isinstance(stmt, _OF_TILES):
            fail(place, "what is done for a row of a tile stands in 'rows of' it.")
        match stmt:
            case Comment(text):
                one_line(text, place)
            case Let(name, dtype, value):
                self._typed(value, dtype, scope, place)
                self._bind(name, dtype, scope, place)
            case Alloc():
                self._alloc(stmt, scope, place)
            case Store(buffer, index, value):
                self._store(buffer, index, value, scope, place)
            case Accum():
                self._accum(stmt, scope, place)
            case Raise():
                self._raise(stmt, scope, place)
            case FoldLanes():
                self._fold_lanes(stmt, scope, place)
            case Lanes(lanes, body):
                inner = scope.inside()
                self._bind_lanes(lanes, inner, place)
                parallel = (*scope.parallel, *(name for name, extent in lanes if extent > 1))
                self.block(body, replace(inner, parallel=parallel), place)
            case Edges():
                self._edges(stmt, scope, place)
            case Tiles():
                self._tiles(stmt, scope, place)
            case TileRows():
                self._tile_rows(stmt, scope, place)
            case TileArray(name, tile, dtype, shape):
                self._inside_tile(tile, scope, place)
                if min(shape, default=0) < 0:
                    fail(place, f"extents must not be negative (got {shape}).")
                self._bind(name, dtype, scope, place)
                scope.tile_arrays[name] = (tile, shape)
            case TileMatMul() | TileGram():
                self._product(stmt, scope, place)

    # ------------------------------------------------------------ statements

    def _bind(self, name: str, dtype: DType, scope: _Scope, place: str) -> None:
        if not (name.isidentifier() and name.isascii()):
            fail(place, f"'{name}' is not a name.")
        if name in scope.types or name in self.globals:
            fail(place, f"'{name}' is already defined.")
        scope.types[name] = dtype

    def _bind_lanes(self, lanes: tuple[tuple[str, int], ...], scope: _Scope, place: str) -> None:
        for name, extent in lanes:
            if extent < 0:
                fail(place, f"lane '{name}' must have zero or more iterations (got {extent}).")
            self._bind(name, POSITION, scope, place)
            scope.extents[name] = extent

    def _alloc(self, stmt: Alloc, scope: _Scope, place: str) -> None:
        if scope.parallel:
            fail(place, "an alloc belongs to a row or an edge, not to a lane.")
        if min(stmt.shape, default=0) < 0:
            fail(place, f"extents must not be negative (got {stmt.shape}).")
        self._bind(stmt.name, stmt.dtype, scope, place)
        scope.allocs[stmt.name] = stmt.shape

    def _store(self, buffer: str, index: tuple[Expr, ...], value: Expr, scope: _Scope, place: str) -> None:
        role = self.buffers[buffer].role if buffer in self.buffers else None
        if role is not None and role is not Role.output:
            fail(place, f"'{buffer}' is not an output, an alloc or a stash.")
        self._target(buffer, index, value, scope, place)

    def _accum(self, stmt: Accum, scope: _Scope, place: str) -> None:
        parameter = self.buffers.get(stmt.buffer)
        if (
            stmt.buffer in self.stashes
            or stmt.buffer in scope.tile_arrays
            or (parameter is not None and parameter.role is not Role.total)
        ):
            fail(place, f"'{stmt.buffer}' is not an alloc or a total.")
        if parameter is not None and parameter.fold is not stmt.fold:
            fail(place, f"'{stmt.buffer}' is folded with another operator (got {stmt.fold.value}).")
        self._target(stmt.buffer, stmt.index, stmt.value, scope, place)

    def _target(self, buffer: str, index: tuple[Expr, ...], value: Expr, scope: _Scope, place: str) -> None:
        if not self._is_array(buffer, scope):
            fail(place, f"'{buffer}' is not defined here.")
        self._element(buffer, index, scope)
        self._typed(value, scope.types[buffer], scope, place)
        used = {name for part in index for name in lanes_of(part)}
        shared = [lane for lane in scope.parallel if lane not in used]
        if shared and not any(loads(part) for part in index):
            fail(place, f"lanes of '{shared[0]}' conflict: they all write the same element.")

    def _raise(self, stmt: Raise, scope: _Scope, place: str) -> None:
        self._inside_tile(stmt.tile, scope, place)
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

    def _rescaled(self, stmt: Rescaled, size: int, dtype: DType, scope: _Scope, place: str) -> None:
        self._bind_lanes(stmt.lanes, scope, place)
        parallel = tuple(name for name, extent in stmt.lanes if extent > 1)
        if stmt.buffer not in scope.allocs:
            fail(place, f"'{stmt.buffer}' is not an alloc.")
        self._target(stmt.buffer, stmt.index, Load(stmt.buffer, stmt.index), replace(scope, parallel=parallel), place)
        if scope.types[stmt.buffer] is not dtype:
            fail(place, f"'{stmt.buffer}' is not {dtype.value}.")
        self._index_sum(stmt.of, scope)
        span = bounds(stmt.of, scope.extents)
        if span is not None and not 0 <= span[0] <= span[1] < size and 0 not in scope.extents.values():
            fail(place, f"'{stmt.buffer}' belongs to elements {span[0]}..{span[1]} of {size}.")

    def _fold_lanes(self, stmt: FoldLanes, scope: _Scope, place: str) -> None:
        inner = scope.inside()
        self._bind_lanes(stmt.lanes, inner, place)
        for let in stmt.body:
            if not isinstance(let, Let):
                fail(place, "the body of a fold holds only lets.")
        self.block(stmt.body, inner, place)
        self._typed(stmt.value, stmt.dtype, inner, place)
        self._bind(stmt.name, stmt.dtype, scope, place)

    def _edges(self, stmt: Edges, scope: _Scope, place: str) -> None:
        self._walk(stmt, scope, place)
        if stmt.tile is None and any(csr != _ROWS for csr in scope.tiles.values()):
            fail(place, "edges inside a tile are those of the tile.")
        if stmt.tile is not None and scope.tiles.get(stmt.tile) != stmt.csr:
            fail(place, f"'{stmt.tile}' is not a tile of '{stmt.csr}' here.")
        for prefetch in stmt.prefetch:
            self._prefetch(prefetch, scope, place)
        inner = scope.inside()
        self._bind(stmt.k, POSITION, inner, place)
        inner.positions[stmt.k] = (stmt.csr, stmt.tile)
        self.block(stmt.body, inner, place)

    def _walk(self, stmt: Edges | Tiles, scope: _Scope, place: str) -> None:
        if stmt.csr not in self.csrs:
            fail(place, f"'{stmt.csr}' is not a CSR of the kernel.")
        if stmt.row != self.kernel.row:
            fail(place, f"the row must be the kernel's, '{self.kernel.row}' (got '{stmt.row}').")
        if scope.parallel or scope.extents:
            fail(place, "edges belong to a row, not to a lane.")

    # ------------------------------------------------------------ tiles

    def _tiles(self, stmt: Tiles, scope: _Scope, place: str) -> None:
        self._walk(stmt, scope, place)
        if stmt.size < 1:
            fail(place, f"a tile has at least one position (got {stmt.size}).")
        if scope.tiles or scope.positions:
            fail(place, "tiles belong to a row, not to a tile or an edge.")
        inner = scope.inside()
        self._bind(stmt.tile, POSITION, inner, place)
        inner.tiles[stmt.tile] = stmt.csr
        self.block(stmt.body, inner, place)

    def _tile_rows(self, stmt: TileRows, scope: _Scope, place: str) -> None:
        self._inside_tile(stmt.tile, scope, place)
        if scope.tiles[stmt.tile] != _ROWS:
            fail(place, f"'{stmt.tile}' is no tile of rows.")
        inner = scope.inside()
        self._bind(self.kernel.row, POSITION, inner, place)
        inner.positions[self.kernel.row] = (_ROWS, stmt.tile)
        self.block(stmt.body, inner, place)

    def _inside_tile(self, tile: str, scope: _Scope, place: str) -> None:
        if tile not in scope.tiles or scope.positions or scope.extents:
            fail(place, f"belongs into the tile '{tile}', outside its edges and lanes.")

    def _product(self, stmt: TileMatMul | TileGram, scope: _Scope, place: str) -> None:
        self._inside_tile(stmt.tile, scope, place)
        x = self._tile_row(stmt.x, stmt.tile, scope, place)
        if isinstance(stmt, TileMatMul):
            y = self._tile_row(stmt.out, stmt.tile, scope, place, Role.output)
            if stmt.out in (stmt.x, stmt.w):
                fail(place, f"'{stmt.out}' is both operand and result.")
            if stmt.add is not None and self._tile_row(stmt.add, stmt.tile, scope, place) != y:
                fail(place, f"'{stmt.add}' must have {y} elements a row.")
            types = {self._element_type(n, scope) for n in (stmt.x, stmt.out, stmt.add or stmt.x)}
            whole, numel = stmt.w, self._matrix(stmt, scope, place)
        else:
            y = self._tile_row(stmt.y, stmt.tile, scope, place)
            types = {self._element_type(n, scope) for n in (stmt.x, stmt.y)}
            whole, numel = stmt.out, self._sum(stmt.out, scope, place)
        if stmt.blocks < 1 or x % stmt.blocks or y % stmt.blocks:
            fail(place, f"rows of {x} and {y} elements do not consist of {stmt.blocks} blocks.")
        if numel * stmt.blocks != x * y:
            blocks = "" if stmt.blocks == 1 else f"{stmt.blocks} x "
            fail(place, f"'{whole}' must have {blocks}{x // stmt.blocks} x {y // stmt.blocks} elements (got {numel}).")
        dtype = scope.types[whole]
        half = isinstance(stmt, TileMatMul) and dtype in (DType.f16, DType.bf16) and types == {DType.f32}
        if not half and (types != {dtype} or not dtype.is_float):
            fail(place, "operands and result must be of one float type.")

    def _matrix(self, stmt: TileMatMul, scope: _Scope, place: str) -> int:
        """Elements of the matrices that rows are multiplied by."""
        buffer = self.buffers.get(stmt.w)
        if stmt.row is not None:
            if scope.types.get(stmt.row) not in _INDEX:
                fail(place, f"'{stmt.row}' is not an index here.")
            if buffer is None or buffer.role is not Role.input or buffer.rows is None:
                raise IRError(f"{place}: '{stmt.w}' is not an input with rows.")
            return math.prod(buffer.shape)
        if stmt.w in scope.allocs:
            return math.prod(scope.allocs[stmt.w])
        if buffer is None or buffer.role is not Role.input or buffer.rows is not None:
            raise IRError(f"{place}: '{stmt.w}' is neither shared data nor an alloc of the row.")
        return math.prod(buffer.shape)

    def _sum(self, name: str, scope: _Scope, place: str) -> int:
        """Elements of what a gram adds to."""
        if name in scope.allocs:
            return math.prod(scope.allocs[name])
        buffer = self.buffers.get(name)
        if buffer is None or buffer.role is not Role.total or buffer.fold is not Fold.sum:
            raise IRError(f"{place}: '{name}' is neither a total that sums nor an alloc of the row.")
        return math.prod(buffer.shape)

    def _element_type(self, at: Place, scope: _Scope) -> DType:
        return scope.types[at.buffer if isinstance(at, Rows) else at]

    def _tile_row(self, at: Place, tile: str, scope: _Scope, place: str, role: Role = Role.input) -> int:
        """Elements a position of a tile array of `tile`, of a stash of its CSR, or of a parameter of its rows."""
        if isinstance(at, Rows):
            return self._named_rows(at, scope, place, role)
        name, buffer, csr = at, self.buffers.get(at), scope.tiles[tile]
        if scope.tile_arrays.get(name, ("", ()))[0] == tile:
            shape = scope.tile_arrays[name][1]
        elif name in self.stashes and self.stashes[name].csr == csr:
            shape = self.stashes[name].shape
        elif csr == _ROWS and buffer is not None and buffer.role is role and buffer.rows == self.kernel.sizes[0]:
            shape = buffer.shape
        else:
            of = (
                f"an {'output' if role is Role.output else 'input'} of its rows"
                if csr == _ROWS
                else "a stash of its CSR"
            )
            raise IRError(f"{place}: '{name}' is neither an array of the tile nor {of}.")
        if math.prod(shape) < 1 or not shape:
            fail(place, f"'{name}' must have rows of one element or more (got {shape}).")
        return math.prod(shape)

    def _named_rows(self, at: Rows, scope: _Scope, place: str, role: Role) -> int:
        buffer, column = self.buffers.get(at.buffer), self.buffers.get(at.column)
        if column is None or column.role is not Role.column:
            fail(place, f"'{at.column}' is not a column of the kernel.")
        if at.shift is not None and scope.types.get(at.shift) not in _INDEX:
            fail(place, f"'{at.shift}' is not an index here.")
        if buffer is None or buffer.role is not role or buffer.rows is None or math.prod(buffer.shape) < 1:
            raise IRError(f"{place}: '{at.buffer}' is not an {role.name} with rows of one element or more.")
        return math.prod(buffer.shape)

    def _prefetch(self, prefetch: Prefetch, scope: _Scope, place: str) -> None:
        column, buffer = self.buffers.get(prefetch.column), self.buffers.get(prefetch.buffer)
        if column is None or column.role is not Role.column:
            fail(place, f"'{prefetch.column}' is not a column of the kernel.")
        if buffer is None or buffer.rows is None or buffer.role in (Role.output, Role.total):
            fail(place, f"'{prefetch.buffer}' is not an input with rows.")
        if prefetch.shift is not None and scope.types.get(prefetch.shift) not in _INDEX:
            fail(place, f"'{prefetch.shift}' is not an index here.")
        if prefetch.distance < 1:
            fail(place, f"the prefetch distance must be positive (got {prefetch.distance}).")

    # ------------------------------------------------------------ expressions

    def _typed(self, value: Expr, dtype: DType, scope: _Scope, place: str) -> None:
        self._expr(value, scope)
        found = dtype_of(value, scope.types)
        if found is not dtype:
            fail(place, f"the value is {found.value}, expected {dtype.value}.")

    def _expr(self, expr: Expr, scope: _Scope) -> None:
        match expr:
            case Var(name):
                if name not in scope.types or name in scope.tiles or self._is_array(name, scope):
                    raise IRError(f"'{name}' is not a variable here.")
            case Load(buffer, index):
                if not self._is_array(buffer, scope):
                    raise IRError(f"'{buffer}' is not a buffer here.")
                if buffer in self.buffers and self.buffers[buffer].role in (Role.output, Role.total):
                    raise IRError(f"'{buffer}' is an output and is never loaded.")
                self._element(buffer, index, scope)
            case Call(op, args):
                self._call(op, args, scope)
            case CastTo(x, _):
                self._expr(x, scope)
            case IndexSum():
                self._index_sum(expr, scope)
            case Degree(csr, row):
                if csr not in self.csrs:
                    raise IRError(f"'{csr}' is not a CSR of the kernel.")
                self._index_expr(row, scope)
            case Uniform():
                self._uniform(expr, scope)
            case Lit(value, dtype):
                if dtype is DType.bool and not isinstance(value, bool):
                    raise IRError(f"a bool literal is true or false (got {value!r}).")

    def _call(self, op: Op, args: tuple[Expr, ...], scope: _Scope) -> None:
        if len(args) != ARITY[op]:
            raise IRError(f"{op.value} takes {ARITY[op]} operands (got {len(args)}).")
        for arg in args:
            self._expr(arg, scope)
        types = [dtype_of(arg, scope.types) for arg in args]
        if op is Op.where and types.pop(0) is not DType.bool:
            raise IRError("the condition of where must be bool.")
        if len(set(types)) > 1:
            raise IRError(f"operands of {op.value} differ in type: {', '.join(dtype.value for dtype in types)}.")
        if not supports(op, types[0]):
            raise IRError(f"{op.value} is not defined on {types[0].value}; cast its operand first.")

    def _uniform(self, expr: Uniform, scope: _Scope) -> None:
        self._expr(expr.seed, scope)
        seed = dtype_of(expr.seed, scope.types)
        if seed is not DType.i64 or expr.dtype not in (DType.f32, DType.f64):
            raise IRError(f"uniform draws f32 or f64 by an i64 seed (got {expr.dtype.value}, {seed.value}).")
        self._index_expr(expr.row, scope)
        self._index_sum(expr.index, scope)
        span = bounds(expr.index, scope.extents)
        if span is not None and not 0 <= span[0] <= span[1] < expr.size and 0 not in scope.extents.values():
            raise IRError(f"uniform is indexed {span[0]}..{span[1]} in a row of {expr.size}.")

    def _index_sum(self, index: IndexSum, scope: _Scope) -> None:
        for name, _ in index.terms:
            if name not in scope.extents:
                raise IRError(f"'{name}' is not a lane here.")
        if index.div < 1 or (index.mod is not None and index.mod < 1):
            raise IRError(f"div and mod must be positive (got {index.div}, {index.mod}).")

    def _index_expr(self, expr: Expr, scope: _Scope) -> None:
        self._expr(expr, scope)
        dtype = dtype_of(expr, scope.types)
        if dtype not in _INTEGERS:
            raise IRError(f"an index must be an integer (got {dtype.value}).")

    def _element(self, buffer: str, index: tuple[Expr, ...], scope: _Scope) -> None:
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

    def _position(self, array: str, position: Expr, scope: _Scope) -> None:
        csr, tile = scope.positions.get(position.name, ("", None)) if isinstance(position, Var) else ("", None)
        if array in scope.tile_arrays:
            if tile != scope.tile_arrays[array][0]:
                raise IRError(f"'{array}' is indexed by a position of its tile '{scope.tile_arrays[array][0]}'.")
        elif csr != self.stashes[array].csr:
            raise IRError(
                f"stash '{array}' is indexed by a position of its CSR '{self.stashes[array].csr}', inside its edges."
            )

    def _is_array(self, name: str, scope: _Scope) -> bool:
        return name in scope.allocs or name in self.buffers or name in self.stashes or name in scope.tile_arrays

    def _layout(self, name: str, scope: _Scope) -> tuple[bool, tuple[int, ...]]:
        if name in scope.allocs:
            return False, scope.allocs[name]
        if name in scope.tile_arrays:
            return True, scope.tile_arrays[name][1]
        if name in self.stashes:
            return True, self.stashes[name].shape
        return self.buffers[name].rows is not None, self.buffers[name].shape


def _label(stmt: Stmt) -> str:
    match stmt:
        case Let(name) | Alloc(name) | FoldLanes(name):
            return f"{type(stmt).__name__.lower()} {name}"
        case Store(buffer) | Accum(buffer):
            return f"{type(stmt).__name__.lower()} {buffer}"
    return type(stmt).__name__.lower()
