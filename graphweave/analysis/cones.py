"""The values that a kernel needs for a node: values of its own row, and values of other rows.

Row-wise light nodes below a push have no kernel of their own: the push recomputes them for every edge. They are its
*cone*, whose leaves are pulls, materialised values of the edge's own row, and shared data. Matrix products on edges are
inside cones too: they are computed for tiles of edges (`tiles.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from graphweave.analysis.flow import Flow, reached
from graphweave.analysis.maps import in_equal_runs
from graphweave.analysis.remembered import remembered
from graphweave.analysis.typed import is_typed_product, is_walked, matrices, pushed_product
from graphweave.core.schedule import EdgeFormat
from graphweave.core.types import UNIT, DType, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.infer import numel

KERNEL_DTYPES = frozenset({DType.f32, DType.f64, DType.f16, DType.bf16, DType.bool, DType.i32, DType.i64})
"""Element types of values that kernels read and compute."""

_MIN_GROUPED_ROWS = 1024
"""Edges are grouped by a map only if it leads to this many rows, which are enough to share among threads."""

_MIN_GATHERED_ELEMENTS = 8
"""To gather rows of this many elements costs more than to take the edges in another order."""

_MAX_SHARED_ELEMENTS = 4096
"""Kernels compute shared values of at most this many elements; PyTorch computes larger ones once."""


def space_of(program: ir.Program, ref: ir.Ref) -> Space | None:
    t = program.types[ref]
    return t.space if isinstance(t, ir.Type) else None


def row_space(program: ir.Program, ref: ir.Ref) -> Space:
    """The space of a value's rows; unit for what has none."""
    return space_of(program, ref) or UNIT


def type_of(program: ir.Program, ref: ir.Ref) -> ir.Type:
    t = program.types[ref]
    assert isinstance(t, ir.Type)
    return t


def row_bytes(program: ir.Program, ref: ir.Ref) -> int:
    """Bytes of a row of the value."""
    t = type_of(program, ref)
    return numel(t.shape) * t.dtype.itemsize


def map_type(program: ir.Program, ref: ir.Ref) -> ir.MapType:
    t = program.types[ref]
    assert isinstance(t, ir.MapType)
    return t


def _elements(program: ir.Program, ref: ir.Ref) -> int:
    t = program.types[ref]
    return numel(t.shape) if isinstance(t, ir.Type) else 0


def _readable(program: ir.Program, ref: ir.Ref) -> bool:
    t = program.types[ref]
    return isinstance(t, ir.MapType) or (isinstance(t, ir.Type) and t.dtype in KERNEL_DTYPES and numel(t.shape) > 0)


@dataclass(frozen=True, slots=True)
class Needs:
    """Leaves of a node: `pulls` are (value, map) read at another row, `same` are values of the node's own row.

    `shared` are unit values that must exist before the kernel starts, `inner` the nodes that are recomputed between the
    leaves and the node. Shared data is one row, so all that a node of shared data reads is of its own row.
    """

    pulls: tuple[tuple[ir.Ref, ir.Ref], ...]
    same: tuple[ir.Ref, ...]
    shared: tuple[ir.Ref, ...]
    inner: tuple[ir.Ref, ...]


@dataclass(frozen=True, slots=True)
class EdgeWalks:
    """How kernels that compute values of edges go along them: in the `format` of a user's schedule, else by the types
    of maps that are known to have `few` edges, no more than rows."""

    format: EdgeFormat | None = None
    few: frozenset[ir.MapType] = frozenset()


