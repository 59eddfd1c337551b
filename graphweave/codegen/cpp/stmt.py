"""Statements of the loop IR as C++ statements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from graphweave.codegen.cpp.expr import accumulated, begin_of, element, expression, row_offset
from graphweave.codegen.cpp.first_edge import FirstEdge, first_edge
from graphweave.codegen.cpp.half_products import pack_for_row
from graphweave.codegen.cpp.lanes import print_fold, print_lanes
from graphweave.codegen.cpp.names import ctype, literal
from graphweave.codegen.cpp.printer import SHORT, CppPrinter
from graphweave.codegen.cpp.products import declare_transposed, multiplied, print_product, transpose
from graphweave.codegen.cpp.raising import print_raise
from graphweave.codegen.cpp.stream import begin_row, end_row
from graphweave.codegen.walk import accesses
from graphweave.core.types import DType, Fold, OwnFold
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.own_folds import as_store
from graphweave.ir.loop.types import POSITION
from graphweave.ir.loop.walk import statements

_LINE = 64
"""Bytes of a cache line, which one prefetch fetches."""
_MAX_LINES = 12
"""A row's prefetch takes at most this many lines; more would crowd out the loads of the current edge."""


@dataclass(frozen=True, slots=True)
class Statements(CppPrinter):
    """Prints statements of every kind; those of lanes, products and raises have files of their own."""

    def body(self, body: tuple[loop.Stmt, ...]) -> None:
        for i, stmt in enumerate(body):
            begun = first_edge(body[i:], self.scope.arrays)
            if begun is None:
                self.statement(stmt, body[i + 1 :])
            else:
                self.begun[begun.walk] = self.begun[begun.adds] = begun

    def statement(self, stmt: loop.Stmt, rest: tuple[loop.Stmt, ...]) -> None:
        match stmt:
            case loop.Comment(text):
                self.w.line(f"// {text}")
            case loop.Let():
                self._let(stmt, rest)
            case loop.Alloc():
                self._alloc(stmt)
            case loop.Store(buffer, index, value):
                self.w.line(f"{element(buffer, index, self.scope)} = {expression(value, self.scope)};")
            case loop.Accum(buffer, fold=OwnFold() as own):
                self.statement(as_store(stmt, own, self.scope.types[buffer]), rest)
            case loop.Accum(buffer, index, Fold() as fold, value):
                target = element(buffer, index, self.scope)
                self.w.line(f"{accumulated(fold, self.scope.types[buffer], target, value, self.scope)};")
            case loop.Raise():
                print_raise(self, stmt)
            case loop.FoldLanes():
                print_fold(self, stmt)
            case loop.Lanes() if stmt in self.begun:
                self._set_or_add(self.begun[stmt])
            case loop.Lanes():
                print_lanes(self, stmt)
            case loop.Edges():
                with self._walk_of(stmt):
                    self._edges(stmt)
            case loop.Tiles():
                with self._walk_of(stmt):
                    self._tiles(stmt)
            case loop.TileArray():
                self._tile_array(stmt)
            case loop.TileRows():
                self._rows_of_tile(stmt)
            case loop.TileMatMul() | loop.TileGram():
                print_product(self, stmt)

    def _let(self, stmt: loop.Let, rest: tuple[loop.Stmt, ...]) -> None:
        value = expression(stmt.value, self.scope)
        self.w.line(f"const {ctype(stmt.dtype)} {self.bind(stmt.name, stmt.dtype)} = {value};")
        if stmt.dtype in (DType.i32, DType.i64):
            self.row_pointers(stmt.name, rest)

    def _alloc(self, stmt: loop.Alloc) -> None:
        name = self.bind(stmt.name, stmt.dtype)
        info = self.scope.arrays[stmt.name]
        self.local.add(stmt.name)
        fill = None if stmt.fill is None else literal(stmt.fill, stmt.dtype)
        if info.is_scalar:
            self.w.line(f"{ctype(stmt.dtype)} {name}{'' if fill is None else f' = {fill}'};")
            return
        sum_ = self.sums.get(stmt.name)
        if sum_ is not None and sum_.copy is not None:
            pointer = self.scope.row_pointers.get((sum_.output, self.row))
            row = row_offset(loop.Var(self.row), info.numel, self.scope)
            self.w.line(f"auto* const {name} = {pointer or f'{self.scope.names.of(sum_.output)} + {row}'};")
        elif stmt.name not in self.heap:
            self.w.line(f"alignas(64) {ctype(stmt.dtype)} {name}[{_whole_lines(info.numel, stmt.dtype)}];")
        if fill is not None and info.numel:
            filled = _whole_lines(info.numel, stmt.dtype) if self.is_padded(stmt.name) else info.numel
            if sum_ is not None:
                begin, end = (self.scope.names.derived(sum_.csr, what) for what in ("begin", "end"))
                self.w.line(f"if ({begin} == {end})")
            self.w.line(f"for (int64_t gw_i = 0; gw_i < {filled}; ++gw_i) {name}[gw_i] = {fill};")

    # ------------------------------------------------------------ edges

    @contextmanager
    def _walk_of(self, stmt: loop.Edges | loop.Tiles) -> Iterator[None]:
        """Prints where the edges of a position begin and end, unless `stmt` walks those of the row, which are known."""
        if stmt.row == self.row or (isinstance(stmt, loop.Edges) and stmt.tile is not None):
            yield
            return
        with self.w.block(""):
            self._edges_of(stmt.csr, stmt.row)
            yield

    def _edges(self, stmt: loop.Edges) -> None:
        k, names = self.bind(stmt.k, POSITION), self.scope.names
        walked = stmt.csr if stmt.tile is None else stmt.tile
        begin, end = names.derived(walked, "begin"), names.derived(walked, "end")
        begun = self.begun.get(stmt)
        if begun is not None:
            with self.w.block(f"if ({begin} == {end})"):
                self.statement(begun.zero, ())
        if stmt.unroll is not None:
            self.w.flush_left(f"#pragma GCC unroll {stmt.unroll}")
        with self.w.block(f"for (int64_t {k} = {begin}; {k} < {end}; ++{k})"):
            for distance, shift in sorted({(p.distance, p.shift or "") for p in stmt.prefetch}):
                self._prefetch(stmt, distance, shift or None)
            self._pointers(stmt.k, stmt.body)
            self.body(stmt.body)

    def _set_or_add(self, begun: FirstEdge) -> None:
        k, begin = self.scope.names.of(begun.walk.k), self.scope.names.derived(begun.walk.csr, "begin")
        with self.w.block(f"if ({k} == {begin})"):
            print_lanes(self, begun.sets)
        with self.w.block("else"):
            print_lanes(self, begun.adds)

    def _array_pointer(self, array: str, k: str) -> None:
        """Prints a pointer to the row of position `k` in a stash or tile array, whose rows begin at the first one."""
        if (array, k) in self.scope.row_pointers:
            return
        pointer = self.scope.names.derived(array, k)
        edge = f"({self.scope.names.of(k)} - {self.first(array)})"
        numel = self.scope.arrays[array].numel
        self.w.line(f"auto* const {pointer} = {self.scope.names.of(array)} + {edge} * {numel};")
        self.scope.row_pointers[array, k] = pointer

    def edges_of_row(self) -> None:
        """Prints where the edges of the row begin and end in each CSR that has its rows."""
        for csr in self.walked:
            self._edges_of(csr, self.row)

    def _edges_of(self, csr: str, row: str) -> None:
        names, at = self.scope.names, self.scope.names.of(row)
        begin, end = names.derived(csr, "begin"), names.derived(csr, "end")
        first, after = begin_of(csr, at, self.scope), begin_of(csr, f"{at} + 1", self.scope)
        self.w.line(f"const int64_t {begin} = {first}, {end} = {after};")

    # ------------------------------------------------------------ tiles

    def tiles_of_rows(self, kernel: loop.Kernel) -> None:
        """Prints the rows first .. last - 1 tile by tile, with prefetches of the next rows that products read."""
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

    def _rows_of_tile(self, stmt: loop.TileRows) -> None:
        begin, end = (self.scope.names.derived(stmt.tile, what) for what in ("begin", "end"))
        self.rows(begin, end, stmt.body)

    def rows(self, begin: str, end: str, body: tuple[loop.Stmt, ...], within: tuple[loop.Lane, ...] = ()) -> None:
        """Prints `body` for the rows begin .. end - 1, in each of them for all combinations of the lanes `within`."""
        row = self.bind(self.row, POSITION)
        stored = {s.buffer for s in statements(body) if isinstance(s, loop.Store)}
        streamed = [b for b in self.streamed if b.name in stored]
        with self.w.block(f"for (int64_t {row} = {begin}; {row} < {end}; ++{row})"):
            if any(isinstance(s, loop.Edges | loop.Tiles) for s in body):
                self.edges_of_row()
            begin_row(self.w, self.scope, streamed, self.row, {b.name: ctype(b.dtype) for b in streamed})
            self._pointers(self.row, body)
            with ExitStack() as stack:
                for name, extent in within:
                    lane = self.scope.names.of(name)
                    stack.enter_context(self.w.block(f"for (int64_t {lane} = 0; {lane} < {extent}; ++{lane})"))
                self.body(body)
            end_row(self.w, self.scope, streamed, self.row)

    def _pointers(self, k: str, body: tuple[loop.Stmt, ...]) -> None:
        """Prints pointers to row or position `k` of all arrays that `body` reads or writes there."""
        for array, index in dict.fromkeys(accesses(body)):
            if (array in self.stashes or array in self.tile_of) and index[0] == loop.Var(k):
                self._array_pointer(array, k)
        self.row_pointers(k, body)

    def _tiles(self, stmt: loop.Tiles) -> None:
        """Prints the tiles of a row. With products inside they are about equally long: a short last one would waste
        registers."""
        names = self.scope.names
        first, last = names.derived(stmt.csr, "begin"), names.derived(stmt.csr, "end")
        begin, end = names.derived(stmt.tile, "begin"), names.derived(stmt.tile, "end")
        self.bind(stmt.tile, POSITION)
        self.csr_of[stmt.tile] = stmt.csr
        if not any(isinstance(inner, loop.TileMatMul | loop.TileGram) for inner in statements(stmt.body)):
            with self.w.block(f"for (int64_t {begin} = {first}; {begin} < {last}; {begin} += {stmt.size})"):
                rest = f"{begin} + {stmt.size}"
                self.w.line(f"const int64_t {end} = {rest} < {last} ? {rest} : {last};")
                self.body(stmt.body)
            return
        with self.w.block(""):  # names of a pass
            self._equal_tiles(stmt, (first, last), (begin, end))

    def _equal_tiles(self, stmt: loop.Tiles, all_: tuple[str, str], tile: tuple[str, str]) -> None:
        names, (first, last), (begin, end) = self.scope.names, all_, tile
        number, count, size = names.of(stmt.tile), names.derived(stmt.tile, "count"), names.derived(stmt.tile, "size")
        declare_transposed(self, stmt)
        self.w.line(f"const int64_t {count} = ({last} - {first} + {stmt.size - 1}) / {stmt.size};")
        divided = f"{count} > 1 ? ({last} - {first} + {count} - 1) / {count} : {last} - {first}"
        self.w.line(f"const int64_t {size} = {divided};")
        with self.w.block(f"for (int64_t {number} = 0; {number} < {count}; ++{number})"):
            self.w.line(f"const int64_t {begin} = {first} + {number} * {size};")
            self.w.line(f"const int64_t {end} = {begin} + {size} < {last} ? {begin} + {size} : {last};")
            transpose(self, stmt, f"{number} == 0")
            pack_for_row(self, stmt, f"{number} == 0")
            self.body(stmt.body)

    def _tile_array(self, stmt: loop.TileArray) -> None:
        name = self.bind(stmt.name, stmt.dtype)
        self.tile_of[stmt.name] = stmt.tile
        if stmt.name not in self.heap:
            size = max(1, self.scope.arrays[stmt.name].numel * self.tiles[stmt.tile])
            self.w.line(f"alignas(64) {ctype(stmt.dtype)} {name}[{size}];")

    def _prefetch(self, stmt: loop.Edges, distance: int, shift: str | None) -> None:
        """Prints prefetches `distance` positions ahead, as long as the CSR has such a position, in whatever row; with
        `shift` as long as the row has."""
        names = self.scope.names
        ahead = f"{names.of(stmt.k)} + {distance}"
        limit = names.derived(stmt.csr, "positions" if shift is None else "end")
        with self.w.block(f"if ({ahead} < {limit})"):
            for prefetch in stmt.prefetch:
                if (prefetch.distance, prefetch.shift) == (distance, shift):
                    self._prefetch_row(prefetch, ahead if shift is None else f"{ahead} + {names.of(shift)}")

    def _prefetch_row(self, prefetch: loop.Prefetch, ahead: str) -> None:
        array, names = self.scope.arrays[prefetch.buffer], self.scope.names
        numel = array.numel if prefetch.size is None else prefetch.size
        size = numel * array.dtype.itemsize
        lines = list(range(0, size, _LINE))[:_MAX_LINES]
        if size > _LINE and size % _LINE and len(lines) < _MAX_LINES:
            lines.append(size - 1)  # rows that are not whole lines may straddle one more
        column = f"{names.of(prefetch.column)}[{ahead}]"
        row = f"(const char*)({names.of(array.name)} + (int64_t){column} * {array.numel})"
        if prefetch.at is not None:
            at = expression(prefetch.at, self.scope)
            row = f"(const char*)({names.of(array.name)} + (int64_t){column} * {array.numel} + {at})"
        pointer = names.derived(prefetch.buffer, prefetch.column, "ahead")
        self.w.line(f"const char* const {pointer} = {row};")
        for line in lines:
            self.w.line(f"__builtin_prefetch({pointer}{f' + {line}' if line else ''});")


def _whole_lines(numel: int, dtype: DType) -> int:
    """`numel` rounded up so that an array fills cache lines; fewer than `SHORT` elements are not padded."""
    line = _LINE // dtype.itemsize if numel >= SHORT else 1
    return max(1, -(-numel // line)) * line
