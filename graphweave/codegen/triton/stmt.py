"""Statements of the loop IR as lines of a Triton function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from graphweave.codegen.sums import Sum
from graphweave.codegen.triton.axes import EDGES, ROWS, WALK, Axes, Axis, aligned, names_of, power_of_two, shape
from graphweave.codegen.triton.expr import fold_into, pointer, reduce_axis, tensor
from graphweave.codegen.triton.names import literal, ttype
from graphweave.codegen.triton.parts import DOT, LARGEST_ARRAY, RUN
from graphweave.codegen.triton.products import (
    Tile,
    flatten_sum,
    print_gram,
    print_matmul,
    start_sum,
    store_sum,
)
from graphweave.codegen.triton.registers import placed
from graphweave.codegen.triton.scope import Held, Printed, TritonScope
from graphweave.core.errors import IRError
from graphweave.core.types import AnyFold, DType, Fold
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.types import POSITION, identity


@dataclass(frozen=True, slots=True)
class TritonPrinter:
    """Prints the statements of one kernel. Its totals are arrays in registers while it runs."""

    scope: TritonScope
    row: str
    sums: Mapping[str, Sum]
    """Arrays to which one gram adds (`codegen/sums.py`)."""
    of_rows: frozenset[str]
    """CSRs that have the kernel's rows."""
    tile: str | None = None
    """The name of the tile of the kernel's rows, if there is one."""

    def body(self, body: Iterable[loop.Stmt]) -> None:
        copies = {id(found.copy): name for name, found in self.sums.items()}
        for stmt in body:
            if id(stmt) in copies:
                store_sum(self.scope, copies[id(stmt)], self.sums[copies[id(stmt)]], self.row)
            else:
                self._statement(stmt)

    def _statement(self, stmt: loop.Stmt) -> None:
        match stmt:
            case loop.Comment(text):
                self.scope.w.line(f"# {text}")
            case loop.Let(name, dtype, value):
                self._let(name, dtype, tensor(value, self.scope))
            case loop.Alloc(name) if name in self.sums:
                start_sum(self.scope, name, self.sums[name])
            case loop.Alloc(name, dtype, _, fill):
                self._array(name, dtype, 0 if fill is None else fill)
            case loop.Store(buffer, index, value):
                self._store(buffer, index, tensor(value, self.scope))
            case loop.Accum(buffer, index, fold, value):
                self._accum(buffer, index, fold, tensor(value, self.scope))
            case loop.FoldLanes():
                self._fold_lanes(stmt)
            case loop.Lanes(lanes, inner):
                with self.scope.lanes(lanes):
                    self.body(inner)
            case loop.Edges():
                self._edges(stmt)
            case loop.Tiles(tile, _, csr, row, inner):
                self._bounds(csr, row)
                self._walk(tile, csr, inner)
                for name, found in self.sums.items():
                    if found.gram in inner and found.copy is None:
                        flatten_sum(self.scope, name, found)
            case loop.TileArray(name, _, dtype, _):
                self._array(name, dtype, fill=0, least=DOT)
            case loop.TileRows(body=inner):
                self.body(inner)
            case loop.TileMatMul(tile):
                print_matmul(self.scope, stmt, self._positions(tile))
            case loop.TileGram(tile):
                print_gram(self.scope, stmt, self._positions(tile))
            case loop.Raise():
                raise IRError("a Triton kernel computes a softmax in two passes: schedule it with online='never'.")

    # ------------------------------------------------------------ scalars and arrays

    def _let(self, name: str, dtype: DType, value: Printed) -> None:
        self.scope.w.line(f"{self.scope.bind(name, dtype, value)} = {value.text}")

    def _array(self, name: str, dtype: DType, fill: float | int | bool, least: int = 0) -> None:
        scope = self.scope
        info = scope.arrays[name]
        padded = 0 if info.numel == 1 and not least else max(power_of_two(info.numel), least)
        if info.numel == scope.parts.elements:
            padded = RUN
        if padded > LARGEST_ARRAY:
            raise IRError(f"an array of {info.numel} numbers is too large for the registers of a Triton kernel.")
        held = Held(scope.names.of(name), dtype, scope.axes, info.numel, padded)
        scope.types[name], scope.held[name] = dtype, held
        scope.w.line(f"{held.name} = {filled(held, fill)}")

    def _store(self, buffer: str, index: tuple[loop.Expr, ...], value: Printed) -> None:
        scope = self.scope
        if buffer in scope.held:
            held, text = scope.held[buffer], value.text
            if held.axes and not value.ranked and not scope.lane_axes:  # a scalar
                text = f"tl.broadcast_to({text}, {shape(held.axes)})"
            text, inside = placed(scope, text, scope.axes, held, scope.position(buffer, index))
            text = f"tl.where({inside}, {text}, {held.name})" if inside else text
            scope.w.line(f"{held.name} = {text}")
            return
        at = pointer(buffer, index, scope)
        mask = scope.mask(at.axes)
        scope.w.line(f"tl.store({at.text}, {value.text}{f', mask={mask}' if mask else ''})")

    def _accum(self, buffer: str, index: tuple[loop.Expr, ...], fold: AnyFold, value: Printed) -> None:
        scope, held = self.scope, self.scope.held[buffer]
        text, axes = self._over(value, fold, held)
        text, inside = placed(scope, text, axes, held, scope.position(buffer, index))
        if inside:
            text = f"tl.where({inside}, {text}, {literal(identity(fold, held.dtype).value, held.dtype)})"
        scope.w.line(f"{held.name} = {fold_into(fold, held.dtype, held.name, text, scope)}")

    def _over(self, value: Printed, fold: AnyFold, held: Held) -> tuple[str, Axes]:
        """`value` folded over those axes of rows and edges around it that the array does not have, and the axes that
        are left."""
        scope = self.scope
        gone = [axis for axis in scope.axes if not axis.lanes and axis.name not in names_of(held.axes)]
        left = tuple(axis for axis in scope.axes if axis not in gone)
        if not gone and WALK not in scope.axes:
            return value.text, left
        neutral = literal(identity(fold, held.dtype).value, held.dtype)
        mask = scope.mask(names_of(axis for axis in scope.axes if not axis.lanes))
        text = f"tl.where({mask}, {value.text}, {neutral})"
        for axis in reversed(gone):
            text = reduce_axis(fold, held.dtype, text, scope.axes.index(axis), scope)
        return text, left

    # ------------------------------------------------------------ lanes

    def _fold_lanes(self, stmt: loop.FoldLanes) -> None:
        scope = self.scope
        with scope.lanes(stmt.lanes) as axis:
            self.body(stmt.body)
            value = tensor(stmt.value, scope)
            text = value.text if axis is None else self._folded_lanes(value, axis, stmt.fold, stmt.dtype)
        self._let(stmt.name, stmt.dtype, Printed(text, value.axes - names_set(axis), bool(scope.axes)))

    def _folded_lanes(self, value: Printed, axis: Axis, fold: Fold, dtype: DType) -> str:
        scope = self.scope
        at = len(scope.axes) - 1
        text = value.text
        if not value.ranked or axis.name not in value.axes or axis.mask:
            neutral = literal(identity(fold, dtype).value, dtype)
            if axis.mask:
                mask = scope.mask([axis.name])
            else:
                mask = aligned(f"(tl.arange(0, {axis.size}) >= 0)", (axis.name,), scope.dims)
            text = f"tl.where({mask}, {text}, {neutral})"
        if not value.ranked or not value.axes - {axis.name}:
            # The result must have all other axes.
            text = f"tl.broadcast_to({text}, {shape(scope.axes)})"
        return reduce_axis(fold, dtype, text, at, scope)

    # ------------------------------------------------------------ edges

    def _edges(self, stmt: loop.Edges) -> None:
        scope, k = self.scope, stmt.k
        if stmt.tile is None:
            self._bounds(stmt.csr, stmt.row)
            if any(isinstance(s, loop.Edges | loop.Tiles) for s in stmt.body):
                self._one_by_one(stmt)
            elif EDGES in scope.axes:
                self._walk_of_each(stmt)
            else:
                self._walk(k, stmt.csr, stmt.body)
            return
        before = scope.variables.get(k)  # the positions are those that the tile's loop has bound
        scope.variables[k] = scope.variables[stmt.tile]
        scope.types[k] = POSITION
        self.body(stmt.body)
        if before is not None:
            scope.variables[k] = before

    def _bounds(self, csr: str, row: str) -> None:
        """Prints where the edges of a position begin and end, unless `row` is the kernel's: those are known."""
        scope = self.scope
        if row == self.row:
            return
        begin, end, longest = (scope.names.derived(csr, what) for what in ("begin", "end", "longest"))
        at, indptr = scope.variables[row], scope.names.derived(csr, "indptr")
        mask = scope.mask(at.axes)
        masked = f", mask={mask}, other=0" if mask else ""
        scope.w.line(f"{begin} = tl.load({indptr} + {at.text}{masked})")
        scope.w.line(f"{end} = tl.load({indptr} + {at.text} + 1{masked})")
        degree = f"{end} - {begin}"
        scope.w.line(f"{longest} = {f'tl.max(tl.max({degree}, axis=1), axis=0)' if at.dims else degree}")

    def _one_by_one(self, stmt: loop.Edges) -> None:
        """Prints a loop over the edges of a program's only row, one at a time, as each edge walks edges of its own."""
        scope = self.scope
        begin, end = (f"tl.sum({scope.names.derived(stmt.csr, what)}, axis=0)" for what in ("begin", "end"))
        if scope.axes != (ROWS,) or stmt.row != self.row:
            raise IRError("a Triton kernel can walk edges inside of edges only if the outer ones are those of its row.")
        with scope.block(f"for {scope.bind(stmt.k, POSITION, Printed(''))} in range({begin}, {end})"):
            self.body(stmt.body)

    def _walk_of_each(self, stmt: loop.Edges) -> None:
        """Prints a loop in which a step takes the next edge of every position of a tile."""
        scope = self.scope
        begin, end, longest = (scope.names.derived(stmt.csr, what) for what in ("begin", "end", "longest"))
        step, before = scope.fresh(stmt.k, "step"), scope.axes
        with scope.block(f"for {step} in range(0, {longest})"):
            scope.axes = (ROWS, WALK)
            k = scope.bind(stmt.k, POSITION, Printed("", frozenset(["rows", "edges"]), ranked=True))
            scope.w.line(f"{k} = {begin} + {step}")
            scope.w.line(f"walk_ok = edge_ok & ({k} < {end})")
            self.body(stmt.body)
            scope.axes = before

    def _walk(self, k: str, csr: str, body: tuple[loop.Stmt, ...]) -> None:
        """Prints a loop in which a step takes the next K edges of every row."""
        scope, names = self.scope, self.scope.names
        begin, end = names.derived(csr, "begin"), names.derived(csr, "end")
        longest = names.derived(csr, "longest")
        positions = Printed("", frozenset(["rows", "edges"]), ranked=True)
        each = "[:, None]" if csr in self.of_rows else ""
        with scope.walk(f"for step in range(0, {longest}, K)"), scope.under(EDGES):
            text = scope.bind(k, POSITION, positions)
            scope.w.line(f"{text} = {begin}{each} + (step + tl.arange(0, K))[None, :]")
            scope.w.line(f"edge_ok = {text} < {end}{each}")
            self.body(body)

    # ------------------------------------------------------------ products

    def _positions(self, tile: str) -> Tile:
        return Tile.of_rows(self.row) if tile == self.tile else Tile.of_edges(tile)


def names_set(axis: Axis | None) -> frozenset[str]:
    return frozenset() if axis is None else frozenset([axis.name])


def filled(held: Held, value: float | int | bool) -> str:
    """The text of a tensor with the array's dimensions, filled with `value`."""
    own = held.matrix if held.matrix is not None else (held.padded,) if held.padded else ()
    number = literal(value, held.dtype)
    number = f"{int(bool(value))}" if held.dtype is DType.bool else number
    if number.startswith("tl.full"):  # a constant that names its type is made once and broadcast
        return f"tl.broadcast_to({number}, {shape(held.axes, *own)})"
    return f"tl.full({shape(held.axes, *own)}, {number}, {ttype(held.dtype)})"