class Cones:
    """The values that each node of one program needs, and how kernels compute them; `tiled` are its products in
    tiles."""

    def __init__(
        self, program: ir.Program, flow: Flow, tiled: frozenset[ir.Ref], walks: EdgeWalks | None = None
    ) -> None:  # fmt: skip
        self.program, self.flow, self.tiled, self._walks = program, flow, tiled, walks or EdgeWalks()

    # -------------------------------------------------------- kinds of nodes

    @remembered
    def is_light(self, ref: ir.Ref) -> bool:
        """Whether a kernel may compute the node. It takes O(1) work for each element, its sizes are known, and kernels
        have its element type.

        Products of matrices that kernels compute in tiles of edges or by type are light, too.
        """
        program, node, t = self.program, self.program.nodes[ref], self.program.types[ref]
        if not isinstance(t, ir.Type) or t.dtype not in KERNEL_DTYPES or numel(t.shape) == 0:
            return False
        if isinstance(node, ir.MatMul | ir.Gram):
            return self._is_multiplied(ref)
        if isinstance(node, ir.Push):
            source = program.types[node.x]
            added = t.dtype.is_float or (node.is_plain_sum and t.dtype in (DType.i32, DType.i64))
            good = isinstance(source, ir.Type) and added and numel(source.shape) > 0
            return good and pushed_product(program, ref) is None
        if t.space == UNIT:
            good = (
                isinstance(node, ir.Pointwise | ir.Cast | ir.Reshape | ir.Permute | ir.Broadcast | ir.Slice)
                and numel(t.shape) <= _MAX_SHARED_ELEMENTS
            )
        else:
            good = isinstance(
                node,
                ir.Pointwise
                | ir.Cast
                | ir.Reduce
                | ir.Reshape
                | ir.Broadcast
                | ir.Permute
                | ir.Slice
                | ir.Pad
                | ir.Concat
                | ir.Pull
                | ir.Random,
            )
        return good and all(_readable(program, r) for r in self.flow.operands[ref])

    @remembered
    def is_push(self, ref: ir.Ref) -> bool:
        """Whether `ref` folds the rows of edges (or of nodes, to a total): a push, or a Gram in tiles."""
        node = self.program.nodes[ref]
        if isinstance(node, ir.Push):
            return pushed_product(self.program, ref) is None
        return isinstance(node, ir.Gram) and self._is_multiplied(ref)

    def widens(self, ref: ir.Ref) -> bool:
        """Whether the row-wise node `ref` has larger rows than each of the rows that it is computed from."""
        wider = self._widest[ref] < _elements(self.program, ref)
        return wider and isinstance(self.program.nodes[ref], ir.Pointwise | ir.Broadcast)

    @cached_property
    def _widest(self) -> list[int]:
        """For each node, elements of the widest row that it must read, looking through nodes that only widen."""
        program, out = self.program, list[int]()
        for ref, node in enumerate(program.nodes):
            own, rows = _elements(program, ref), list[int]()
            if isinstance(node, ir.Pointwise | ir.Broadcast | ir.Reshape):
                types = ((r, program.types[r]) for r in self.flow.operands[ref])
                rows = [out[r] for r, t in types if isinstance(t, ir.Type) and t.space != UNIT]
            out.append(min(own, max(rows, default=own)))
        return out

    def _is_multiplied(self, ref: ir.Ref) -> bool:
        """Whether `ref` is a product that kernels compute, in tiles of edges or by type."""
        return ref in self.tiled or is_walked(self.program, ref)

    # -------------------------------------------------------- along which map a node is computed

    def pushed_along(self, ref: ir.Ref) -> ir.Ref | None:
        """The map along which a push, or a gram by type, is folded into rows; None for a total and for other nodes."""
        node = self.program.nodes[ref]
        if not isinstance(node, ir.Push | ir.Gram) or not self.is_push(ref) or space_of(self.program, ref) == UNIT:
            return None
        return node.map

    @remembered
    def walks_along(self, ref: ir.Ref) -> ir.Ref | None:
        """The map by whose rows the edges are best grouped while a kernel computes `ref`, a value of edges.

        A node that reads wide values through two maps (an SDDMM) gathers through only one of them if its edges are
        grouped by the other. Edges in runs of equal length are grouped as they lie in memory, and if they are
        multiplied with matrices, the kernel of these computes them. A node that needs a product of matrices takes edges
        in tiles. A typed product reads each matrix once for all its rows. None for any other node: it is computed for
        its own rows, in their order; so is a value of edges that are no more than the rows by which they would be
        grouped, since no row is then read twice. `EdgeWalks.format` decides otherwise.
        """
        if is_typed_product(node := self.program.nodes[ref]) and is_walked(self.program, ref):
            assert isinstance(node, ir.MatMul)
            return node.map
        if self.is_push(ref) or not self.is_light(ref) or space_of(self.program, ref) == UNIT:
            return None
        if self.in_tiles(ref):
            return self.tile_map(ref)
        if self._walks.format == "coo":
            return None
        grouped = self._walks.format == "csr"
        width = self._widths(ref, least=1 if grouped else _MIN_GATHERED_ELEMENTS)
        runs = [m for m in width if in_equal_runs(self.program.nodes, m)]
        if len(width) < (1 if grouped else 2) or (runs and space_of(self.program, ref) in self._multiplied_spaces):
            return None
        found = max(runs or sorted(width), key=lambda m: (width[m], m))
        return None if not grouped and not runs and map_type(self.program, found) in self._walks.few else found

    @cached_property
    def _multiplied_spaces(self) -> frozenset[Space | None]:
        """The spaces whose rows are multiplied with one matrix for all rows."""
        products = ((r, n) for r, n in enumerate(self.program.nodes) if isinstance(n, ir.MatMul | ir.Gram))
        return frozenset(space_of(self.program, n.x) for r, n in products if n.map is None and r not in self.tiled)

    def in_tiles(self, ref: ir.Ref) -> bool:
        """Whether `ref` is computed in tiles of edges: it is a product of matrices, or its cone has one."""
        if self._is_multiplied(ref):
            return True
        return not self.tiled.isdisjoint(self.needs(ref, frozenset(), through=True).inner)

    def tile_map(self, ref: ir.Ref) -> ir.Ref:
        """The map along which `ref` reads most; its tiles are computed for the rows of that map, unless `ref` itself
        folds along one."""
        node = self.program.nodes[ref]
        space = space_of(self.program, node.x if isinstance(node, ir.Push | ir.Gram) else ref)
        assert space is not None
        width = self._widths(ref)
        return max(self.flow.maps_from[space], key=lambda m: (width.get(m, 0), self._has_many_rows(m), m))

    def _widths(self, ref: ir.Ref, least: int = _MIN_GATHERED_ELEMENTS) -> dict[ir.Ref, int]:
        """For each map with enough rows to share among threads, the elements of wide rows that `ref` reads along it."""
        width: dict[ir.Ref, int] = {}
        for y, m in self.needs(ref, frozenset(), through=True).pulls:
            t, elements = map_type(self.program, m), _elements(self.program, y)
            if elements >= least and self._has_many_rows(m) and t.dom != t.cod:
                width[m] = width.get(m, 0) + elements
        return width

    def _has_many_rows(self, m: ir.Ref) -> bool:
        """Whether the map may lead to enough rows to fill the threads; a few rows, such as types, would not."""
        rows = dict(self.program.spaces).get(map_type(self.program, m).cod)
        return not isinstance(rows, int) or rows >= _MIN_GROUPED_ROWS

    def on_edges(self, ref: ir.Ref) -> bool:
        """Whether `ref` is computed edge by edge, together with its cone."""
        return self.is_push(ref) or self.walks_along(ref) is not None

    # -------------------------------------------------------- what a node reads

    @remembered
    def needs(self, ref: ir.Ref, stored: frozenset[ir.Ref], *, through: bool) -> Needs:
        """Leaves of the operands of `ref`; `stored` are nodes that exist as values.

        With `through` (a push), light nodes that are not stored are recomputed; without it, operands are the leaves.
        Three kinds of nodes are always looked through: reshapes, since they are views; random numbers, since they are
        drawn again; nodes that only widen what they read, since to store and load them costs more than to recompute.
        """
        walk = _Walk(self, stored, through, self.is_shared(ref))
        walk.below(ref)
        return walk.needs()

    def is_shared(self, ref: ir.Ref) -> bool:
        """Whether `ref` is shared data that is computed from nothing but shared data."""
        return space_of(self.program, ref) == UNIT and not isinstance(self.program.nodes[ref], ir.Push | ir.Gram)

    def beneath_views(self, ref: ir.Ref, stored: frozenset[ir.Ref]) -> tuple[ir.Ref, ...]:
        """The values that a node of shared data reads, seen through views of values that are not `stored`."""
        operands = self.flow.operands

        def is_view(r: ir.Ref) -> bool:
            view = isinstance(self.program.nodes[r], ir.Reshape | ir.Permute | ir.Broadcast | ir.Slice)
            return view and self.is_light(r) and r not in stored

        seen = reached(operands[ref], lambda r: operands[r] if is_view(r) else ())
        return tuple(sorted(r for r in seen if not is_view(r)))

    def leaves(self, refs: Iterable[ir.Ref], stored: frozenset[ir.Ref]) -> Needs:
        """Leaves of `refs` themselves, where light nodes that are not `stored` are recomputed."""
        walk = _Walk(self, stored, True)
        for ref in refs:
            walk.visit(ref)
        return walk.needs()


