"""Facts that every step of a compiled region knows: values, maps and formats that its kernel takes as parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from graphweave.analysis.cones import map_type, type_of
from graphweave.compiler.plan import KernelPlan
from graphweave.core.errors import IndexRangeError
from graphweave.core.numbers import Number, is_neutral, typed
from graphweave.core.types import UNIT, Space
from graphweave.execute.range_errors import of_map
from graphweave.ir.loop.nodes import Buffer, Role
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.aten import TORCH_DTYPE
from graphweave.lower.parameters import Binding, Column, Flat, NodeTensor, Perm, Table
from graphweave.runtime import formats
from graphweave.runtime.index import INT32_MAX, Index

Format: TypeAlias = Perm | Column | Flat | Table


class RegionStep:
    """`step(rows, indices, inputs) -> outputs` runs the kernel of a region.

    `rows` are the row counts of `spaces`, `indices` the index tensors of `maps`, `inputs` the tensors of `reads`. The
    outputs are fresh tensors for `writes`.
    """

    label: str = ""
    """The kernel's name in profiles, where several graphs may have kernels of one name."""

    device: str = "cpu"
    """The device for which the kernel is compiled."""

    def __init__(self, program: ir.Program, plan: KernelPlan, wide: Callable[[], KernelPlan]) -> None:
        """`plan` is the kernel for 32-bit indices, which nearly every graph uses. `wide` makes the kernel for 64
        bits."""
        lowered = plan.lowered
        self.name = lowered.kernel.name
        self.plan = plan
        self.spaces: tuple[Space, ...] = lowered.spaces
        self.maps = lowered.maps
        self.reads: tuple[ir.Ref, ...] = ()
        self.writes: tuple[ir.Ref, ...] = ()
        self._program = program
        self._wide_plan = wide
        # The feature shape and dtype of each output, and the position of its space in `spaces` (None: unit).
        self._made: list[tuple[tuple[int, ...], torch.dtype, int | None]] = []
        # For each buffer of the kernel: the list that holds its tensor ("in", "out" or "format"), and the position
        # there.
        self._slots: list[tuple[str, int]] = []
        # The output of each total, the position in `spaces` of what it is over (None: edges), and its value if there
        # are none.
        self._empty: list[tuple[int, int | None, Number]] = []
        # Totals that the kernel sums in a wider type: the output's own type.
        self._converted: dict[int, torch.dtype] = {}
        self._formats: list[Format] = []
        for buffer, binding in zip(lowered.kernel.buffers, lowered.bindings, strict=True):
            self._slot(buffer, binding)

    def _slot(self, buffer: Buffer, binding: Binding) -> None:
        if not isinstance(binding, NodeTensor):
            self._slots.append(("format", len(self._formats)))
            self._formats.append(binding)
        elif buffer.role is Role.input:
            self._slots.append(("in", len(self.reads)))
            self.reads += (binding.ref,)
        else:
            t = type_of(self._program, binding.ref)
            rows = None if t.space == UNIT else self.spaces.index(t.space)
            self._slots.append(("out", len(self.writes)))
            node = self._program.nodes[binding.ref]
            if isinstance(node, ir.Push) and t.space == UNIT and not is_neutral(node.empty, node.fold, t.dtype):
                dom = map_type(self._program, node.map).dom
                items = self.plan.lowered.kernel.items is not None
                of_rows = items or self.plan.lowered.map is None or dom == self.spaces[0]
                over = self.spaces.index(dom) if of_rows else None
                self._empty.append((len(self.writes), over, typed(node.empty, t.dtype)))
            self.writes += (binding.ref,)
            if buffer.dtype is not t.dtype:
                self._converted[len(self._made)] = TORCH_DTYPE[t.dtype]
            self._made.append((t.shape, TORCH_DTYPE[buffer.dtype], rows))

    @property
    def converted(self) -> Mapping[int, torch.dtype]:
        """The own type of each output, by position, that the kernel writes in a wider type."""
        return self._converted

    @property
    def drivable(self) -> bool:
        """Whether the step may be part of a stretch: one native kernel, which writes its outputs in their final
        form."""
        return False

    def build(self) -> None:
        """Compile the kernel, or find it in the cache."""
        raise NotImplementedError

    def __call__(self, rows: tuple[int, ...], indices: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
        raise NotImplementedError

    def counts(self, rows: tuple[int, ...], indices: Sequence[Tensor]) -> tuple[dict[str, int], dict[str, int]]:
        """By name, the kernel's sizes and the number of positions of each CSR in a call."""
        kernel = self.plan.lowered.kernel
        sizes = dict(zip(kernel.sizes, rows, strict=True))
        edges = (sizes[csr.positions] if csr.positions else indices[0].numel() for csr in kernel.csrs)
        return sizes, dict(zip((csr.name for csr in kernel.csrs), edges, strict=True))

    # -------------------------------------------------------- formats

    def _is_wide(self, rows: tuple[int, ...], indices: Sequence[Tensor]) -> bool:
        """Whether 32 bits are too few to count the rows and edges."""
        return max([*rows, *(t.numel() for t in indices)]) > max_narrow_count()

    def _finish(self, rows: tuple[int, ...], indices: Sequence[Tensor], outputs: list[Tensor]) -> None:
        """Convert totals to their own type. A total over no rows becomes the value that its push has for no rows."""
        for i, over, empty in self._empty:
            if not self._count_behind(over, rows, indices):
                outputs[i].fill_(empty)
        for i, dtype in self._converted.items():
            outputs[i] = outputs[i].to(dtype)

    def _count_behind(self, over: int | None, rows: tuple[int, ...], indices: Sequence[Tensor]) -> int:
        """The number of rows of a space, by its position, or of edges, that a total is taken over."""
        return indices[0].numel() if over is None else rows[over]

    @contextmanager
    def _indices(self, rows: tuple[int, ...], indices: Sequence[Tensor]) -> Iterator[dict[ir.Ref, Index]]:
        """The indices of the call by map. Inside the block, an error about an index out of range is given its map."""
        try:
            yield {m: Index(t, rows[at], wrap) for (m, at, wrap), t in zip(self._leads, indices, strict=True)}
        except IndexRangeError as error:
            raise of_map(error, self._program, dict(zip(self.maps, indices, strict=True))) from None

    @cached_property
    def _leads(self) -> list[tuple[ir.Ref, int, bool]]:
        """Each of `maps`, the position of the space that it leads to, and whether its negative values count from the
        end."""
        return [(m, self.spaces.index(map_type(self._program, m).cod), wraps(self._program, m)) for m in self.maps]

    def _format(self, binding: Format, index: Mapping[ir.Ref, Index], wide: bool) -> Tensor:
        match binding:
            case Table(name):
                raise AssertionError(f"rows of a map have no table '{name}'")
            case Flat(m):
                return formats.flat(index[m], wide)
            case Perm(m):
                perm = formats.perm(index[m], wide)
                return formats.in_order(index[m].num_edges, wide) if perm is None else perm
            case Column(m, other):
                return formats.column(index[m], index[other], wide)


def max_narrow_count() -> int:
    """The largest number of rows or edges that kernels of 32-bit indices can count."""
    return INT32_MAX


def wraps(program: ir.Program, m: ir.Ref) -> bool:
    """Whether negative values of the map's index count from the end."""
    node = program.nodes[m]
    return isinstance(node, ir.MapOf) and node.wrap
