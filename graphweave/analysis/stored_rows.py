"""Which values of edges are stored once, since the walks that need them would pay more to compute them again than to
read them.

A kernel that walks edges computes the values of edges that it needs from values of nodes. Some are dear: a network of
the length of an edge, of which a function with forces needs the output, its derivative, and the derivative of that; or
scores that are normalised in many rounds (Sinkhorn's), where each round would gather the same rows again. Such a value
is written by the first walk that needs it, and read by the others.

The price is counted for one edge in bytes moved: what the value's rows take to write and to read, against what each
walk but the first would gather and multiply for this value alone. Work on vectors is not counted, since it hides
behind both. Wide rows take memory besides, as the compiler promises to store none in an ordinary training step, so they
are stored for three walks or more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from graphweave.analysis.cones import Cones, space_of, type_of
from graphweave.analysis.flow import Flow
from graphweave.analysis.tiles import tile_spaces
from graphweave.analysis.work import BANDWIDTH, PRODUCT_RATE, product_flops, row_bytes
from graphweave.ir.message import nodes as ir

_WIDE_BYTES = 32
"""Rows of at least this many bytes are stored on edges, of which there are many, only for `_WIDE_WALKS`."""

_WIDE_WALKS = 3
"""Fewest walks that need a wide value which is stored. Each half of an ordinary training step has at most two."""

_LEAST_BYTES = 32
"""A stored row counts as this many bytes or more: a walk reads rows in another order than that in which they lie."""

_ROW_WISE = (ir.Pointwise, ir.Cast, ir.Reduce, ir.Reshape, ir.Broadcast, ir.Permute, ir.Slice, ir.Pad, ir.Concat)


class EdgeWalk(NamedTuple):
    """A kernel that needs a value of edges: whether it is in the backward, how many kernels run before it one after the
    other, and the map along which it goes, or the value that it computes for all edges."""

    late: bool
    level: int
    along: ir.Ref


def stored_rows(program: ir.Program, flow: Flow, cones: Cones) -> frozenset[ir.Ref]:
    """The values of edges that kernels of `program`, one half or a whole function, store for other kernels of it."""
    return frozenset(_StoredChoice(program, flow, cones, frozenset()).choose())


def saved_rows(program: ir.Program, flow: Flow, cones: Cones, tangents: frozenset[ir.Ref]) -> frozenset[ir.Ref]:
    """The values of edges that the forward of a joint program stores for other kernels of its own, and saves for the
    backward, whose inputs are `tangents`."""
    late = flow.depending(tangents)
    chosen = _StoredChoice(program, flow, cones, late).choose()
    return frozenset(r for r, early in chosen.items() if r not in late and early > 1)


@dataclass(slots=True)
class _StoredChoice:
    """Chooses values from the leaves on, and then drops those that later ones have made needless."""

    program: ir.Program
    flow: Flow
    cones: Cones
    late: frozenset[ir.Ref]
    walks: dict[ir.Ref, frozenset[EdgeWalk]] = field(default_factory=dict)
    """The walks that need each value of edges, where those that are stored are there."""
    _readers: dict[ir.Ref, frozenset[EdgeWalk]] = field(default_factory=dict)
    """The walks in which each node reads its operands."""
    _stored: dict[ir.Ref, int] = field(default_factory=dict)
    _outputs: frozenset[ir.Ref] = frozenset()

    def choose(self) -> dict[ir.Ref, int]:
        """The values that are stored, each with the number of walks of the forward for which it was chosen."""
        edges = tile_spaces(self.program, self.flow)
        on_edges = [r for r in range(len(self.program.nodes)) if space_of(self.program, r) in edges]
        pushes = sum(self.cones.is_push(r) for r in range(len(self.program.nodes)))
        if not on_edges or pushes < 2:
            return {}
        self._outputs = frozenset(r for r in self.program.outputs if r is not None)
        levels = _levels(self.program, self.flow, frozenset(on_edges))
        self._find_walks(on_edges, levels)
        most = self._most_work(on_edges)
        for r in on_edges:
            if self._may_be_stored(r) and self._has_walks(r) and self._gain(r, most[r]) > 0 and self._gain(r) > 0:
                self._stored[r] = sum(not w.late for w in self.walks[r])
                self._find_walks(on_edges, levels)
        for r, early in sorted(self._stored.items(), reverse=True):
            del self._stored[r]
            self._find_walks(on_edges, levels)
            if r in self.walks and self._gain(r) > 0:
                self._stored[r] = early
        return self._stored

    def _may_be_stored(self, ref: ir.Ref) -> bool:
        """Whether a kernel computes `ref`, and reads it at less than it takes to gather it: wide rows cost the same."""
        t = self.program.types[ref]
        made = isinstance(self.program.nodes[ref], ir.Pointwise | ir.Reduce) or ref in self.cones.tiled
        light = isinstance(t, ir.Type) and t.dtype.is_float and self.cones.is_light(ref)
        fits = not self._is_wide(ref) or self.cones.in_tiles(ref)
        return made and light and fits and ref not in self.flow.graph_only

    # -------------------------------------------------------- which walks need what

    def _find_walks(self, on_edges: Iterable[ir.Ref], levels: dict[ir.Ref, int]) -> None:
        """Follow the pushes along maps, and the values that are computed alone, back to the values that they need."""
        program, cones, here = self.program, self.cones, frozenset(on_edges)
        needed: dict[ir.Ref, set[EdgeWalk]] = {}
        self._readers = {}
        for ref in reversed(range(len(program.nodes))):
            own = needed.setdefault(ref, set())
            if not own and ref in self._outputs:
                own.add(self._alone(ref, levels))
            if cones.is_push(ref):
                along = cones.pushed_along(ref)  # a total over all edges joins some walk
                walks = [] if along is None else [EdgeWalk(ref in self.late, levels.get(ref, 0), along)]
                read = frozenset(walks)
            elif ref not in here or not cones.is_light(ref):
                read = frozenset([self._alone(ref, levels)])
            elif isinstance(program.nodes[ref], ir.Pull):
                continue
            elif ref in self._stored and own:
                read = frozenset([min(own)])
            else:
                read = frozenset(own)
            self._readers[ref] = read
            for r in self.flow.operands[ref]:
                if r in here:
                    needed.setdefault(r, set()).update(read)
        self.walks = {r: frozenset(w) for r, w in needed.items() if w}

    def _alone(self, ref: ir.Ref, levels: dict[ir.Ref, int]) -> EdgeWalk:
        return EdgeWalk(ref in self.late, levels.get(ref, 0), ref)

    # -------------------------------------------------------- what it costs

    def _has_walks(self, ref: ir.Ref) -> bool:
        """Whether enough walks need `ref`."""
        takes_memory = self._is_wide(ref) and ref not in self._outputs
        return len(self.walks.get(ref, ())) >= (_WIDE_WALKS if takes_memory else 2)

    def _is_wide(self, ref: ir.Ref) -> bool:
        return row_bytes(self.program, ref) >= _WIDE_BYTES

    def _gain(self, ref: ir.Ref, most: float | None = None) -> float:
        """Bytes that storing `ref` saves, where each walk but the first would do at `most` this work again, if given.

        The row is written once, unless it is a result and written anyway, and read by each walk but the first.
        """
        walks = sorted(self.walks[ref])
        again = sum(self._work_for(ref, w) if most is None else most for w in walks[1:])
        return again - (len(walks) - (ref in self._outputs)) * self._row(ref)

    def _row(self, ref: ir.Ref) -> int:
        return max(row_bytes(self.program, ref), _LEAST_BYTES)

    def _work_for(self, ref: ir.Ref, walk: EdgeWalk) -> float:
        """The work of `walk` on values that it needs for `ref` alone."""
        alone, total = {ref}, self._work(ref, walk)
        todo = set(self.flow.operands[ref]) if self._is_open(ref) else set()
        while todo:
            r = max(todo)  # users before operands
            todo.remove(r)
            if walk not in self.walks.get(r, ()):
                continue
            if any(u not in alone for u in self.flow.users[r] if walk in self._readers.get(u, ())):
                continue
            alone.add(r)
            is_read = r in self._stored and walk != min(self.walks[r])
            total += self._row(r) if is_read else self._work(r, walk)
            todo.update(self.flow.operands[r] if self._is_open(r) and not is_read else ())
        return total

    def _is_open(self, ref: ir.Ref) -> bool:
        return not isinstance(self.program.nodes[ref], ir.Pull) and self.cones.is_light(ref)

    def _work(self, ref: ir.Ref, walk: EdgeWalk | None) -> float:
        """The time that a row of `ref` takes to compute from its operands, in bytes that could be moved instead."""
        node = self.program.nodes[ref]
        if isinstance(node, ir.Pull):
            is_near = walk is not None and node.map == walk.along
            is_far = not is_near and isinstance(self.program.nodes[node.map], ir.MapOf)
            return row_bytes(self.program, ref) if is_far else 0.0
        if not (flops := product_flops(self.program, ref)):
            return 0.0
        return flops * BANDWIDTH / PRODUCT_RATE * type_of(self.program, ref).dtype.itemsize / 4  # the rate is of floats

    def _most_work(self, on_edges: Iterable[ir.Ref]) -> dict[ir.Ref, float]:
        """For each value, at least the work that a walk does for it, from values of nodes on."""
        most: dict[ir.Ref, float] = {}
        for r in on_edges:
            below = self.flow.operands[r] if self._is_open(r) else ()
            most[r] = self._work(r, None) + sum(most.get(x, 0.0) for x in below)
        return most


def _levels(program: ir.Program, flow: Flow, on_edges: frozenset[ir.Ref]) -> dict[ir.Ref, int]:
    """For each value, how many kernels that walk edges run one after the other until it is there."""
    level: dict[ir.Ref, int] = {}
    last: dict[ir.Ref, ir.Ref | None] = {}
    """For values of nodes, the map along which the last of these kernels goes, if it is but one."""
    reads: dict[ir.Ref, frozenset[tuple[int, ir.Ref | None]]] = {}
    """For values of edges, the levels of what is gathered for them, and the map of a kernel that has it at its rows."""
    for ref, node in enumerate(program.nodes):
        below = flow.operands[ref]
        if isinstance(node, ir.Pull) and ref in on_edges:
            found = (level.get(node.x, 0), node.map if last.get(node.x) == node.map else None)
            level[ref], reads[ref] = found[0], frozenset([found])
        elif ref in on_edges:
            reads[ref] = frozenset().union(*(reads.get(r, frozenset()) for r in below))
            level[ref] = max((n for n, _ in reads[ref]), default=0)
        elif isinstance(node, ir.Push) and node.x in on_edges:
            before = (n if m == node.map else n + 1 for n, m in reads[node.x])
            level[ref], last[ref] = max(before, default=1) or 1, node.map
        else:
            level[ref] = max((level.get(r, 0) for r in below), default=0)
            maps = {last.get(r) for r in below if level.get(r, 0) == level[ref]}
            last[ref] = maps.pop() if len(maps) == 1 and isinstance(node, _ROW_WISE) else None
    return level