class _Walk:
    """Collects the leaves and the inner nodes of a cone."""

    def __init__(self, cones: Cones, stored: frozenset[ir.Ref], through: bool, shared: bool = False) -> None:
        """`shared`: whether the cone is that of shared data, whose leaves are of its own row."""
        self._cones, self._program, self._stored, self._through = cones, cones.program, stored, through
        self._pulls: dict[tuple[ir.Ref, ir.Ref], None] = {}
        self._same: dict[ir.Ref, None] = {}
        self._shared: dict[ir.Ref, None] = {}
        self._of_unit = self._same if shared else self._shared
        self._inner: set[ir.Ref] = set()

    def needs(self) -> Needs:
        return Needs(tuple(self._pulls), tuple(self._same), tuple(self._shared), tuple(sorted(self._inner)))

    def visit(self, r: ir.Ref) -> None:
        node, light = self._program.nodes[r], self._cones.is_light(r)
        if isinstance(node, ir.Const) or r in self._inner:
            return
        seen_through = isinstance(node, ir.Reshape | ir.Random) and light
        exists = (
            r in self._stored or not light or isinstance(node, ir.Push | ir.Gram | ir.Input) or is_typed_product(node)
        )
        if space_of(self._program, r) == UNIT:
            leaf, found = exists, self._of_unit
        else:
            leaf, found = exists or not (self._through or self._cones.widens(r)), self._same
        if leaf and not seen_through:
            found[r] = None
        else:
            self._inner.add(r)
            self.below(r)

    def below(self, ref: ir.Ref) -> None:
        """Visit the operands of `ref`."""
        match self._program.nodes[ref]:
            case ir.Pull(x, m) if isinstance(self._program.nodes[m], ir.MapOf):
                self._pulls[(x, m)] = None
            case ir.Push(x) | ir.Pull(x):  # a pull of shared data
                self.visit(x)
            case ir.MatMul(x, w, None):
                self._shared[w] = None  # read as a whole
                self.visit(x)
            case ir.AddMatMul(a, x, w, None):
                self._shared[w] = None
                self.visit(a)
                self.visit(x)
            case ir.MatMul(x, w, int(m)):  # the matrix of the row's own type
                self._pulls[(matrices(self._program, w).w, m)] = None
                self.visit(x)
            case ir.Gram(x, y):
                self.visit(x)
                self.visit(y)
            case _:
                for operand in self._cones.flow.operands[ref]:
                    self.visit(operand)
