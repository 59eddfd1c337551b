"""A whole kernel as one C++ translation unit.

The entry point has the same C signature for every kernel:

    int32_t NAME(void* const* ptrs, const int64_t* sizes, const int64_t* chunks, int64_t num_chunks,
                 int32_t num_threads)

`ptrs`: the indptr of each CSR that has one, then each buffer, in the kernel's order. `sizes`: the kernel's sizes, then
the largest degree of each such CSR. `chunks`: `num_chunks + 1` row boundaries. A chunk that begins with ~row, which is
negative, is left out, as its rows are divided rows (`lower/divide.py`). Threads take whole chunks (`gw_parallel` shares
them out); each chunk has totals of its own, folded in a fixed order, so results do not depend on the number of threads.
Sums are added up in blocks of rows first (`_BLOCK_ROWS`), since adding millions of numbers one by one loses digits.
A kernel that walks items has a chunk for each share of the items (`item_shares.py`).
Returns 0, or 1 if scratch could not be allocated. Outputs may not overlap inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import ExitStack

from graphweave.codegen.arrays import Array
from graphweave.codegen.cpp.expr import CppScope, begin_of
from graphweave.codegen.cpp.folding import ALIGN, fill, fold_into, padded
from graphweave.codegen.cpp.half_products import half_of, pack_before_rows, packed
from graphweave.codegen.cpp.item_shares import ItemShares
from graphweave.codegen.cpp.names import cpp_names, ctype
from graphweave.codegen.cpp.native import HALVES, includes
from graphweave.codegen.cpp.products import by_rows, gathering, scattered, transposed_matrices
from graphweave.codegen.cpp.stmt import Statements
from graphweave.codegen.cpp.stream import declare, streamed
from graphweave.codegen.sums import sums_of
from graphweave.codegen.walk import binders, local_arrays, tile_sizes
from graphweave.codegen.writer import Writer
from graphweave.core.types import Fold
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.types import POSITION, parameter_types
from graphweave.ir.loop.walk import csrs_around, statements

_STACK_LIMIT = 65536
"""Arrays of more bytes than this lie in the thread's scratch instead of on its stack."""
_BLOCK_ROWS = 64
"""A chunk adds up blocks of at least so many rows by themselves, and these sums in float64. The error of n numbers that
are added one by one in float32 grows with n: the mean loss of two million nodes was wrong in its fifth digit."""
_PER_ROW = {"totals": 4, "packed": 16}
"""Blocks are so long that no more elements of totals are added, or of packed matrices packed, for each row."""
_BLOCK_BYTES = 16384
"""A total of more bytes has no sums of blocks, which lie on the stack."""


def print_kernel(kernel: loop.Kernel) -> str:
    """The C++ text of a well-formed kernel; equal kernels give equal text.

    Raises:
        IRError: if the kernel cannot be written in C++, for example because an operator has no C++ form.
    """
    unit = _CppUnit(kernel)
    body, entry = unit.row_function(), unit.entry()  # printing them collects the headers they need
    header = "".join(f"// {line}\n" for line in kernel.header)
    functions = [text for _, text in sorted(unit.scope.functions.items())]
    parts = [header, includes(unit.scope.headers), body, entry]
    if functions:
        # Another kernel of the same library may have these functions too, with other bodies if an operator was declared
        # anew in between. Bodies may call what <cmath> has.
        own = [f"namespace functions_of_{kernel.name} {{\n", *functions, body, entry, "}\n"]
        parts = [header, f"#include <cmath>\n{includes(unit.scope.headers)}", *own]
    return "\n".join(part for part in parts if part)


