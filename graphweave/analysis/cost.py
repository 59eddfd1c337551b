"""The cost of a program: the bytes that its kernels move, and their flops.

A value of edges costs nothing by itself: every *walk* that needs it recomputes it. A walk is all pushes along one map
in one half (forward or backward) of the program. So a pulled row is gathered once for each walk, and a pull along the
walked map reads the walk's own row. Values of nodes cost their work once, and their bytes if they must exist as
tensors: a call reads them, a walk along another map pulls them, the backward needs them, or they are outputs. Products
of rows with a matrix that all rows share are part of kernels (`row_products.py`), or calls if a target has no kernels
for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from graphweave.analysis.facts import Facts
from graphweave.analysis.flow import is_structure, reached
from graphweave.analysis.statistics import Statistics
from graphweave.analysis.tiles import gram_fits
from graphweave.analysis.typed import (
    PushedProduct,
    call_operands,
    gathered,
    is_typed,
    matrices,
    pushed_product,
    sources,
)
from graphweave.analysis.work import (
    BANDWIDTH,
    LANES,
    PRODUCT_RATE,
    VECTOR_RATE,
    product_flops,
    row_bytes,
    vector_operations,
)  # fmt: skip
from graphweave.core.types import UNIT, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.infer import numel
from graphweave.ir.message.pairs import pair_space

_BLOCK_PRODUCT_FACTOR = 2
"""A fused push multiplies the few rows of one type in a row block, which takes this many times as long for each row."""

_INDEX_BYTES = 4
"""Bytes of an element of an index."""

_MAX_SHARED_ELEMENTS = 1 << 20
"""The work on a shared value counts only if the value has at most this many elements."""

Walk: TypeAlias = tuple[bool, ir.Ref | None, ir.Ref | None]
"""A walk: whether it is in the backward, and the map that it goes along or the value of edges that it computes
alone."""


@dataclass(slots=True)
class Cost:
    """Bytes, vector operations and flops of matrix products for each row of each space."""

    rows: dict[Space, list[float]] = field(default_factory=dict)

    def add(self, space: Space, *, bytes: float = 0, flops: float = 0, products: float = 0) -> None:
        row = self.rows.setdefault(space, [0.0, 0.0, 0.0])
        row[0] += bytes
        row[1] += flops
        row[2] += products

    def total(self, statistics: Statistics) -> tuple[float, float, float]:
        """(bytes, vector operations, flops of matrix products) for a graph of this size."""
        totals = [0.0, 0.0, 0.0]
        for space, row in self.rows.items():
            n = statistics.rows(space)
            for i, value in enumerate(row):
                totals[i] += n * value
        return totals[0], totals[1], totals[2]

    def seconds(self, statistics: Statistics) -> float:
        moved, flops, products = self.total(statistics)
        return moved / BANDWIDTH + flops / VECTOR_RATE + products / PRODUCT_RATE

    def per_row(self) -> dict[Space, float]:
        """Seconds for each row of a space."""
        return {s: b / BANDWIDTH + f / VECTOR_RATE + p / PRODUCT_RATE for s, (b, f, p) in self.rows.items()}


def cost(facts: Facts, tangents: Iterable[ir.Ref] = (), keep: Iterable[ir.Ref] = (), *, joins: bool = True) -> Cost:
    """Cost of what a program's outputs and the calls in `keep` need. Nodes that depend on `tangents` are the backward.

    `joins` says whether kernels multiply rows (`Options.row_products`).
    """
    return _Counter(facts, frozenset(tangents), tuple(keep), joins).count()


class _Counter:
    def __init__(self, facts: Facts, tangents: frozenset[ir.Ref], keep: tuple[ir.Ref, ...], joins: bool) -> None:
        self.program = program = facts.program
        self.nodes, self.types, self.operands = program.nodes, program.types, facts.flow.operands
        self.joined = facts.row_products if joins else frozenset()
        self.outputs = {r for r in program.outputs if r is not None} | set(keep)
        self.typed = frozenset(r for r in range(len(self.nodes)) if is_typed(program, r))
        self.live = sorted(reached(self.outputs, self._sources))
        self.calls = frozenset(r for r in self.live if self._is_call(r))
        self.late = facts.flow.depending(tangents)
        cods = {t.cod for t in self.types if isinstance(t, ir.MapType)}
        self.edges = facts.flow.edge_spaces - cods
        self.given = frozenset(r for r in facts.flow.graph_only if not self._made_by_walks(r))
        self.cost = Cost()
        self.walks: dict[ir.Ref, set[Walk]] = {}

    def _sources(self, ref: ir.Ref) -> tuple[ir.Ref, ...]:
        """The values from which the node is computed."""
        return sources(self.program, ref) if ref in self.typed else self.operands[ref]

    def _read_by_call(self, ref: ir.Ref) -> tuple[ir.Ref, ...]:
        """The values that must exist for a call of the node."""
        return call_operands(self.program, ref) if ref in self.typed else self.operands[ref]

    def _made_by_walks(self, ref: ir.Ref) -> bool:
        """Whether `ref` is a value of edges that kernels recompute, even if it depends on the graph alone."""
        return self._on_edges(ref) and not isinstance(self.nodes[ref], ir.Opaque | ir.Input)

    def count(self) -> Cost:
        totals = self._walks_of_pushes()
        for ref in totals:
            self._walk_of_total(ref)
        columns: set[tuple[Walk, ir.Ref]] = set()
        for ref in self.live:
            t = self.types[ref]
            if ref in self.typed:
                self._typed(ref)
            if isinstance(t, ir.Type) and t.space in self.edges:
                self._edge_level(ref, t, columns)
            elif isinstance(t, ir.Type) and t.space == UNIT:
                self._shared(ref, t)
            elif isinstance(t, ir.Type):
                self._node_level(ref, t)
        self._tensors()
        for _, m in columns:
            mt = self.types[m]
            assert isinstance(mt, ir.MapType)
            self.cost.add(mt.dom, bytes=_INDEX_BYTES)
        return self.cost

    # -------------------------------------------------------- which walks need a value of edges

    def _walks_of_pushes(self) -> list[ir.Ref]:
        """Marks the cones of pushes and the values of edges that must exist; gives the totals over edges, unmarked."""
        totals: list[ir.Ref] = []
        for ref in reversed(self.live):
            node, t = self.nodes[ref], self.types[ref]
            late = ref in self.late
            if isinstance(node, ir.Push) and ref not in self.typed:
                along = self.types[node.map]
                assert isinstance(along, ir.MapType)
                if along.cod == UNIT:
                    totals.append(ref)
                elif not isinstance(self.nodes[node.x], ir.Const):
                    self._mark(node.x, {(late, node.map, None)})
            elif isinstance(node, ir.Gram) and node.map is None and self._on_edges(node.x):
                totals.append(ref)
            elif isinstance(node, ir.Opaque) or ref in self.typed:
                for r in self._read_by_call(ref):
                    self._mark(r, {(late, None, r)})
            if ref in self.outputs:
                self._mark(ref, {(late, None, ref)})
            if ref in self.walks and isinstance(t, ir.Type) and ref not in self.given and not self._is_leaf(ref):
                for r in self.operands[ref]:
                    self._mark(r, self.walks[ref])
        return totals

    def _is_leaf(self, ref: ir.Ref) -> bool:
        """Whether walks read the value of edges: it is pulled, or the stored rows of a typed product."""
        return isinstance(self.nodes[ref], ir.Pull) or ref in self.typed

    def _mark(self, ref: ir.Ref, walks: set[Walk]) -> None:
        if self._on_edges(ref):
            self.walks.setdefault(ref, set()).update(walks)

    def _on_edges(self, ref: ir.Ref) -> bool:
        t = self.types[ref]
        return isinstance(t, ir.Type) and t.space in self.edges

    def _walk_of_total(self, ref: ir.Ref) -> None:
        """A total over edges joins the walk in which it gathers least."""
        roots = [r for r in self.operands[ref] if self._on_edges(r)]
        if not roots:
            return
        cone = self._cone(roots)
        late, space = ref in self.late, self.types[roots[0]]
        found = {w for walks in self.walks.values() for w in walks if w[0] == late and w[1] is not None}
        fitting = [w for w in found if self._dom(w[1]) == getattr(space, "space", None)]
        alone: Walk = (late, None, roots[0])
        best = min([*sorted(fitting), alone], key=lambda w: self._added_bytes(cone, w))
        for r in cone:
            self.walks.setdefault(r, set()).add(best)

    def _dom(self, m: ir.Ref | None) -> Space | None:
        t = self.types[m] if m is not None else None
        return t.dom if isinstance(t, ir.MapType) else None

    def _cone(self, roots: Iterable[ir.Ref]) -> list[ir.Ref]:
        seen: set[ir.Ref] = set()
        todo = list(roots)
        while todo:
            ref = todo.pop()
            if ref in seen or not self._on_edges(ref):
                continue
            seen.add(ref)
            if ref not in self.given and not self._is_leaf(ref):
                todo.extend(self.operands[ref])
        return sorted(seen)

    def _added_bytes(self, cone: Iterable[ir.Ref], walk: Walk) -> float:
        return sum(self._read_bytes(r, walk) for r in cone if walk not in self.walks.get(r, ()))

    def _read_bytes(self, ref: ir.Ref, walk: Walk) -> float:
        node, t = self.nodes[ref], self.types[ref]
        assert isinstance(t, ir.Type)
        size = numel(t.shape) * t.dtype.itemsize
        if isinstance(node, ir.Pull) and ref not in self.given:
            return 0 if node.map == walk[1] or not isinstance(self.nodes[node.map], ir.MapOf) else size
        leaf = (
            isinstance(node, ir.Input | ir.Opaque)
            or ref in self.typed
            or (ref in self.given and not is_structure(node))
        )
        return size if leaf else 0

    # -------------------------------------------------------- costs

    def _edge_level(self, ref: ir.Ref, t: ir.Type, columns: set[tuple[Walk, ir.Ref]]) -> None:
        node = self.nodes[ref]
        for walk in self.walks.get(ref, ()):
            if ref in self.given or isinstance(node, ir.Pull | ir.Input | ir.Opaque) or ref in self.typed:
                self.cost.add(t.space, bytes=self._read_bytes(ref, walk))
                if isinstance(node, ir.Pull) and ref not in self.given and node.map != walk[1]:
                    columns.add((walk, node.map))
                continue
            self.cost.add(
                t.space, flops=vector_operations(self.program, ref), products=product_flops(self.program, ref)
            )
            if walk[2] == ref:
                self.cost.add(t.space, bytes=numel(t.shape) * t.dtype.itemsize)

    def _compute(self, space: Space, ref: ir.Ref) -> None:
        self.cost.add(space, flops=vector_operations(self.program, ref), products=product_flops(self.program, ref))

    def _typed(self, ref: ir.Ref) -> None:
        """A typed product reads its rows where they lie and each matrix once; on edges it writes rows for the walks."""
        node, pushed = self.nodes[ref], pushed_product(self.program, ref)
        if pushed is not None:
            assert isinstance(node, ir.Push)
            self._pushed(pushed, node.map)
            return
        assert isinstance(node, ir.MatMul | ir.Gram) and node.map is not None
        t, types, rows = self.types[ref], self.types[node.map], self.types[node.x]
        assert isinstance(t, ir.Type) and isinstance(types, ir.MapType) and isinstance(rows, ir.Type)
        ends = (node.x,) if isinstance(node, ir.MatMul) else (node.x, node.y)
        moved = sum(
            row_bytes(self.program, r) for r in ends if gathered(self.program, r).map is not None or self._on_edges(r)
        )
        matrix = self.types[matrices(self.program, node.w).w] if isinstance(node, ir.MatMul) else t
        assert isinstance(matrix, ir.Type)
        self.cost.add(rows.space, bytes=moved + _INDEX_BYTES, products=2 * numel(matrix.shape))
        self.cost.add(types.cod, bytes=numel(matrix.shape) * matrix.dtype.itemsize)
        if t.space in self.edges:
            self.cost.add(t.space, bytes=row_bytes(self.program, ref))

    def _pushed(self, pushed: PushedProduct, along: ir.Ref) -> None:
        """A fused push gathers each edge's row once, and multiplies once for each destination and type."""
        node = pushed.product
        assert node.map is not None
        rows, types, matrix = self.types[node.x], self.types[node.map], self.types[matrices(self.program, node.w).w]
        assert isinstance(rows, ir.Type) and isinstance(types, ir.MapType) and isinstance(matrix, ir.Type)
        scale = 0 if pushed.scale is None else row_bytes(self.program, pushed.scale)
        moved = row_bytes(self.program, node.x) + scale + 3 * _INDEX_BYTES
        self.cost.add(rows.space, bytes=moved, flops=max(numel(rows.shape), LANES))
        pairs = pair_space(self.nodes, along, node.map)
        self.cost.add(pairs, products=_BLOCK_PRODUCT_FACTOR * 2 * numel(matrix.shape))
        self.cost.add(types.cod, bytes=numel(matrix.shape) * matrix.dtype.itemsize)

    def _node_level(self, ref: ir.Ref, t: ir.Type) -> None:
        if ref in self.given or ref in self.typed:
            return
        node = self.nodes[ref]
        if isinstance(node, ir.Push):
            source = self.types[node.x]
            assert isinstance(source, ir.Type)
            if not isinstance(self.nodes[node.x], ir.Const):
                self.cost.add(source.space, flops=max(numel(t.shape), LANES))
        else:
            self.cost.add(
                t.space, flops=vector_operations(self.program, ref), products=product_flops(self.program, ref)
            )

    def _shared(self, ref: ir.Ref, t: ir.Type) -> None:
        node = self.nodes[ref]
        if isinstance(node, ir.Gram | ir.Push):
            source = self.types[node.x]
            assert isinstance(source, ir.Type)
            walks = len(self.walks.get(node.x, ())) if source.space in self.edges else 1
            if walks and isinstance(node, ir.Gram):
                other = self.types[node.y]
                assert isinstance(other, ir.Type)
                in_place = source.space not in self.edges or gram_fits(source, other)
                stored = (
                    0 if in_place else 2 * (row_bytes(self.program, node.x) + row_bytes(self.program, node.y))
                )  # written, read by a call
                self.cost.add(source.space, bytes=stored, products=2 * numel(t.shape))
            elif walks:
                self.cost.add(source.space, flops=max(numel(t.shape), LANES))
        elif isinstance(node, ir.MatMul):
            self.cost.add(UNIT, products=product_flops(self.program, ref))
        elif numel(t.shape) <= _MAX_SHARED_ELEMENTS:
            self.cost.add(UNIT, flops=vector_operations(self.program, ref))

    # -------------------------------------------------------- tensors

    def _tensors(self) -> None:
        """Bytes written and read for the values of nodes that must exist as tensors."""
        readers: dict[ir.Ref, set[tuple[str, ir.Ref | bool]]] = {r: {("output", r)} for r in self.outputs}

        def read(ref: ir.Ref, how: str, by: ir.Ref | bool) -> None:
            readers.setdefault(ref, set()).add((how, by))

        for ref in self.live:
            node, late = self.nodes[ref], ref in self.late
            if ref in self.typed:
                streamed = self._sources(ref)
                for r in self._read_by_call(ref):
                    read(r, "call" if r in streamed and not isinstance(self.nodes[r], ir.MapOf) else "gather", ref)
            elif ref in self.calls:
                for r in self.operands[ref]:
                    read(r, "call", ref)
            elif isinstance(node, ir.Pull):
                walks = self.walks.get(ref, ())
                for r in self.operands[ref]:
                    if any(w[1] != node.map for w in walks):
                        read(r, "gather", ref)
                    if any(w[1] == node.map and self._stands_apart(r, w[0]) for w in walks):
                        read(r, "row", late)
            else:
                for r in self.operands[ref]:
                    if self._stands_apart(r, late):
                        read(r, "row", late)
        for ref in self.live:
            t, node = self.types[ref], self.nodes[ref]
            if not isinstance(t, ir.Type) or t.space == UNIT or t.space in self.edges or is_structure(node):
                continue
            size = numel(t.shape) * t.dtype.itemsize
            reads = readers.get(ref, set())
            exists = isinstance(node, ir.Input) or ref in self.calls or ref in self.given
            if reads and not isinstance(node, ir.Input) and ref not in self.given:
                self.cost.add(t.space, bytes=size)
            if exists or reads:
                self.cost.add(t.space, bytes=size * sum(kind in ("call", "row") for kind, _ in reads))

    def _is_call(self, ref: ir.Ref) -> bool:
        """Whether the node runs by itself, on tensors, outside of fused kernels."""
        product = isinstance(self.nodes[ref], ir.MatMul | ir.Gram) and ref not in self.joined
        return product or isinstance(self.nodes[ref], ir.Opaque) or ref in self.typed

    def _stands_apart(self, ref: ir.Ref, late: bool) -> bool:
        """Whether a row-wise user in one half (the backward if `late`) loads `ref`, since no kernel of that half
        computes it."""
        stored = isinstance(self.nodes[ref], ir.Input) or ref in self.calls
        return stored or ref in self.given or (late and ref not in self.late)
