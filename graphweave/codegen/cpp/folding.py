"""Totals in memory: filled with the identity of their fold, and folded into others."""

from __future__ import annotations

from graphweave.codegen.cpp.lane_expr import functor
from graphweave.codegen.cpp.names import literal
from graphweave.codegen.writer import Writer
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.types import identity

ALIGN = 64
"""Totals and scratch begin at multiples of this many bytes."""


def padded(size: str) -> str:
    """The expression `size`, a number of bytes, rounded up to a multiple of `ALIGN`."""
    return f"({size} + {ALIGN - 1}) / {ALIGN} * {ALIGN}"


def fill(w: Writer, buffer: loop.Buffer, numel: int, pointer: str, first: str = "0", end: str = "1") -> None:
    """Fills the rows `first` to `end` - 1 of `numel` elements each."""
    assert buffer.fold is not None
    neutral = literal(identity(buffer.fold, buffer.dtype).value, buffer.dtype)
    ends = f"int64_t gw_i = {first} * {numel}; gw_i < {end} * {numel}"
    w.line(f"for ({ends}; ++gw_i) {pointer}[gw_i] = {neutral};")


def fold_into(w: Writer, buffer: loop.Buffer, numel: int, target: str, part: str) -> None:
    """Folds the `numel` elements at `part` into those at `target`; needs the header "folds"."""
    assert buffer.fold is not None
    w.line(f"gw_fold_into<{numel}>({target}, {part}, {functor(buffer.fold, buffer.dtype)});")
