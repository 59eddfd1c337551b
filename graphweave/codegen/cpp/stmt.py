"""Statements of the loop IR as C++ statements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import product

from graphweave.codegen.cpp.expr import Scope, accumulated, element, expression, folded, offset_text, row_offset
from graphweave.codegen.cpp.first_edge import FirstEdge, first_edge
from graphweave.codegen.cpp.names import ctype, literal
from graphweave.codegen.cpp.products import declare_turned, multiplied, print_product, turn
from graphweave.codegen.cpp.stream import begin_row, end_row
from graphweave.codegen.cpp.walk import can_fuse, lanes_used
from graphweave.codegen.sums import Sum
from graphweave.codegen.walk import accesses
from graphweave.codegen.writer import Writer
from graphweave.core.types import DType, Fold
from graphweave.ir.loop.nodes import (
    Accum,
    Alloc,
    Buffer,
    Comment,
    Edges,
    Expr,
    FoldLanes,
    Kernel,
    Lanes,
    Let,
    Load,
    Prefetch,
    Raise,
    Rescaled,
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
from graphweave.ir.loop.types import POSITION, identity
from graphweave.ir.loop.walk import statements

_LINE = 64  # bytes fetched by one prefetch
_MAX_LINES = 12  # more would crowd out the loads of the current edge


_SHORT = 4  # lanes of a fold that are written out


@dataclass(frozen=True, slots=True)
class Printer:
    """Prints statements of one kernel. `stashes` by name; `heap` names arrays that live in per-thread scratch; `tiles`
    gives the most positions of each tile; `row` is the kernel's, whose edges in the CSRs `walked` are asked for, and
    whose rows of the outputs `streamed` may go past the cache; `sums` are arrays that the first tile of a row sets."""

    w: Writer
    scope: Scope
    stashes: dict[str, Stash]
    heap: frozenset[str]
    tiles: dict[str, int]
    row: str
    walked: tuple[str, ...]
    streamed: list[Buffer]
    sums: Mapping[str, Sum] = field(default_factory=dict)
    tile_of: dict[str, str] = field(default_factory=dict)  # the tile of each tile array
    csr_of: dict[str, str] = field(default_factory=dict)  # the CSR of each tile
    begun: dict[Stmt, FirstEdge] = field(default_factory=dict)  # by walks, and what adds in them

    def body(self, body: tuple[Stmt, ...]) -> None:
        for i, stmt in enumerate(body):
            begun = first_edge(body[i:], self.scope.arrays)
            if begun is None:
                self._statement(stmt, body[i + 1 :])
            else:
                self.begun[begun.walk] = self.begun[begun.adds] = begun

    def row_pointers(self, variable: str, rest: tuple[Stmt, ...]) -> None:
        """A pointer to row `variable` of each array that `rest` reads or writes there, kept out of the lane loops."""
        for array, index in dict.fromkeys(accesses(rest)):
            info = self.scope.arrays[array]
            key = (array, variable)
            if not info.has_rows or index[0] != Var(variable) or info.numel == 1 or key in self.scope.row_pointers:
                continue
            if array in self.stashes or array in self.tile_of:
                continue
            base, pointer = self.scope.names.of(array), self.scope.names.derived(array, variable)
            offset = row_offset(Var(variable), info.numel, self.scope)
            self.w.line(f"auto* const {pointer} = {base} + {offset};")
            self.scope.row_pointers[key] = pointer

    def _statement(self, stmt: Stmt, rest: tuple[Stmt, ...]) -> None:
        match stmt:
            case Comment(text):
                self.w.line(f"// {text}")
            case Let():
                self._let(stmt, rest)
            case Alloc():
                self._alloc(stmt)
            case Store(buffer, index, value):
                self.w.line(f"{element(buffer, index, self.scope)} = {expression(value, self.scope)};")
            case Accum(buffer, index, fold, value):
                target = element(buffer, index, self.scope)
                self.w.line(f"{accumulated(fold, self.scope.types[buffer], target, value, self.scope)};")
            case Raise():
                self._raise(stmt)
            case FoldLanes():
                self._fold_lanes(stmt)
            case Lanes() if stmt in self.begun:
                self._set_or_add(self.begun[stmt])
            case Lanes():
                self._lanes(stmt)
            case Edges():
                with self._walk_of(stmt):
                    self._edges(stmt)
            case Tiles():
                with self._walk_of(stmt):
                    self._tiles(stmt)
            case TileArray():
                self._tile_array(stmt)
            case TileRows():
                self._rows_of_tile(stmt)
            case TileMatMul() | TileGram():
                print_product(self, stmt)

    def _let(self, stmt: Let, rest: tuple[Stmt, ...]) -> None:
        value = expression(stmt.value, self.scope)
        self.w.line(f"const {ctype(stmt.dtype)} {self._bind(stmt.name, stmt.dtype)} = {value};")
        if stmt.dtype in (DType.i32, DType.i64):
            self.row_pointers(stmt.name, rest)

    def _bind(self, name: str, dtype: DType) -> str:
        """Forget what an earlier block knew of `name`, whose scope has ended."""
        self.scope.types[name] = dtype
        for key in [key for key in self.scope.row_pointers if name in key]:
            del self.scope.row_pointers[key]
        self.scope.fused.discard(name)
        return self.scope.names.of(name)

    def _alloc(self, stmt: Alloc) -> None:
        name = self._bind(stmt.name, stmt.dtype)
        info = self.scope.arrays[stmt.name]
        fill = None if stmt.fill is None else literal(stmt.fill, stmt.dtype)
        if info.is_scalar:
            self.w.line(f"{ctype(stmt.dtype)} {name}{'' if fill is None else f' = {fill}'};")
            return
        sum_ = self.sums.get(stmt.name)
        if sum_ is not None and sum_.copy is not None:
            pointer = self.scope.row_pointers.get((sum_.output, self.row))
            row = row_offset(Var(self.row), info.numel, self.scope)
            self.w.line(f"auto* const {name} = {pointer or f'{self.scope.names.of(sum_.output)} + {row}'};")
        elif stmt.name not in self.heap:
            self.w.line(f"alignas(64) {ctype(stmt.dtype)} {name}[{max(1, info.numel)}];")
        if fill is not None and info.numel:
            if sum_ is not None:
                begin, end = (self.scope.names.derived(sum_.csr, what) for what in ("begin", "end"))
                self.w.line(f"if ({begin} == {end})")
            self.w.flush_left("#pragma omp simd")
            self.w.line(f"for (int64_t gw_i = 0; gw_i < {info.numel}; ++gw_i) {name}[gw_i] = {fill};")

    # ------------------------------------------------------------ online softmax

    def _raise(self, stmt: Raise) -> None:
        """One comparison a tile; what follows from it is rare, since few tiles hold a new maximum of a long row."""
        scope, names, dtype = self.scope, self.scope.names, self.scope.types[stmt.reference]
        lane, size = stmt.lane
        raised, factor = (names.derived(stmt.reference, part) for part in ("raised", "factor"))
        scope.headers.add("online_softmax")

        def per_element(text: str, pragma: str = "#pragma omp simd") -> None:
            with self._loops((stmt.lane,), (), (stmt.value, Var(lane)), pragma):
                reference, value = element(stmt.reference, (Var(lane),), scope), expression(stmt.value, scope)
                self.w.line(text.format(reference=reference, value=value, at=names.of(lane)))

        with self.w.block(f"if ({self._begun(stmt.tile)})"):
            self.w.line(f"int {raised} = 0;")
            per_element(f"{raised} |= !({{value}} <= {{reference}});", f"#pragma omp simd reduction(| : {raised})")
            with self.w.block(f"if ({raised})"):
                self.w.line(f"{ctype(dtype)} {factor}[{size}];")
                per_element(f"{factor}[{{at}}] = gw_factor({{reference}}, {{value}});")
                for s in stmt.sums:
                    self._rescaled(s, stmt.reference, factor)
        per_element("{reference} = gw_max({reference}, {value});")

    def _begun(self, tile: str) -> str:
        """Whether the tile is not the row's first."""
        names = self.scope.names
        return f"{names.derived(tile, 'begin')} > {names.derived(self.csr_of[tile], 'begin')}"

    def _rescaled(self, stmt: Rescaled, reference: str, factor: str) -> None:
        as_store = Store(stmt.buffer, stmt.index, Load(reference, (stmt.of,)))
        with self._loops(stmt.lanes, (as_store,), (), "#pragma omp simd"):
            target = element(stmt.buffer, stmt.index, self.scope)
            by = f"{factor}[{offset_text((stmt.of,), self.scope.arrays[reference].shape, self.scope)}]"
            self.w.line(f"{target} = gw_rescaled({target}, {by});")

    # ------------------------------------------------------------ lanes

    def _lanes(self, stmt: Lanes) -> None:
        simple = not any(
            isinstance(inner, Lanes | Edges) or (isinstance(inner, FoldLanes) and not _is_short(inner))
            for inner in statements(stmt.body)
        )
        pragma = "#pragma omp simd" if simple else None
        with self._loops(stmt.lanes, stmt.body, (), pragma):
            self.body(stmt.body)

    def _fold_lanes(self, stmt: FoldLanes) -> None:
        if _is_short(stmt):
            self._fold_unrolled(stmt)
            return
        width = _tree_width(stmt)
        if width is not None:
            self._fold_by_tree(stmt, width)
            return
        name, text = self._bind(stmt.name, stmt.dtype), ctype(stmt.dtype)
        start = identity(stmt.fold, stmt.dtype)
        self.w.line(f"{text} {name} = {literal(start.value, stmt.dtype)};")
        clause = self._reduction(stmt.fold, stmt.dtype)
        pragma = None if clause is None else f"#pragma omp simd reduction({clause} : {name})"
        with self._loops(stmt.lanes, stmt.body, (stmt.value,), pragma):
            self.body(stmt.body)
            value = expression(stmt.value, self.scope)
            self.w.line(f"{folded(stmt.fold, stmt.dtype, name, value, self.scope)};")

    def _fold_unrolled(self, stmt: FoldLanes) -> None:
        """Few lanes written one after the other, so that the loop around them is what runs on vectors."""
        name, text = self._bind(stmt.name, stmt.dtype), ctype(stmt.dtype)
        start = identity(stmt.fold, stmt.dtype)
        self.w.line(f"{text} {name} = {literal(start.value, stmt.dtype)};")
        for at in product(*(range(extent) for _, extent in stmt.lanes)):
            with self.w.block(""):
                for (lane, _), i in zip(stmt.lanes, at, strict=True):
                    self._bind(lane, POSITION)
                    if lane in lanes_used(stmt.body, (stmt.value,)):
                        self.w.line(f"constexpr int64_t {self.scope.names.of(lane)} = {i};")
                self.body(stmt.body)
                value = expression(stmt.value, self.scope)
                self.w.line(f"{folded(stmt.fold, stmt.dtype, name, value, self.scope)};")

    def _fold_by_tree(self, stmt: FoldLanes, width: int) -> None:
        """A sum as `width` partial sums, added pairwise in registers.

        GCC ends an `omp simd` reduction with one addition after the other: 37 against 9 ns for four sums of 16 products
        (GCC 12, AVX-512, 2026-11).
        """
        (lane, extent), *_ = [pair for pair in stmt.lanes if pair[1] != 1]
        name, text = self._bind(stmt.name, stmt.dtype), ctype(stmt.dtype)
        part, block = f"{name}_part", f"{name}_block"
        full = extent - extent % width
        self.w.line(f"alignas(64) {text} {part}[{width}];")
        self._partial(stmt, lane, ("0", str(width)), f"{part}[{{}}] =")
        if full > width:
            with self.w.block(f"for (int64_t {block} = {width}; {block} < {full}; {block} += {width})"):
                self._partial(stmt, lane, (block, f"{block} + {width}"), f"{part}[{{}} - {block}] +=")
        if extent > full:
            # apart from the vector: a short store into it would stall the wide load that follows
            self.w.line(f"{text} {name}_rest = 0;")
            self._partial(stmt, lane, (str(full), str(extent)), f"{name}_rest +=", simd=False)
        self.scope.headers.add("folds")
        rest = f" + {name}_rest" if extent > full else ""
        self.w.line(f"const {text} {name} = gw_tree{width}({part}){rest};")

    def _partial(self, stmt: FoldLanes, lane: str, span: tuple[str, str], target: str, *, simd: bool = True) -> None:
        """Add the values of the lanes in `span` to the partial sums."""
        for other, _ in stmt.lanes:
            self._bind(other, POSITION)
        at = self.scope.names.of(lane)
        if simd:
            self.w.flush_left("#pragma omp simd")
        with self.w.block(f"for (int64_t {at} = {span[0]}; {at} < {span[1]}; ++{at})"):
            used = lanes_used(stmt.body, (stmt.value,))
            for other, extent in stmt.lanes:
                if extent == 1 and other in used:
                    self.w.line(f"const int64_t {self.scope.names.of(other)} = 0;")
            self.body(stmt.body)
            self.w.line(f"{target.format(at)} {expression(stmt.value, self.scope)};")

    def _reduction(self, fold: Fold, dtype: DType) -> str | None:
        if dtype is DType.bool:
            return None
        if fold in (Fold.sum, Fold.mul):
            return "+" if fold is Fold.sum else "*"
        if not dtype.is_float:
            return fold.value
        self.scope.headers.add("folds")
        return f"gw_{fold.value}"

    @contextmanager
    def _loops(
        self, lanes: tuple[tuple[str, int], ...], body: tuple[Stmt, ...], values: tuple[Expr, ...], pragma: str | None
    ) -> Iterator[None]:
        """The loop nest over `lanes`, lanes of one iteration dropped and linear neighbours fused into one loop."""
        for name, _ in lanes:
            self._bind(name, POSITION)
        loops: list[tuple[str, int]] = []
        for name, extent in reversed([lane for lane in lanes if lane[1] != 1]):
            if loops and can_fuse(name, *loops[0], body, values, self.scope.arrays):
                self.scope.fused.add(name)
                loops[0] = (loops[0][0], loops[0][1] * extent)
            else:
                loops.insert(0, (name, extent))
        with ExitStack() as stack:
            if not loops:
                stack.enter_context(self.w.block(""))
            for i, (name, extent) in enumerate(loops):
                if i == len(loops) - 1 and pragma is not None:
                    self.w.flush_left(pragma)
                lane = self.scope.names.of(name)
                stack.enter_context(self.w.block(f"for (int64_t {lane} = 0; {lane} < {extent}; ++{lane})"))
            used = lanes_used(body, values)
            for name, extent in lanes:
                if extent == 1 and name in used:
                    self.w.line(f"const int64_t {self.scope.names.of(name)} = 0;")
            yield

    # ------------------------------------------------------------ edges

    @contextmanager
    def _walk_of(self, stmt: Edges | Tiles) -> Iterator[None]:
        """Where the edges of a position begin and end; those of the row are known."""
        if stmt.row == self.row or (isinstance(stmt, Edges) and stmt.tile is not None):
            yield
            return
        with self.w.block(""):
            self._edges_of(stmt.csr, stmt.row)
            yield

    def _edges(self, stmt: Edges) -> None:
        k, names = self._bind(stmt.k, POSITION), self.scope.names
        walked = stmt.csr if stmt.tile is None else stmt.tile
        begin, end = names.derived(walked, "begin"), names.derived(walked, "end")
        begun = self.begun.get(stmt)
        if begun is not None:
            self.w.line(f"if ({begin} == {end})")
            self._statement(begun.zero, ())
        with self.w.block(f"for (int64_t {k} = {begin}; {k} < {end}; ++{k})"):
            for distance, shift in sorted({(p.distance, p.shift or "") for p in stmt.prefetch}):
                self._prefetch(stmt, distance, shift or None)
            self._pointers(stmt.k, stmt.body)
            self.body(stmt.body)

    def _set_or_add(self, begun: FirstEdge) -> None:
        k, begin = self.scope.names.of(begun.walk.k), self.scope.names.derived(begun.walk.csr, "begin")
        with self.w.block(f"if ({k} == {begin})"):
            self._lanes(begun.sets)
        with self.w.block("else"):
            self._lanes(begun.adds)

    def _array_pointer(self, array: str, k: str) -> None:
        """A pointer to the row of position `k` in a stash or tile array, whose first row is the first position's."""
        if (array, k) in self.scope.row_pointers:
            return
        pointer = self.scope.names.derived(array, k)
        edge = f"({self.scope.names.of(k)} - {self.first(array)})"
        numel = self.scope.arrays[array].numel
        self.w.line(f"auto* const {pointer} = {self.scope.names.of(array)} + {edge} * {numel};")
        self.scope.row_pointers[array, k] = pointer

    def first(self, array: str) -> str:
        """The position of the first row of a stash or tile array."""
        walked = self.tile_of[array] if array in self.tile_of else self.stashes[array].csr
        return self.scope.names.derived(walked, "begin")

    def edges_of_row(self) -> None:
        """Where the edges of the row begin and end, in each CSR that is walked."""
        for csr in self.walked:
            self._edges_of(csr, self.row)

    def _edges_of(self, csr: str, row: str) -> None:
        names, at = self.scope.names, self.scope.names.of(row)
        indptr, begin, end = (names.derived(csr, what) for what in ("indptr", "begin", "end"))
        self.w.line(f"const int64_t {begin} = {indptr}[{at}], {end} = {indptr}[{at} + 1];")

    # ------------------------------------------------------------ tiles

    def tiles_of_rows(self, kernel: Kernel) -> None:
        """The rows first .. last - 1, tile by tile. Of what products read, the next rows are asked for."""
        assert kernel.tile is not None
        tile, size = kernel.tile
        names = self.scope.names
        begin, end = names.derived(tile, "begin"), names.derived(tile, "end")
        with self.w.block(f"for (int64_t {begin} = first; {begin} < last; {begin} += {size})"):
            self.w.line(f"const int64_t {end} = {begin} + {size} < last ? {begin} + {size} : last;")
            for buffer in multiplied(kernel):
                self.scope.headers.add("prefetch")
                rows, width = names.of(buffer.name), self.scope.arrays[buffer.name].numel
                self.w.line(f"gw_fetch_rows({rows}, {width}, {end}, {size}, last);")
            self.body(kernel.body)

    def _rows_of_tile(self, stmt: TileRows) -> None:
        begin, end = (self.scope.names.derived(stmt.tile, what) for what in ("begin", "end"))
        self.rows(begin, end, stmt.body)

    def rows(self, begin: str, end: str, body: tuple[Stmt, ...]) -> None:
        """`body` for the rows from `begin` on, before `end`."""
        row = self._bind(self.row, POSITION)
        stored = {s.buffer for s in statements(body) if isinstance(s, Store)}
        streamed = [b for b in self.streamed if b.name in stored]
        with self.w.block(f"for (int64_t {row} = {begin}; {row} < {end}; ++{row})"):
            if any(isinstance(s, Edges | Tiles) for s in body):
                self.edges_of_row()
            begin_row(self.w, self.scope, streamed, self.row, {b.name: ctype(b.dtype) for b in streamed})
            self._pointers(self.row, body)
            self.body(body)
            end_row(self.w, self.scope, streamed, self.row)

    def _pointers(self, k: str, body: tuple[Stmt, ...]) -> None:
        """Pointers to row or position `k` of all arrays that `body` reads or writes there."""
        for array, index in dict.fromkeys(accesses(body)):
            if (array in self.stashes or array in self.tile_of) and index[0] == Var(k):
                self._array_pointer(array, k)
        self.row_pointers(k, body)

    def _tiles(self, stmt: Tiles) -> None:
        """Tiles of one row are about equally long where products run: a short last one would waste registers."""
        names = self.scope.names
        first, last = names.derived(stmt.csr, "begin"), names.derived(stmt.csr, "end")
        begin, end = names.derived(stmt.tile, "begin"), names.derived(stmt.tile, "end")
        self._bind(stmt.tile, POSITION)
        self.csr_of[stmt.tile] = stmt.csr
        if not any(isinstance(inner, TileMatMul | TileGram) for inner in statements(stmt.body)):
            with self.w.block(f"for (int64_t {begin} = {first}; {begin} < {last}; {begin} += {stmt.size})"):
                rest = f"{begin} + {stmt.size}"
                self.w.line(f"const int64_t {end} = {rest} < {last} ? {rest} : {last};")
                self.body(stmt.body)
            return
        with self.w.block(""):  # names of a pass
            self._equal_tiles(stmt, (first, last), (begin, end))

    def _equal_tiles(self, stmt: Tiles, all_: tuple[str, str], tile: tuple[str, str]) -> None:
        names, (first, last), (begin, end) = self.scope.names, all_, tile
        number, count, size = names.of(stmt.tile), names.derived(stmt.tile, "count"), names.derived(stmt.tile, "size")
        declare_turned(self, stmt)
        self.w.line(f"const int64_t {count} = ({last} - {first} + {stmt.size - 1}) / {stmt.size};")
        divided = f"{count} > 1 ? ({last} - {first} + {count} - 1) / {count} : {last} - {first}"
        self.w.line(f"const int64_t {size} = {divided};")
        with self.w.block(f"for (int64_t {number} = 0; {number} < {count}; ++{number})"):
            self.w.line(f"const int64_t {begin} = {first} + {number} * {size};")
            self.w.line(f"const int64_t {end} = {begin} + {size} < {last} ? {begin} + {size} : {last};")
            turn(self, stmt, f"{number} == 0")
            self.body(stmt.body)

    def _tile_array(self, stmt: TileArray) -> None:
        name = self._bind(stmt.name, stmt.dtype)
        self.tile_of[stmt.name] = stmt.tile
        if stmt.name not in self.heap:
            size = max(1, self.scope.arrays[stmt.name].numel * self.tiles[stmt.tile])
            self.w.line(f"alignas(64) {ctype(stmt.dtype)} {name}[{size}];")

    def _prefetch(self, stmt: Edges, distance: int, shift: str | None) -> None:
        """Reads the column `distance` ahead only while that is a position of the CSR, of whatever row; shifted
        positions are those of one row."""
        names = self.scope.names
        ahead = f"{names.of(stmt.k)} + {distance}"
        limit = names.derived(stmt.csr, "positions" if shift is None else "end")
        with self.w.block(f"if ({ahead} < {limit})"):
            for prefetch in stmt.prefetch:
                if (prefetch.distance, prefetch.shift) == (distance, shift):
                    self._prefetch_row(prefetch, ahead if shift is None else f"{ahead} + {names.of(shift)}")

    def _prefetch_row(self, prefetch: Prefetch, ahead: str) -> None:
        array, names = self.scope.arrays[prefetch.buffer], self.scope.names
        size = array.numel * array.dtype.itemsize
        lines = list(range(0, size, _LINE))[:_MAX_LINES]
        if size > _LINE and size % _LINE and len(lines) < _MAX_LINES:
            lines.append(size - 1)  # rows that are not whole lines may straddle one more
        column = f"{names.of(prefetch.column)}[{ahead}]"
        row = f"(const char*)({names.of(array.name)} + (int64_t){column} * {array.numel})"
        pointer = names.derived(prefetch.buffer, prefetch.column, "ahead")
        self.w.line(f"const char* const {pointer} = {row};")
        for line in lines:
            self.w.line(f"__builtin_prefetch({pointer}{f' + {line}' if line else ''});")


def _is_short(stmt: FoldLanes) -> bool:
    total = 1
    for _, extent in stmt.lanes:
        total *= extent
    return 0 < total <= _SHORT


def _tree_width(stmt: FoldLanes) -> int | None:
    """Partial sums for a fold worth splitting: a sum over one lane of a vector or more."""
    wide = [extent for _, extent in stmt.lanes if extent != 1]
    widths = {DType.f32: (16, 8), DType.f64: (8, 4)}.get(stmt.dtype, ())
    if stmt.fold is not Fold.sum or len(wide) != 1:
        return None
    fitting = [w for w in widths if wide[0] >= w]
    return next((w for w in fitting if wide[0] % w == 0), fitting[0] if fitting else None)
