"""A compiled region as a C++ kernel: its formats, buffers and the call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from graphweave.analysis.cones import map_type
from graphweave.compiler.plan import KernelPlan
from graphweave.core.ranks import LinkName, halo_rows
from graphweave.core.types import UNIT, Space
from graphweave.execute.cpp_divided import DividedRows, weight_of
from graphweave.execute.region_step import Format, RegionStep
from graphweave.execute.row_bounds import Within
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.walk import statements
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import Program, Ref
from graphweave.lower.parameters import Column, Perm, Table
from graphweave.lower.row_order import ROW_ORDER
from graphweave.runtime import arena, formats, launch
from graphweave.runtime.chunks import equal_rows, equal_work
from graphweave.runtime.edge_orders import EdgeOrders
from graphweave.runtime.index import Index
from graphweave.runtime.kernel_cache import load
from graphweave.runtime.launch import CHUNK_WORK, Work, uniform_chunks
from graphweave.runtime.long_rows import Division, LongRows, division, is_long
from graphweave.runtime.long_rows import long_rows as cut_rows
from graphweave.runtime.threads import num_threads
from graphweave.runtime.tracked import Mark

_PRODUCTS_PER_NUMBER = 16
"""Multiply-adds of a matrix product that take as long as reading or writing one number."""

_EDGES_OF_A_RUN = 16
"""A row of a kernel whose rows have equally many edges is taken to have this many."""

NONE_SENT: Mapping[Ref, LinkName] = MappingProxyType({})
"""The outputs of a kernel that are sent to other ranks, if none is."""

_WORK_PER_TOTAL = 32
"""A chunk reads or writes at least this many numbers for each number of a total. It has its own part of the total,
which must be cleared, added to in cache, and folded."""


@dataclass(frozen=True, slots=True, eq=False)
class OnGraph:
    """A kernel with its formats on one graph: the addresses of the indptr that it walks (`heads`) and of its other
    formats (`found`), which the tensors in `alive` own, and its `chunks` of rows and `sizes`.

    Rows that are divided into pieces are `long`, and `divided` are their kernels (None where there are none).
    """

    kernel: launch.NativeKernel
    heads: tuple[int, ...]
    found: Sequence[int]
    chunks: Tensor
    sizes: tuple[int, ...]
    alive: Any
    divided: DividedRows | None = None
    long: LongRows | None = None


class CppStep(RegionStep):
    """The `RegionStep` of a C++ kernel. Tensors lie on the CPU, outputs in memory of the arena."""

    def __init__(self, program: Program, plan: KernelPlan, wide: Callable[[], KernelPlan]) -> None:
        super().__init__(program, plan, wide)
        self._kernels: dict[bool, launch.NativeKernel] = {}
        self._divided: dict[bool, DividedRows] = {}
        walks = any(isinstance(s, loop.Edges | loop.Tiles) for s in statements(plan.lowered.kernel.body))
        self._walks = walks and plan.lowered.map is not None
        self._schedule = plan.scheduled.taken
        in_order = self._schedule.row_order in (None, "given")
        whole = plan.lowered.kernel.items is None
        self._divides = self._walks and whole and in_order and self._schedule.walk in (None, "divided")
        self._weight = weight_of(plan.scheduled.whole)
        self._work = work_of(plan.lowered.kernel)
        made = zip(plan.lowered.kernel.buffers, self._slots, strict=True)
        self._totals = [(b, i) for b, (_, i) in made if b.role is loop.Role.total and b.rows is None]
        columns = [b for b in plan.lowered.bindings if isinstance(b, Column) and b.map == plan.lowered.map]
        self._source = next((b.other for b in columns), None)
        self._last: tuple[Any, tuple[Mark, ...], OnGraph] | None = None  # rows, marks, the kernel

    @property
    def drivable(self) -> bool:
        return not self._converted and self._schedule.threads is None  # a native call has one number of threads

    @property
    def reorders(self) -> bool:
        """Whether the schedule asks for another order of rows or edges, or for other chunks of rows."""
        taken = self._schedule
        asked = taken.walk, taken.row_order, taken.edge_order, taken.source_partitions, taken.chunks
        return any(asked)

    def given_on(self, rows: tuple[int, ...], indices: Sequence[Tensor]) -> OnGraph | None:
        """The kernel on a graph, if only Python makes its formats there: in another order, or of 64 bits."""
        return self.new_graph(rows, indices) if self.reorders or self._is_wide(rows, indices) else None

    def build(self) -> None:
        self._kernel(wide=False)

    def _kernel(self, wide: bool) -> launch.NativeKernel:
        if wide not in self._kernels:
            plan = self._wide_plan() if wide else self.plan
            self._kernels[wide] = load(plan.code, plan.symbol)
        return self._kernels[wide]

    def rows_in_pieces(self, wide: bool = False) -> DividedRows:
        """The kernels of divided rows, which may not be built yet."""
        if wide not in self._divided:
            plan = self._wide_plan() if wide else self.plan
            self._divided[wide] = DividedRows(plan.scheduled)
        return self._divided[wide]

    def divided_rows(self, wide: bool) -> DividedRows:
        rows = self.rows_in_pieces(wide)
        rows.build()
        return rows

    def forget(self) -> None:
        """Release the graph of the last call, whose index tensors and formats would otherwise stay alive."""
        self._last = None

    def __call__(
        self, rows: tuple[int, ...], indices: Sequence[Tensor], inputs: Sequence[Tensor], within: Within | None = None,
        sent: Mapping[Ref, LinkName] = NONE_SENT,
    ) -> list[Tensor]:  # fmt: skip
        """See `RegionStep`. With `within`, only what its bounds say is computed. There is memory for the halo rows
        behind outputs in `sent`."""
        outputs = self.make_outputs(rows, sent)
        held = [t if t.is_contiguous() else t.contiguous() for t in inputs]
        there = self.on_graph(rows, indices, within)
        for i, begin, end in () if within is None else within.bounds.zeros:
            outputs[i][begin:end].zero_()
        ptrs = self.addresses(there, held, outputs)
        if there.long is None or not there.long.is_all or self._totals:
            there.kernel(ptrs, there.sizes, there.chunks, num_threads(self._schedule.threads))
        if there.long is not None and there.divided is not None:
            totals = {b.name: outputs[i] for b, i in self._totals}
            there.divided(there.long, ptrs, totals)
        self._finish(rows, indices, outputs)
        return outputs

    def addresses(self, there: OnGraph, held: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[int]:
        """Addresses of the kernel's arguments, in its order: formats, inputs, outputs."""
        ptrs = list(there.heads)
        for kind, i in self._slots:
            ptrs.append(there.found[i] if kind == "format" else (held[i] if kind == "in" else outputs[i]).data_ptr())
        return ptrs

    # -------------------------------------------------------- for native code (`cpp_segment.py`)

    @property
    def address(self) -> int:
        """The kernel's address in memory."""
        return self._kernel(wide=False).address

    @property
    def operands(self) -> list[Format | Ref]:
        """The format or value that each buffer of the kernel holds."""
        refs = {"in": self.reads, "out": self.writes}
        return [self._formats[i] if kind == "format" else refs[kind][i] for kind, i in self._slots]

    @property
    def without_rows(self) -> list[tuple[int, int | None, Any]]:
        """The totals that have a value of their own if there are none to add up, by position among the outputs: the
        position in `spaces` of what they are over (None: edges), and that value."""
        return self._empty

    @property
    def work(self) -> Work:
        return self._work

    @property
    def divides(self) -> bool:
        """Whether long rows are divided."""
        return self._divides

    @property
    def division(self) -> Division:
        return division(self._weight)

    @property
    def has_totals(self) -> bool:
        return bool(self._totals)

    @property
    def writes_each(self) -> list[tuple[tuple[int, ...], torch.dtype, Space]]:
        """The shape of a row, the dtype and the space of each value that it writes."""
        return [(shape, dtype, UNIT if at is None else self.spaces[at]) for shape, dtype, at in self._made]

    def make_outputs(self, rows: tuple[int, ...], sent: Mapping[Ref, LinkName] = NONE_SENT) -> list[Tensor]:
        """Tensors for the outputs, with undefined contents. There is memory for the halo rows behind those in
        `sent`."""
        rooms = (halo_rows(sent[r]) if r in sent else 0 for r in self.writes)
        return [arena.empty(shape, dtype, room) for (shape, dtype), room in zip(self.shapes(rows), rooms, strict=True)]

    def shapes(self, rows: tuple[int, ...]) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """The shape and dtype of each output."""
        return [(shape if at is None else (rows[at], *shape), dtype) for shape, dtype, at in self._made]

    def on_graph(self, rows: tuple[int, ...], indices: Sequence[Tensor], within: Within | None = None) -> OnGraph:
        """The kernel on a graph, kept for that of the last call."""
        last = self._last
        bounds = None if within is None else within.bounds
        if last is not None and last[0] == (rows, bounds) and all(map(Mark.holds, last[1], indices)):
            return last[2]
        bound = self.new_graph(rows, indices) if within is None else self._with_formats(rows, within.index, within)
        tracked = not any(t.is_inference() for t in indices)  # edits of inference tensors cannot be noticed
        self._last = ((rows, bounds), tuple(map(Mark, indices)), bound) if tracked else None
        return bound

    def new_graph(self, rows: tuple[int, ...], indices: Sequence[Tensor]) -> OnGraph:
        """The kernel on a graph that it has not seen."""
        with self._indices(rows, indices) as index:
            return self._with_formats(rows, index)

    def _with_formats(self, rows: tuple[int, ...], index: Mapping[Ref, Index], within: Within | None = None) -> OnGraph:
        wide = self._is_wide(rows, [index[m].values for m in self.maps])
        edges = None
        if within is not None and self.plan.lowered.map is not None:
            edges = within.edges(self.plan.lowered.map, wide)
            index = index if edges is None else edges.index(self._program, self.maps)
        kernel = self._kernel(wide)
        keep: list[Tensor] = []
        heads: tuple[int, ...] = ()
        sizes = list(rows)
        long, divided = None, None
        if self.plan.lowered.map is not None:
            walked = index[self.plan.lowered.map]
            orders = self._orders(index, wide)
            csr = formats.csr(walked, wide)
            indptr = csr.indptr if orders is None or orders.in_pieces else orders.indptr()
            keep.append(indptr)
            heads, chunks, most = (indptr.data_ptr(),), self._chunks(csr, indptr), csr.max_degree
            chunks = chunks if within is None else within.chunks(chunks)
            long = None if edges is not None and edges.whole else self._cut(walked, orders, csr, chunks, wide)
            if long is not None:
                chunks, most, divided = long.chunks, long.max_degree, self.divided_rows(wide)
            sizes.append(most)
        else:
            chunks = self._uniform(rows[0] if within is None else within.rows(rows[0]))
        arrays = [self._format(f, index, wide) for f in self._formats]
        if edges is not None:
            arrays = [edges.placed(f, a, index) for f, a in zip(self._formats, arrays, strict=True)]
        found = [a.data_ptr() for a in arrays]
        return OnGraph(kernel, heads, found, chunks, tuple(sizes), (keep, arrays), divided, long)

    # -------------------------------------------------------- the user's schedule

    def _orders(self, index: Mapping[Ref, Index], wide: bool) -> EdgeOrders | None:
        """The order of rows and edges that the schedule asks for; None is the user's order."""
        m, asked, source = self.plan.lowered.map, self._schedule, self._source
        rows, edges = asked.row_order or "given", asked.edge_order or "given"
        if m is None or (rows == edges == "given" and asked.source_partitions is None):
            return None
        if asked.edge_order is None and asked.source_partitions is not None:
            edges = "source"
        one_space = source is not None and map_type(self._program, m).cod == map_type(self._program, source).cod
        return EdgeOrders(
            index[m], None if source is None else index[source], rows, edges, asked.source_partitions, one_space, wide
        )

    def _cut(
        self, walked: Index, orders: EdgeOrders | None, csr: formats.CsrFormat, chunks: Tensor, wide: bool
    ) -> LongRows | None:
        """The rows that are divided into pieces: all rows, or the long ones."""
        if orders is not None and orders.in_pieces:
            return orders.pieces()
        if self._divides and is_long(csr.max_degree, csr.num_rows, csr.num_edges, self._weight):
            return cut_rows(walked, wide, self._weight, chunks)
        return None

    def _format(self, binding: Format, index: Mapping[Ref, Index], wide: bool) -> Tensor:
        """A format of the kernel. Formats over positions follow the order of rows and edges that the schedule asks
        for."""
        orders = self._orders(index, wide)
        match binding:
            case Table(name) if name == ROW_ORDER and orders is not None:
                return orders.row_order()
            case Perm(m) if orders is not None and m == self.plan.lowered.map:
                return orders.edge_at()
            case Column(m, other) if orders is not None and m == self.plan.lowered.map:
                return orders.column(index[other])
        return super()._format(binding, index, wide)

    def _chunks(self, csr: formats.CsrFormat, indptr: Tensor) -> Tensor:
        """The chunks of the rows of `indptr`: those of the CSR, or those that the schedule asks for."""
        asked = self._schedule
        count = asked.chunks or csr.chunks.numel() - 1
        if asked.walk == "rows":
            return equal_rows(csr.num_rows, count)
        return csr.chunks if asked.chunks is None and indptr is csr.indptr else equal_work(indptr, count)

    def _uniform(self, num_rows: int) -> Tensor:
        asked = self._schedule.chunks
        return uniform_chunks(num_rows, self._work) if asked is None else equal_rows(num_rows, asked)


def work_of(kernel: loop.Kernel) -> Work:
    """The work of a row of a kernel without a CSR."""
    sizes = {b.name: numel(b.shape) for b in kernel.buffers}
    products = 0
    for s in statements(kernel.body):
        match s:
            case loop.Alloc(name=name, shape=shape):
                sizes[name] = numel(shape)
            case loop.TileMatMul(w=matrix):
                products += sizes[matrix]
            case loop.TileGram(out=matrix):
                products += sizes[matrix]
            case _:
                pass
    touched = sum(numel(b.shape) for b in kernel.buffers if b.rows is not None)
    totals = sum(numel(b.shape) for b in kernel.buffers if b.role is loop.Role.total and b.rows is None)
    times = _EDGES_OF_A_RUN if any(csr.positions is not None for csr in kernel.csrs) else 1
    return Work(
        row=max(1, times * (touched + products // _PRODUCTS_PER_NUMBER)),
        chunk=max(CHUNK_WORK, _WORK_PER_TOTAL * totals),
        tile=1 if kernel.tile is None else kernel.tile[1],
    )
