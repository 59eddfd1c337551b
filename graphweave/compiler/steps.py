"""The steps of a compiled program at run time: a kernel with its formats and buffers, or one call of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graphweave.analysis.cones import map_type, type_of
from graphweave.compiler.plan import KernelPlan
from graphweave.compiler.products import product_step
from graphweave.compiler.typed_calls import typed_step
from graphweave.core.types import UNIT, Fold, Space
from graphweave.ir.loop.nodes import Role
from graphweave.ir.loop.types import identity
from graphweave.ir.message.aten import TORCH_DTYPE
from graphweave.ir.message.builder import operands
from graphweave.ir.message.infer import numel
from graphweave.ir.message.interp import apply
from graphweave.ir.message.nodes import MapOf, Node, Program, Push, Ref
from graphweave.lower.parameters import Column, Flat, Perm, Value
from graphweave.runtime import arena, formats
from graphweave.runtime.kernel_cache import load
from graphweave.runtime.launch import Kernel, uniform_chunks

_NARROW = (1 << 31) - 1


class KernelStep:
    """`step(rows, indices, inputs) -> outputs`.

    `rows` counts the spaces in `spaces`, `indices` are the index tensors of `maps`, `inputs` the tensors of `reads`;
    the outputs are fresh tensors of `writes`.
    """

    def __init__(self, program: Program, plan: KernelPlan, wide: Callable[[], KernelPlan]) -> None:
        lowered = plan.lowered
        self.name = lowered.kernel.name
        self.plan = plan
        self.spaces: tuple[Space, ...] = lowered.spaces
        self.maps = _maps_of(plan)
        self.reads: tuple[Ref, ...] = ()
        self.writes: tuple[Ref, ...] = ()
        self._program = program
        self._wide_plan = wide
        self._kernels: dict[bool, Kernel] = {}
        self._made: list[tuple[tuple[int, ...], torch.dtype, int | None]] = []  # shape, dtype, rows' position
        self._slots: list[tuple[str, int]] = []  # ("in" | "out" | "format", number)
        self._empty: list[tuple[int, bool, float]] = []  # totals: output, over the kernel's rows (or edges), of no rows
        self._formats: list[Perm | Column | Flat] = []
        for buffer, binding in zip(lowered.kernel.buffers, lowered.bindings, strict=True):
            self._slot(buffer.role, binding)
        self._work = max(1, sum(numel(b.shape) for b in lowered.kernel.buffers))
        self._last: tuple[Any, ...] | None = None  # rows, indices, their versions, what was bound to them

    def _slot(self, role: Role, binding: Value | Perm | Column | Flat) -> None:
        if not isinstance(binding, Value):
            self._slots.append(("format", len(self._formats)))
            self._formats.append(binding)
        elif role is Role.input:
            self._slots.append(("in", len(self.reads)))
            self.reads += (binding.ref,)
        else:
            t = type_of(self._program, binding.ref)
            rows = None if t.space == UNIT else self.spaces.index(t.space)
            self._slots.append(("out", len(self.writes)))
            node = self._program.nodes[binding.ref]
            if isinstance(node, Push) and t.space == UNIT and node.empty != identity(node.fold, t.dtype).value:
                over_rows = map_type(self._program, node.map).dom == self.spaces[0]
                self._empty.append((len(self.writes), over_rows, node.empty))
            self.writes += (binding.ref,)
            self._made.append((t.shape, TORCH_DTYPE[t.dtype], rows))

    def build(self) -> None:
        """Compile (or find) the kernel for 32-bit indices, which nearly every graph uses."""
        self._kernel(wide=False)

    def _kernel(self, wide: bool) -> Kernel:
        if wide not in self._kernels:
            plan = self._wide_plan() if wide else self.plan
            self._kernels[wide] = load(plan.text, plan.lowered.kernel.name)
        return self._kernels[wide]

    def forget(self) -> None:
        """Let go of the graph that was seen last, whose index and formats stay alive otherwise."""
        self._last = None

    def __call__(self, rows: tuple[int, ...], indices: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
        outputs = [arena.empty(shape if at is None else (rows[at], *shape), dtype) for shape, dtype, at in self._made]
        held = [t if t.is_contiguous() else t.contiguous() for t in inputs]
        kernel, heads, found, chunks, sizes, _ = self._formats_for(rows, indices)
        ptrs = list(heads)
        for kind, i in self._slots:
            ptrs.append(found[i] if kind == "format" else (held[i] if kind == "in" else outputs[i]).data_ptr())
        kernel(ptrs, sizes, chunks, torch.get_num_threads())
        for i, over_rows, empty in self._empty:
            if not (rows[0] if over_rows else indices[0].numel()):
                outputs[i].fill_(empty)
        return outputs

    def _formats_for(self, rows: tuple[int, ...], indices: Sequence[Tensor]) -> tuple[Any, ...]:
        """Kernel, addresses of indptr, addresses of the other formats, chunks, sizes, and what keeps them alive.

        Remembered for the last graph.
        """
        last = self._last
        if last is not None and last[0] == rows and all(map(_still, indices, last[2])):
            return last[3]
        counts = dict(zip(self.spaces, rows, strict=True))
        index = dict(zip(self.maps, indices, strict=True))
        wide = max([*rows, *(t.numel() for t in indices)]) > _NARROW
        kernel = self._kernel(wide)
        keep: list[Tensor] = []
        heads: tuple[int, ...] = ()
        sizes = list(rows)
        if self.plan.lowered.map is not None:
            csr = self._csr(self.plan.lowered.map, index, counts, wide)
            keep.append(csr.indptr)
            heads, chunks = (csr.indptr.data_ptr(),), csr.chunks
            sizes.append(csr.max_degree)
        else:
            chunks = uniform_chunks(rows[0], self._work)
        arrays = [self._format(f, index, counts, wide) for f in self._formats]
        bound = (kernel, heads, [a.data_ptr() for a in arrays], chunks, tuple(sizes), (keep, arrays))
        tracked = not any(t.is_inference() for t in indices)  # edits of inference tensors cannot be noticed
        self._last = (rows, tuple(indices), tuple(map(_mark, indices)), bound) if tracked else None
        return bound

    def _csr(self, m: Ref, index: Mapping[Ref, Tensor], counts: Mapping[Space, int], wide: bool) -> formats.CsrFormat:
        return formats.csr(index[m], self._rows_of(m, counts), self._wraps(m), wide)

    def _format(
        self, binding: Perm | Column | Flat, index: Mapping[Ref, Tensor], counts: Mapping[Space, int], wide: bool
    ) -> Tensor:
        match binding:
            case Flat(m):
                return formats.flat(index[m], self._rows_of(m, counts), self._wraps(m), wide)
            case Perm(m):
                perm = formats.perm(index[m], self._rows_of(m, counts), self._wraps(m), wide)
                return in_order(index[m].numel(), wide) if perm is None else perm
            case Column(m, other):
                return formats.column(
                    index[m], self._rows_of(m, counts), self._wraps(m),
                    index[other], self._rows_of(other, counts), self._wraps(other), wide,
                )  # fmt: skip

    def _rows_of(self, m: Ref, counts: Mapping[Space, int]) -> int:
        return counts[map_type(self._program, m).cod]

    def _wraps(self, m: Ref) -> bool:
        node = self._program.nodes[m]
        return isinstance(node, MapOf) and node.wrap


def _mark(t: Tensor) -> tuple[Any, ...]:
    """What tells whether an index tensor is the one that was seen, and unedited; its storage must be kept alive."""
    return t.data_ptr(), t._version, t.shape, t.stride(), t.dtype


def _still(t: Tensor, mark: tuple[Any, ...]) -> bool:
    return t.data_ptr() == mark[0] and not t.is_inference() and _mark(t) == mark


_in_order: dict[bool, Tensor] = {}


def in_order(n: int, wide: bool) -> Tensor:
    """0, 1, ..., at least n of them: the permutation of a CSR whose edges are sorted already."""
    found = _in_order.get(wide)
    if found is None or found.numel() < n:
        with torch.inference_mode(False):
            found = torch.arange(max(n, 1), dtype=torch.int64 if wide else torch.int32)
        _in_order[wide] = found
    return found


def _maps_of(plan: KernelPlan) -> tuple[Ref, ...]:
    maps: dict[Ref, None] = {}
    if plan.lowered.map is not None:
        maps[plan.lowered.map] = None
    for binding in plan.lowered.bindings:
        match binding:
            case Perm(m) | Flat(m):
                maps[m] = None
            case Column(m, other):
                maps[m] = maps[other] = None
            case _:
                pass
    return tuple(maps)


def call_step(program: Program, ref: Ref) -> Callable[..., Any]:
    """`step(rows, *operand values)`: one node by PyTorch; operands as `operands(node)` lists them, each once."""
    node, types = program.nodes[ref], program.types
    product = product_step(program, ref) or typed_step(program, ref)
    if product is not None:
        return product
    names = tuple(dict.fromkeys(operands(node)))
    widened = _index_in_64_bits(node)

    def call(rows: Mapping[Space, int], *values: Any) -> Any:
        given = dict(zip(names, values, strict=True))
        if widened is not None and given[widened] is not None:
            given[widened] = given[widened].long()
        return apply(node, given, types, rows.__getitem__)

    return call


def _index_in_64_bits(node: Node) -> Ref | None:
    """The operand that PyTorch takes as int64 only, or that would not hold its sum with a row count.

    An index that only maps read may be held in 32 bits (`formats.narrowed`).
    """
    match node:
        case MapOf(index, wrap=True):
            return index
        case Push(map=m, fold=fold, empty=empty) if fold is not Fold.sum or empty != 0:
            return m
        case _:
            return None