class _CppUnit:
    def __init__(self, kernel: loop.Kernel) -> None:
        self.kernel = kernel
        arrays = {b.name: Array(b.name, b.dtype, b.shape, b.rows is not None) for b in kernel.buffers}
        arrays |= {s.name: Array(s.name, s.dtype, s.shape, has_rows=True) for s in kernel.stashes}
        arrays |= local_arrays(kernel.body)
        packs = packed(kernel, arrays)
        rearranged = [*transposed_matrices(kernel, arrays), *packs]
        arrays |= {a.name: Array(a.name, a.dtype, a.shape, has_rows=False) for a in rearranged}
        tile = () if kernel.tile is None else kernel.tile[:1]
        self.swept = [name for name, _ in kernel.sweep]
        self.names = cpp_names(
            [
                kernel.name,
                kernel.row,
                *tile,
                *self.swept,
                *(name for name, _ in kernel.within),
                *arrays,
                *kernel.sizes,
                *(csr.name for csr in kernel.csrs),
                *binders(kernel.body),
            ]
        )
        swept_types = {name: POSITION for name, _ in (*kernel.sweep, *kernel.within)}
        types = parameter_types(kernel) | swept_types
        runs = frozenset(csr.name for csr in kernel.csrs if csr.positions is not None)
        self.scope = CppScope(
            self.names, arrays, types, headers={"base", "parallel"}, vectors=kernel.vectors, runs=runs
        )  # fmt: skip
        self.scope.headers.update(HALVES[a.dtype] for a in arrays.values() if a.dtype in HALVES)
        self.tiles = tile_sizes(kernel)
        sums = sums_of(kernel, arrays).items()
        self.sums = {name: s for name, s in sums if by_rows(s.gram) or half_of(s.gram, arrays)}
        self.heap = self._too_large_for_the_stack((*statements(kernel.body), *rearranged))
        self.totals = [b for b in kernel.buffers if b.role is loop.Role.total and b.rows is None]
        self.in_blocks = [b for b in self.totals if self._has_blocks(b)]
        self.block_rows = self._block_rows(sum(alloc.shape[0] for alloc in packs))
        over_items = (b for b in kernel.buffers if b.role is loop.Role.total and b.rows is not None)
        self.shares = ItemShares(kernel, self.scope, tuple(over_items))
        self.private: list[loop.Stash | loop.Alloc | loop.TileArray] = [*kernel.stashes, *self.heap]
        self.scratch = bool(self.private)
        self.rows_name = self.names.derived(kernel.name, "rows")
        edges = [stmt for stmt in statements(kernel.body) if isinstance(stmt, loop.Edges | loop.Tiles)]
        self.walked = csrs_around(kernel)
        hints = [(stmt.csr, hint) for stmt in edges if isinstance(stmt, loop.Edges) for hint in stmt.prefetch]
        self.prefetching = {csr for csr, hint in hints if hint.shift is None} | gathering(kernel)
        adding = [s for s in statements(kernel.body) if isinstance(s, loop.TileMatMul) and s.add is not None]
        self.shared: set[loop.Place | None] = {
            p for stmt in adding for p in (stmt.add, stmt.out)
        }  # may be the same memory
        self.streamed = [b for b in streamed(kernel) if b.name not in self.shared]
        self.counts_rows = bool(self.prefetching or self.streamed)
        self.counts_items = bool(self.streamed) and kernel.items is not None
        self.stored = [csr for csr in kernel.csrs if csr.positions is None]
        self.csrs = [self.names.derived(csr.name, "degree" if csr.positions else "indptr") for csr in kernel.csrs]

    def _too_large_for_the_stack(self, stmts: Iterable[loop.Stmt]) -> list[loop.Alloc | loop.TileArray]:
        """The arrays that need memory of their own; sums that are made in place need none."""
        in_place = {name for name, s in self.sums.items() if s.copy is not None}
        arrays = (s for s in stmts if isinstance(s, loop.Alloc | loop.TileArray) and s.name not in in_place)
        return [array for array in arrays if self._local_bytes(array) > _STACK_LIMIT]

    def _local_bytes(self, stmt: loop.Alloc | loop.TileArray) -> int:
        rows = self.tiles[stmt.tile] if isinstance(stmt, loop.TileArray) else 1
        return rows * self.scope.arrays[stmt.name].numel * stmt.dtype.itemsize

    @property
    def part(self) -> str:
        """The name of what a thread takes at a time, which has its own part of each total."""
        return "chunk" if self.kernel.items is None else "gw_part"

    @property
    def num_parts(self) -> str:
        return "num_chunks" if self.kernel.items is None else "num_chunks * gw_shares"

    # ------------------------------------------------------------ the rows of one chunk

    def row_function(self) -> str:
        w, kernel, names = Writer(), self.kernel, self.names
        index = ctype(kernel.index)
        indptr = f"const {index}* __restrict__"
        kinds = ["int64_t" if csr.positions else indptr for csr in kernel.csrs]
        params = [f"{kind} {name}" for kind, name in zip(kinds, self.csrs, strict=True)]
        params += [
            f"{_pointee(b)}* {'' if b.name in self.shared else '__restrict__ '}{names.of(b.name)}"
            for b in kernel.buffers
        ]
        params += [f"{ctype(s.dtype)}* __restrict__ {names.of(s.name)}" for s in self.private]
        params += [f"int64_t {names.of(lane)}" for lane in self.swept]
        params += ["int64_t num_rows"] if self.counts_rows else []
        params += ["int64_t num_items"] if self.counts_items else []
        w.line("// the rows first .. last - 1, in order")
        w.line(f"static __attribute__((noinline)) void {self.rows_name}(")
        for param in params:
            w.line(f"    {param},")
        heap = frozenset(a.name for a in self.heap)
        of_rows = {csr for csr, around in self.walked.items() if around is None}
        walked = tuple(csr.name for csr in kernel.csrs if csr.name in of_rows)
        stashes = {s.name: s for s in kernel.stashes}
        printer = Statements(
            w,
            self.scope,
            stashes,
            heap,
            self.tiles,
            kernel.row,
            walked,
            self.streamed,
            self.sums,
            totals=frozenset(b.name for b in self.totals),
        )
        with w.block("    int64_t first, int64_t last)"):
            for csr in dict.fromkeys(c for name in sorted(self.prefetching) for c in self._down_to(name)):
                around = self.walked[csr]
                rows = "num_rows" if around is None else names.derived(around, "positions")
                begins = begin_of(csr, rows, self.scope)
                w.line(f"const int64_t {names.derived(csr, 'positions')} = {begins};")
            declare(w, self.scope, self.streamed, "num_items * num_rows" if self.counts_items else "num_rows")
            for buffer, walked_csr in scattered(kernel):
                declare(w, self.scope, [buffer], names.derived(walked_csr, "positions"))
            pack_before_rows(printer, kernel)
            if kernel.tile is not None:
                printer.tiles_of_rows(kernel)
            else:
                copies = [s.copy for s in self.sums.values() if s.copy is not None]
                printer.rows("first", "last", tuple(s for s in kernel.body if s not in copies), kernel.within)
            if self.streamed and not self.in_blocks:
                w.line("gw_streamed();")
        return w.text()

    def _down_to(self, csr: str) -> list[str]:
        """`csr`, after the CSRs that are walked around it, the outermost first."""
        around = self.walked[csr]
        return [csr] if around is None else [*self._down_to(around), csr]

    # ------------------------------------------------------------ the entry point

    def entry(self) -> str:
        w, kernel, names = Writer(), self.kernel, self.names
        w.line(f'extern "C" int32_t {kernel.name}(')
        w.line("    void* const* ptrs, const int64_t* sizes, const int64_t* chunks, int64_t num_chunks,")
        with w.block("    int32_t num_threads)"):
            index = ctype(kernel.index)
            types = [f"const {index}" for _ in self.stored] + [_pointee(buffer) for buffer in kernel.buffers]
            locals_ = [names.derived(csr.name, "indptr") for csr in self.stored]
            locals_ += [names.of(buffer.name) for buffer in kernel.buffers]
            for i, (type_, name) in enumerate(zip(types, locals_, strict=True)):
                w.line(f"{type_}* const {name} = static_cast<{type_}*>(ptrs[{i}]);")
            for csr in kernel.csrs:
                if csr.positions is not None:
                    degree, count = names.derived(csr.name, "degree"), f"sizes[{kernel.sizes.index(csr.positions)}]"
                    w.line(f"const int64_t {degree} = sizes[0] > 0 ? {count} / sizes[0] : 0;")
            if kernel.items is not None:
                self.shares.count(w)
            if self.scratch:
                self._allocate_scratch(w)
            if self.totals:
                self._allocate_parts(w)
            if self.shares.totals:
                held = [name for name, there in (("parts", self.totals), ("scratch", self.scratch)) if there]
                self.shares.allocate(w, held)
            with ExitStack() as sweep:
                for name, extent in kernel.sweep:
                    lane = names.of(name)
                    sweep.enter_context(w.block(f"for (int64_t {lane} = 0; {lane} < {extent}; ++{lane})"))
                self._chunks(w)
            if self.totals:
                self._fold_parts(w)
            if self.shares.totals:
                self.shares.fold(w)
            if self.scratch:
                w.line("free(scratch);")
            w.line("return 0;")
        return w.text()

    def _chunks(self, w: Writer) -> None:
        thread, part = "int32_t thread" if self.scratch else "int32_t", self.part
        with w.block(f"gw_parallel({self.num_parts}, num_threads, [&](int64_t {part}, {thread})", tail="});"):
            self._chunk(w)

    def _allocate_scratch(self, w: Writer) -> None:
        """Allocate scratch for all threads: for each its stashes (largest degree x elements), then its large arrays."""
        kernel = self.kernel
        degree = {csr.name: f"sizes[{len(kernel.sizes) + i}]" for i, csr in enumerate(self.stored)}
        degree |= {csr: self.names.derived(csr, "degree") for csr in self.scope.runs}
        w.line("if (num_threads < 1) num_threads = 1;")
        w.line("int64_t gw_bytes = 0;")
        for stash in kernel.stashes:
            size = self.scope.arrays[stash.name].numel * stash.dtype.itemsize
            w.line(f"const int64_t {self.names.derived('at', stash.name)} = gw_bytes;")
            w.line(f"gw_bytes += {padded(f'{degree[stash.csr]} * {size}')};")
        for alloc in self.heap:
            size = _padded(self._local_bytes(alloc))
            w.line(f"const int64_t {self.names.derived('at', alloc.name)} = gw_bytes;")
            w.line(f"gw_bytes += {size};")
        w.line("char* scratch = nullptr;")
        with w.block("if (gw_bytes > 0)"):
            w.line(f"scratch = static_cast<char*>(aligned_alloc({ALIGN}, gw_bytes * num_threads));")
            w.line("if (scratch == nullptr) return 1;")

    def _allocate_parts(self, w: Writer) -> None:
        """Allocate copies of all totals, one of each for every chunk."""
        size = sum(self._part_bytes(buffer) for buffer in self.totals)
        w.line(f"char* const parts = static_cast<char*>(aligned_alloc({ALIGN}, {size} * ({self.num_parts} + 1)));")
        failed = "free(scratch); return 1;" if self.scratch else "return 1;"
        w.line(f"if (parts == nullptr) {{ {failed} }}")

    def _part_bytes(self, buffer: loop.Buffer) -> int:
        return _padded(self.scope.arrays[buffer.name].numel * buffer.dtype.itemsize)

    def _parts(self, w: Writer, part: str, suffix: str = "part") -> dict[str, str]:
        """Declares a pointer to the copy of each total that the chunk `part` has; returns their names."""
        stride = sum(self._part_bytes(buffer) for buffer in self.totals)
        at, pointers = 0, {}
        for buffer in self.totals:
            type_, pointer = ctype(buffer.dtype), self.names.derived(buffer.name, suffix)
            w.line(f"{type_}* const {pointer} = reinterpret_cast<{type_}*>(parts + {part} * {stride} + {at});")
            pointers[buffer.name] = pointer
            at += self._part_bytes(buffer)
        return pointers

    def _fill(self, w: Writer, buffer: loop.Buffer, pointer: str) -> None:
        fill(w, buffer, self.scope.arrays[buffer.name].numel, pointer)

    def _chunk(self, w: Writer) -> None:
        pointers, sums, blocks = self._parts(w, self.part), self._sums_of_blocks(w), self._of_blocks("block")
        for buffer in self.totals:
            self._fill(w, buffer, pointers[buffer.name])
        if self.kernel.items is not None:
            w.line("const int64_t chunk = gw_part % num_chunks, gw_share = gw_part / num_chunks;")
        totals = pointers | blocks | self.shares.copies(w)
        args = self.csrs + [totals.get(b.name, self._rows_of_item(b)) for b in self.kernel.buffers]
        if self.scratch:
            w.line("char* const gw_mine = scratch + gw_bytes * thread;")
            for array in self.private:
                at = self.names.derived("at", array.name)
                args.append(f"reinterpret_cast<{ctype(array.dtype)}*>(gw_mine + {at})")
        args += [self.names.of(lane) for lane in self.swept]
        args += ["sizes[0]"] if self.counts_rows else []
        args += ["gw_items"] if self.counts_items else []
        if self.kernel.items is not None:
            w.line("const int64_t gw_end = gw_items * (gw_share + 1) / gw_shares;")
            with w.block("for (int64_t gw_item = gw_items * gw_share / gw_shares; gw_item < gw_end; ++gw_item)"):
                self._call_rows(w, args)
        else:
            self._call_rows(w, args)
        for buffer in self.in_blocks:
            self._add_to(w, buffer, pointers[buffer.name], sums[buffer.name])
        if self.in_blocks and self.streamed:
            w.line("gw_streamed();")

    def _sums_of_blocks(self, w: Writer) -> dict[str, str]:
        """Declares the sums of a chunk's blocks of rows; returns their names."""
        sums = self._of_blocks("sum")
        for name, array in sums.items():
            w.line(f"double {array}[{self.scope.arrays[name].numel}] = {{}};")
        return sums

    def _of_blocks(self, suffix: str) -> dict[str, str]:
        """The names of arrays, one for each total that is summed in blocks of rows."""
        return {b.name: self.names.derived(b.name, suffix) for b in self.in_blocks}

    def _call_rows(self, w: Writer, args: list[str]) -> None:
        if not self.walked or self.kernel.items is not None:  # no row of a kernel that walks items is divided
            self._call_between(w, args, "chunks[chunk]", "chunks[chunk + 1]")
            return
        w.line("const int64_t gw_next = chunks[chunk + 1];")
        with w.block("if (chunks[chunk] >= 0)"):
            self._call_between(w, args, "chunks[chunk]", "gw_next < 0 ? ~gw_next : gw_next")

    def _call_between(self, w: Writer, args: list[str], first: str, end: str) -> None:
        """Calls the function of rows: once, or for blocks of rows, whose sums are added to the chunk's totals."""
        if not self.in_blocks:
            w.line(f"{self.rows_name}({', '.join([*args, first, end])});")
            return
        self.scope.headers.add("folds")
        sums, blocks = self._of_blocks("sum"), self._of_blocks("block")
        w.line(f"const int64_t gw_last = {end};")
        with w.block(f"for (int64_t gw_begin = {first}; gw_begin < gw_last; gw_begin += {self.block_rows})"):
            short = f"gw_last - gw_begin < {self.block_rows}"
            w.line(f"const int64_t gw_until = {short} ? gw_last : gw_begin + {self.block_rows};")
            for buffer in self.in_blocks:
                padded_numel = self._part_bytes(buffer) // buffer.dtype.itemsize
                w.line(f"alignas({ALIGN}) {ctype(buffer.dtype)} {blocks[buffer.name]}[{padded_numel}];")
                self._fill(w, buffer, blocks[buffer.name])
            w.line(f"{self.rows_name}({', '.join([*args, 'gw_begin', 'gw_until'])});")
            for buffer in self.in_blocks:
                self._add_to(w, buffer, sums[buffer.name], blocks[buffer.name])

    def _add_to(self, w: Writer, buffer: loop.Buffer, target: str, sums: str) -> None:
        w.line(f"gw_add_to<{self.scope.arrays[buffer.name].numel}>({target}, {sums});")

    def _has_blocks(self, buffer: loop.Buffer) -> bool:
        floats = buffer.fold is Fold.sum and buffer.dtype.is_float
        return floats and self._part_bytes(buffer) <= _BLOCK_BYTES

    def _block_rows(self, packed_elements: int) -> int:
        added = sum(self.scope.arrays[b.name].numel for b in self.in_blocks)
        least = max(added / _PER_ROW["totals"], packed_elements / _PER_ROW["packed"])
        return _BLOCK_ROWS * max(1, math.ceil(least / _BLOCK_ROWS))

    def _rows_of_item(self, buffer: loop.Buffer) -> str:
        """Where the rows of a buffer begin that the body reads or writes."""
        name = self.names.of(buffer.name)
        if not buffer.items:
            return name
        rows = 1 if buffer.rows is None else f"sizes[{self.kernel.sizes.index(buffer.rows)}]"
        return f"{name} + gw_item * {rows} * {self.scope.arrays[buffer.name].numel}"

    def _fold_parts(self, w: Writer) -> None:
        """Folds the copies two by two, which keeps the digits of sums, then the last one into the totals."""
        for buffer in self.totals:
            self._fill(w, buffer, self.names.of(buffer.name))
        with w.block(f"for (int64_t gw_step = 1; gw_step < {self.num_parts}; gw_step *= 2)"):
            pairs = f"int64_t gw_at = 0; gw_at + gw_step < {self.num_parts}; gw_at += 2 * gw_step"
            with w.block(f"for ({pairs})"):
                first, second = self._parts(w, "gw_at"), self._parts(w, "(gw_at + gw_step)", "next")
                for buffer in self.totals:
                    self._fold_into(w, buffer, first[buffer.name], second[buffer.name])
        with w.block(f"if ({self.num_parts} > 0)"):
            pointers = self._parts(w, "0")
            for buffer in self.totals:
                self._fold_into(w, buffer, self.names.of(buffer.name), pointers[buffer.name])
        w.line("free(parts);")

    def _fold_into(self, w: Writer, buffer: loop.Buffer, target: str, part: str) -> None:
        self.scope.headers.add("folds")
        fold_into(w, buffer, self.scope.arrays[buffer.name].numel, target, part)


def _pointee(buffer: loop.Buffer) -> str:
    const = buffer.role not in (loop.Role.output, loop.Role.total)
    return f"const {ctype(buffer.dtype)}" if const else ctype(buffer.dtype)


def _padded(size: int) -> int:
    return max(ALIGN, -(-size // ALIGN) * ALIGN)
