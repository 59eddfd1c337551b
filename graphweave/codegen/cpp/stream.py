"""Stores wide outputs of many rows past the cache.

They are written once and read by a later kernel, so in the cache they would only push out what this kernel still reads;
and an ordinary store first fetches the line that it overwrites.
Three outputs of 43 MB: 11.9 ms past the cache, 23.1 ms through it (Xeon, AVX-512, 2 threads, 2026-11).
"""

from __future__ import annotations

from graphweave.codegen.cpp.expr import CppScope, row_offset
from graphweave.codegen.writer import Writer
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.walk import statements

_LINE = 64
"""Bytes of a cache line."""
_MAX_ROW_BYTES = 4096
"""Rows of more bytes are not streamed, since a row is collected on the stack first."""


def streamed(kernel: loop.Kernel) -> list[loop.Buffer]:
    """Outputs over the kernel's own rows whose rows are whole cache lines.

    There are none in a sweep, which writes rows in parts, and none that is stored at another row than the kernel's.
    """
    if kernel.sweep:
        return []
    own = (loop.Var(kernel.row),)
    elsewhere = {s.buffer for s in statements(kernel.body) if isinstance(s, loop.Store) and s.index[:1] != own}
    rows = kernel.sizes[0]
    outputs = [b for b in kernel.buffers if b.role is loop.Role.output and b.rows == rows and b.dtype.is_float]
    outputs = [b for b in outputs if b.name not in elsewhere]
    return [b for b in outputs if _bytes(b) % _LINE == 0 and 0 < _bytes(b) <= _MAX_ROW_BYTES]


def declare(w: Writer, scope: CppScope, buffers: list[loop.Buffer], rows: str) -> None:
    """Declares, before the rows, whether each output of `rows` rows is large enough to be streamed."""
    for b in buffers:
        scope.headers.add("streaming")
        name = scope.names.of(b.name)
        w.line(f"const bool {scope.names.derived(b.name, 'streams')} = gw_streams({name}, {rows} * {_bytes(b)});")


def begin_row(w: Writer, scope: CppScope, buffers: list[loop.Buffer], row: str, types: dict[str, str]) -> None:
    """Points each output's row to an array on the stack if the output is streamed, else to the output itself."""
    for b in buffers:
        names, numel = scope.names, scope.arrays[b.name].numel
        stage, pointer = names.derived(b.name, "staged"), names.derived(b.name, row)
        place = f"{names.of(b.name)} + {row_offset(loop.Var(row), numel, scope)}"
        w.line(f"alignas(64) {types[b.name]} {stage}[{numel}];")
        w.line(f"auto* const {pointer} = {names.derived(b.name, 'streams')} ? {stage} : {place};")
        scope.row_pointers[(b.name, row)] = pointer


def end_row(w: Writer, scope: CppScope, buffers: list[loop.Buffer], row: str) -> None:
    for b in buffers:
        names = scope.names
        place = f"{names.of(b.name)} + {row_offset(loop.Var(row), scope.arrays[b.name].numel, scope)}"
        stage = names.derived(b.name, "staged")
        w.line(f"if ({names.derived(b.name, 'streams')}) gw_stream({place}, {stage}, {_bytes(b)});")


def _bytes(b: loop.Buffer) -> int:
    out = b.dtype.itemsize
    for n in b.shape:
        out *= n
    return out
