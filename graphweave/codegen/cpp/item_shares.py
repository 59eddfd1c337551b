"""Shares of the items of a kernel that walks items, and totals of rows over all items.

A total that has rows is a sum over items: the gradient of a parameter of each node, in a batch on one graph. Each share
adds up its own copy, and copies are folded two by two. Adding thousands of items one by one would lose digits, and one
share would keep a graph of few nodes on one thread. Share 0 has the output for its copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphweave.codegen.cpp.expr import CppScope
from graphweave.codegen.cpp.folding import ALIGN, fill, fold_into, padded
from graphweave.codegen.cpp.names import ctype
from graphweave.codegen.writer import Writer
from graphweave.ir.loop import nodes as loop

_MAX_PARTS = 1024
"""The number of pairs of a chunk of rows and a share of the items is at most this."""
_COPIED_ITEMS = 64
"""A share with copies has at least this many items, so copies are small next to what is read."""
_COPIED_BYTES = 2**23
"""All copies together have at most this many bytes."""


@dataclass(frozen=True, slots=True)
class ItemShares:
    kernel: loop.Kernel
    scope: CppScope
    totals: tuple[loop.Buffer, ...]

    def count(self, w: Writer) -> None:
        """Declares the numbers of items and of shares, which follow from sizes alone."""
        assert self.kernel.items is not None
        count = f"sizes[{self.kernel.sizes.index(self.kernel.items)}]"
        w.line(f"const int64_t gw_items = sizes[0] > 0 ? {count} / sizes[0] : 0;")
        w.line(f"int64_t gw_shares = num_chunks < {_MAX_PARTS} ? {_MAX_PARTS} / num_chunks : 1;")
        if not self.totals:
            w.line("if (gw_items < gw_shares) gw_shares = gw_items;")
            return
        w.line(f"if (gw_items / {_COPIED_ITEMS} < gw_shares) gw_shares = gw_items / {_COPIED_ITEMS};")
        w.line(f"const int64_t gw_copy = {' + '.join(self._bytes_of_copy(b) for b in self.totals)};")
        w.line(f"if (gw_copy * gw_shares > {_COPIED_BYTES}) gw_shares = {_COPIED_BYTES} / gw_copy;")
        w.line("if (gw_shares < 1) gw_shares = 1;")

    def allocate(self, w: Writer, held: Sequence[str]) -> None:
        """Allocates the copies. Without memory, what is `held` is freed and the kernel says so."""
        w.line("char* gw_copies = nullptr;")
        with w.block("if (gw_shares > 1)"):
            w.line(f"gw_copies = static_cast<char*>(aligned_alloc({ALIGN}, gw_copy * (gw_shares - 1)));")
            freed = "".join(f"free({name}); " for name in held)
            w.line(f"if (gw_copies == nullptr) {{ {freed}return 1; }}")

    def copies(self, w: Writer) -> dict[str, str]:
        """Declares pointers to the copies of `gw_share`, and fills its rows of them; returns their names."""
        pointers = self._pointers(w, "gw_share", "share")
        for buffer in self.totals:
            fill(w, buffer, self._numel(buffer), pointers[buffer.name], "chunks[chunk]", "chunks[chunk + 1]")
        return pointers

    def fold(self, w: Writer) -> None:
        self.scope.headers.add("folds")
        steps = "for (int64_t gw_step = 1; gw_step < gw_shares; gw_step *= 2)"
        pairs = "for (int64_t gw_at = 0; gw_at + gw_step < gw_shares; gw_at += 2 * gw_step)"
        with w.block(steps), w.block(pairs):
            to, added = self._pointers(w, "gw_at", "sum"), self._pointers(w, "(gw_at + gw_step)", "added")
            for buffer in self.totals:
                numel = self._numel(buffer)
                ends = [f"{pointers[buffer.name]} + gw_row * {numel}" for pointers in (to, added)]
                with w.block(f"for (int64_t gw_row = 0; gw_row < {self._rows(buffer)}; ++gw_row)"):
                    fold_into(w, buffer, numel, *ends)
        w.line("free(gw_copies);")

    def _pointers(self, w: Writer, share: str, suffix: str) -> dict[str, str]:
        names, at, pointers = self.scope.names, "0", {}
        for buffer in self.totals:
            type_, pointer = ctype(buffer.dtype), names.derived(buffer.name, suffix)
            copy = f"reinterpret_cast<{type_}*>(gw_copies + ({share} - 1) * gw_copy + {at})"
            w.line(f"{type_}* const {pointer} = {share} == 0 ? {names.of(buffer.name)} : {copy};")
            pointers[buffer.name] = pointer
            at = f"{at} + {self._bytes_of_copy(buffer)}"
        return pointers

    def _bytes_of_copy(self, buffer: loop.Buffer) -> str:
        size = self._numel(buffer) * buffer.dtype.itemsize
        return padded(f"{self._rows(buffer)} * {size}")

    def _rows(self, buffer: loop.Buffer) -> str:
        assert buffer.rows is not None
        return f"sizes[{self.kernel.sizes.index(buffer.rows)}]"

    def _numel(self, buffer: loop.Buffer) -> int:
        return self.scope.arrays[buffer.name].numel
