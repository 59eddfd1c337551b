"""Well-formedness of a kernel's parameters."""

from __future__ import annotations

from typing import NoReturn

from graphweave.core.errors import IRError
from graphweave.core.types import DType
from graphweave.ir.loop.nodes import Buffer, Kernel, Role

_INDEX = (DType.i64, DType.i32)


class PlacedError(IRError):
    """An error whose message begins with its place in a kernel."""


def fail(place: str, problem: str) -> NoReturn:
    raise PlacedError(f"{place}: {problem}")


def verify_parameters(kernel: Kernel) -> None:
    csrs = {csr.name for csr in kernel.csrs}
    names = [kernel.row, *kernel.sizes, *(csr.name for csr in kernel.csrs)]
    names += [*(buffer.name for buffer in kernel.buffers), *(stash.name for stash in kernel.stashes)]
    for name in (kernel.name, *names):
        if not (name.isidentifier() and name.isascii()):
            fail(f"kernel {kernel.name}", f"'{name}' is not a name.")
    for name in names:
        if names.count(name) > 1:
            fail(f"kernel {kernel.name}", f"'{name}' is declared twice.")
    if not kernel.sizes:
        fail(f"kernel {kernel.name}", "sizes must begin with the kernel's row count (got none).")
    if kernel.index not in _INDEX:
        fail(f"kernel {kernel.name}", f"the index dtype must be i32 or i64 (got {kernel.index.value}).")
    if kernel.items is not None and (kernel.items not in kernel.sizes or any(c.positions for c in kernel.csrs)):
        fail(f"kernel {kernel.name}", f"rows of items are counted by one of {kernel.sizes}, and edges by a CSR.")
    for line in kernel.header:
        one_line(line, "header")
    for buffer in kernel.buffers:
        _buffer(buffer, kernel)
    for csr in kernel.csrs:
        if csr.positions is not None and (csr.positions not in kernel.sizes or len(kernel.csrs) > 1):
            fail(f"csr {csr.name}", f"runs of equal length have one of the sizes {kernel.sizes}, and stand alone.")
    for stash in kernel.stashes:
        if stash.csr not in csrs:
            fail(f"stash {stash.name}", f"'{stash.csr}' is not a CSR of the kernel.")
        if min(stash.shape, default=0) < 0:
            fail(f"stash {stash.name}", f"extents must not be negative (got {stash.shape}).")


def _buffer(buffer: Buffer, kernel: Kernel) -> None:
    place = f"{buffer.role.value} {buffer.name}"
    if buffer.rows is not None and buffer.rows not in kernel.sizes:
        fail(place, f"rows must be one of the sizes {kernel.sizes} (got '{buffer.rows}').")
    if min(buffer.shape, default=0) < 0:
        fail(place, f"extents must not be negative (got {buffer.shape}).")
    if buffer.role in (Role.column, Role.index) and (buffer.dtype is not kernel.index or buffer.shape):
        fail(place, f"must be one {kernel.index.value} a row.")
    if (buffer.role is Role.total) != (buffer.fold is not None):
        fail(place, "totals, and only totals, have a fold.")
    if buffer.role is Role.total and buffer.rows not in (None, *kernel.sizes[: kernel.items is not None]):
        fail(place, "a total has no rows, or, over items, those of the kernel.")
    if buffer.items and (kernel.items is None or buffer.role not in (Role.input, Role.output)):
        fail(place, "inputs and outputs of a kernel that walks items, and no others, have rows for each item.")


def one_line(text: str, place: str) -> None:
    if "\n" in text or "\r" in text or text.endswith("\\"):
        fail(place, f"must be one line that a line comment can hold (got {text!r}).")
