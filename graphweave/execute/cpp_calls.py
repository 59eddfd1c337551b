"""A kernel on one graph as native calls, with nothing left for Python to do between them.

`CppStretch` runs such tables for PyTorch. Here, the kernels of divided rows are part of the table too, since a caller
other than PyTorch has no Python available. For each output, `Rest` says what such a caller still has to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from graphweave.execute.cpp_divided import DividedRows
from graphweave.execute.cpp_push import CppPushStep
from graphweave.execute.cpp_step import CppStep
from graphweave.execute.divided_rows import num_rows, own_tensors
from graphweave.ir.loop.nodes import Role
from graphweave.ir.message.aten import TORCH_DTYPE
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import Ref
from graphweave.runtime.drive import Place
from graphweave.runtime.launch import CHUNK_WORK, NativeKernel, Work, uniform_chunks

Pointer: TypeAlias = "Ref | str | Place"
"""A value of the program, the name of scratch memory, or an address."""

Shape: TypeAlias = tuple[tuple[int, ...], torch.dtype]


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A kernel, its pointers, sizes and chunks."""

    name: str
    kernel: NativeKernel
    pointers: Sequence[Pointer]
    sizes: Sequence[int]
    chunks: Tensor


@dataclass(frozen=True, slots=True)
class Rest:
    """What is left to do with an output: fold into it what lies in `parts` (names of scratch memory), convert it to
    `dtype`, and fill it with `filled` if nothing was added up."""

    fold: str = "sum"
    parts: tuple[str, ...] = ()
    dtype: torch.dtype | None = None
    filled: float | None = None


@dataclass(frozen=True, slots=True)
class NativeCalls:
    """`calls` write `outputs`, which are the tensors of the step's `writes`, and `scratch`. `rests` says by output what
    is left to do. `alive` keeps addresses valid."""

    calls: tuple[NativeCall, ...]
    outputs: tuple[Shape, ...]
    scratch: dict[str, Shape]
    rests: dict[Ref, Rest]
    alive: Any

    @property
    def nbytes(self) -> int:
        return sum(bytes_of(s) for s in (*self.outputs, *self.scratch.values()))


def bytes_of(shape: Shape) -> int:
    return numel(shape[0]) * shape[1].itemsize


def native_calls(step: CppStep, rows: tuple[int, ...], indices: Sequence[Tensor]) -> NativeCalls | None:
    """`step` on a graph as native calls; None for a push of typed products, whose parts Python folds."""
    if isinstance(step, CppPushStep):
        return None
    there = step.new_graph(rows, indices)
    long, alive = there.long, there.alive
    values = {("in", i): r for i, r in enumerate(step.reads)} | {("out", i): r for i, r in enumerate(step.writes)}
    formats = {("format", i): (-1, address) for i, address in enumerate(there.found)}
    pointers: list[Pointer] = [(-1, head) for head in there.heads]
    for slot in step._slots:
        pointers.append(formats[slot] if slot in formats else values[slot])
    calls: list[NativeCall] = []
    scratch: dict[str, Shape] = {}
    parts: dict[str, tuple[str, ...]] = {}
    if long is None or not long.is_all or step._totals:
        calls.append(NativeCall(step.name, there.kernel, pointers, there.sizes, there.chunks))
    if long is not None and there.divided is not None:
        own = _divided_calls(step.name, there.divided, long, pointers, calls, scratch, parts)
        alive = (alive, own, long)
    outputs = tuple(step.shapes(rows))
    return NativeCalls(tuple(calls), outputs, scratch, _rests(step, rows, indices, parts), alive)


def _divided_calls(
    name: str, divided: DividedRows, long: Any, pointers: Sequence[Pointer], calls: list[NativeCall],
    scratch: dict[str, Shape], parts: dict[str, tuple[str, ...]],
) -> Any:  # fmt: skip
    """Append the calls of divided rows as `DividedRows` makes them, and note their scratch memory and, by buffer, the
    parts of totals. Returns the tables that they read, which must be kept alive."""
    given, kernels, functions = divided.compiled
    known: dict[str, Pointer] = dict(zip(given, pointers, strict=True))
    own = own_tensors(kernels, known, long.pieces, lambda shape, dtype: torch.empty(shape, dtype=dtype, device="meta"))
    for buffer, t in own.items():
        if t.device.type == "meta":
            scratch[f"{name} {buffer}"] = tuple(t.shape), t.dtype
        known[buffer] = f"{name} {buffer}" if t.device.type == "meta" else (-1, t.data_ptr())
    for at, (kernel, function) in enumerate(zip(kernels, functions, strict=True)):
        mine = dict(known)
        for b in kernel.buffers:
            if b.role is Role.total:
                part = f"{name} {b.name} {at}"
                mine[b.name], parts[b.name] = part, (*parts.get(b.name, ()), part)
                scratch[part] = b.shape, TORCH_DTYPE[b.dtype]
        rows = num_rows(kernel, long.pieces)
        at_hand = [mine[csr.name] for csr in kernel.csrs] + [mine[b.name] for b in kernel.buffers]
        sizes = [rows] + [0] * (len(kernel.sizes) - 1 + len(kernel.csrs))
        chunks = uniform_chunks(rows, Work(CHUNK_WORK))
        calls.append(NativeCall(kernel.name, function, at_hand, sizes, chunks))
    return own


def _rests(
    step: CppStep, rows: tuple[int, ...], indices: Sequence[Tensor], parts: dict[str, tuple[str, ...]]
) -> dict[Ref, Rest]:
    out: dict[Ref, Rest] = {}
    filled = {i: empty for i, over_rows, empty in step._empty if not step._count_behind(over_rows, rows, indices)}
    folds = {i: (b.fold, parts.get(b.name, ())) for b, i in step._totals}
    for i, ref in enumerate(step.writes):
        fold, of = folds.get(i, (None, ()))
        rest = Rest("sum" if fold is None else fold.value, of, step._converted.get(i), filled.get(i))
        if rest != Rest(rest.fold):
            out[ref] = rest
    return out
