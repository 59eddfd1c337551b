"""State that the printers of C++ statements share: names, pointers, and facts about one kernel's text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from graphweave.codegen.cpp.expr import CppScope, row_offset
from graphweave.codegen.cpp.first_edge import FirstEdge
from graphweave.codegen.sums import Sum
from graphweave.codegen.walk import accesses
from graphweave.codegen.writer import Writer
from graphweave.core.types import DType
from graphweave.ir.loop import nodes as loop

SHORT = 4
"""A fold over at most this many lanes is written out lane by lane; a loop over at least as many is made of vectors."""


@dataclass(frozen=True, slots=True)
class CppPrinter:
    """Prints statements of one kernel.

    `stashes` are given by name; `heap` names the arrays in the thread's scratch; `tiles` gives the largest number of
    positions of each tile. `row` is the kernel's row variable; `walked` are the CSRs that have these rows. Rows of the
    outputs `streamed` may bypass the cache; `sums` are the arrays that a row's first tile sets instead of adding to.
    """

    w: Writer
    scope: CppScope
    stashes: dict[str, loop.Stash]
    heap: frozenset[str]
    tiles: dict[str, int]
    row: str
    walked: tuple[str, ...]
    streamed: list[loop.Buffer]
    sums: Mapping[str, Sum] = field(default_factory=dict)
    tile_of: dict[str, str] = field(default_factory=dict)  # the tile of each tile array
    csr_of: dict[str, str] = field(default_factory=dict)  # the CSR of each tile
    packed: set[str] = field(default_factory=set)  # matrices that need not be packed again
    totals: frozenset[str] = frozenset()
    local: set[str] = field(default_factory=set)  # arrays of a row or an edge
    begun: dict[loop.Stmt, FirstEdge] = field(default_factory=dict)  # by their walks and by their statements that add

    def body(self, body: tuple[loop.Stmt, ...]) -> None:
        """Prints statements of every kind, one after the other; see `stmt.Statements`."""
        raise NotImplementedError

    def statement(self, stmt: loop.Stmt, rest: tuple[loop.Stmt, ...]) -> None:
        """Prints one statement; `rest` follows it in its block."""
        raise NotImplementedError

    def row_pointers(self, variable: str, rest: tuple[loop.Stmt, ...]) -> None:
        """Prints a pointer to row `variable` of each array that `rest` reads or writes there, outside of lane loops."""
        for array, index in dict.fromkeys(accesses(rest)):
            info = self.scope.arrays[array]
            key = (array, variable)
            if not info.has_rows or index[0] != loop.Var(variable) or info.numel == 1 or key in self.scope.row_pointers:
                continue
            if array in self.stashes or array in self.tile_of:
                continue
            base, pointer = self.scope.names.of(array), self.scope.names.derived(array, variable)
            offset = row_offset(loop.Var(variable), info.numel, self.scope)
            self.w.line(f"auto* const {pointer} = {base} + {offset};")
            self.scope.row_pointers[key] = pointer

    def is_padded(self, array: str) -> bool:
        """Whether an array without rows is padded to whole cache lines, so that whole vectors may be stored to it."""
        sum_ = self.sums.get(array)
        in_place = sum_ is not None and sum_.copy is not None
        long = self.scope.arrays[array].numel >= SHORT
        return array in self.totals or (long and array in self.local and not in_place)

    def bind(self, name: str, dtype: DType) -> str:
        """The C++ name for a new binding of `name`; pointers and types of an earlier binding are forgotten."""
        self.scope.types[name] = dtype
        for key in [key for key in self.scope.row_pointers if name in key]:
            del self.scope.row_pointers[key]
        self.scope.fused.discard(name)
        return self.scope.names.of(name)

    def first(self, array: str) -> str:
        """The position of the first row of a stash or tile array."""
        walked = self.tile_of[array] if array in self.tile_of else self.stashes[array].csr
        return self.scope.names.derived(walked, "begin")
