"""A kernel in progress: the state that the body of a row and its passes over edges share, and statements that both
need."""

from __future__ import annotations

import math
from collections.abc import Callable

from graphweave.analysis.cones import Needs, map_type, space_of, type_of
from graphweave.analysis.facts import Facts
from graphweave.analysis.maps import in_equal_runs
from graphweave.analysis.typed import is_typed
from graphweave.core.options import Options
from graphweave.core.types import UNIT, DType, Fold
from graphweave.ir.loop import nodes as loop
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.infer import numel
from graphweave.lower.blocks import Namer, folds_into, nest, stores_into, write
from graphweave.lower.expressions import ValueScope, find, shape_of
from graphweave.lower.items import items_of
from graphweave.lower.parameters import Parameters, value_name
from graphweave.lower.schedule import Region

CSR = "csr"
"""Name that kernels use for the CSR of their region's map."""


class Draft:
    """`forced` are values that need arrays of their own, as an earlier draft could not index them where they are used.

    `stored` are the values that exist as tensors, but for those that the kernel itself writes for its edges, since what
    it computes for the same edge needs them before they are in memory. `given` are those that exist before the kernel
    starts. `stashes` and `passed` grow with each pass that is written: values that it keeps for later passes, and its
    members. `runs` is the region's map if each row has equally many edges, one after the other. `items` says
    how the rows are those of items of a batch, if the kernel walks one item after the other. `own` as in `Parameters`.
    """

    def __init__(
        self, facts: Facts, region: Region, stored: frozenset[ir.Ref], options: Options, index: DType,
        forced: frozenset[ir.Ref], own: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.program = program = facts.program
        self.cones = facts.cones
        self.region, self.options, self.forced = region, options, forced
        self.runs = region.map if self._walks_runs() else None
        self.names = Namer()
        self.row = ValueScope(program)
        self.stashes: dict[ir.Ref, loop.Stash] = {}
        self.passed: set[ir.Ref] = set()
        self.members = frozenset(region.members)
        self.given = stored - self.members
        self.on_edges = frozenset(r for r in region.members if self._walks_edges(r))
        self.stored = stored.difference(r for r in self.on_edges if not self.cones.is_push(r))
        self.needs: dict[ir.Ref, Needs] = {
            r: self.cones.needs(r, self.stored, through=self.cones.on_edges(r)) for r in region.members
        }
        known = options.items and not own and self.runs is None
        self.items = items_of(program, region, self.needs.values(), self.on_edges) if known else None
        self.sums_items = self.items is not None and self.items.summed is not None
        if self.sums_items:  # the edges are the rows that the kernel walks
            self.on_edges = frozenset()
        rows = region.rows if self.items is None else self.items.rows
        self.parameters = Parameters(program, rows, index, own, self.runs, self.items)

    # -------------------------------------------------------- structure of the region

    def _walks_runs(self) -> bool:
        """Whether the edges of each row are a run of equal length, so that there is no CSR. Typed products read and
        write rows by the numbers that a CSR has."""
        m, members = self.region.map, self.region.members
        runs = m is not None and self.options.equal_runs and in_equal_runs(self.program.nodes, m)
        fused = (isinstance(n := self.program.nodes[r], ir.Push) and n.fused for r in members)
        return runs and not any(fused) and not any(is_typed(self.program, r) for r in members)

    @property
    def kept(self) -> frozenset[ir.Ref]:
        """The values that a pass can load: they are in tensors, or were kept by an earlier pass."""
        return self.stored.union(self.stashes)

    def _walks_edges(self, ref: ir.Ref) -> bool:
        node = self.program.nodes[ref]
        if not isinstance(node, ir.Push):
            along = self.region.map is not None and self.cones.walks_along(ref) == self.region.map
            return along or self.cones.is_push(ref)
        m = map_type(self.program, node.map)
        if m.cod != UNIT:
            return self.constant_push(node) is None
        return m.dom != self.region.rows

    def constant_push(self, push: ir.Push) -> ir.Const | None:
        """The constant that `push` sums up, if any: the result is the degree times it, without a pass over edges."""
        x = self.program.nodes[push.x]
        while isinstance(x, ir.Broadcast | ir.Reshape):
            x = self.program.nodes[x.x]
        if not isinstance(x, ir.Const) or not math.isfinite(x.value):  # 0 * inf is NaN, the sum over no edges is 0
            return None
        return x if push.is_plain_sum else None

    def is_total(self, push: ir.Push) -> bool:
        """Whether the push is folded over all rows of the kernel: into one row, or over items into the rows of one."""
        return self.sums_items or map_type(self.program, push.map).cod == UNIT

    def local(self, ref: ir.Ref) -> list[ir.Ref]:
        """Members that `ref` needs at its own row."""
        n = self.needs[ref]
        reads = [y for y, m in n.pulls if m == self.region.map] if ref in self.on_edges else n.same
        return [r for r in reads if r in self.members]

    def wide_gathers(self, ref: ir.Ref) -> frozenset[ir.Ref]:
        """Values at other rows that a member on edges reads, wide enough that reading them twice is expensive."""
        far = (y for y, m in self.needs[ref].pulls if m != self.region.map)
        return frozenset(y for y in far if numel(shape_of(self.program, y)) >= self.options.wide)

    def of_item(self, m: ir.Ref, position: loop.Var) -> tuple[loop.Expr, ...] | None:
        """The index of the row to which a map sends the row, or the edge, of an item at `position`, where that follows
        by arithmetic: none for an item's single row."""
        if self.items is None or m not in self.items.repeated | self.items.single:
            return None
        return (position,) if m in self.items.repeated else ()

    # -------------------------------------------------------- statements

    def read_at_row(self, ref: ir.Ref) -> None:
        """Let a value of the row, or shared data, be loaded from its tensor, unless this kernel computes it."""
        if (
            find(self.row, ref) is None
            and ref not in self.members
            and not isinstance(self.program.nodes[ref], ir.Const)
        ):
            shared = space_of(self.program, ref) == UNIT and self.region.rows != UNIT
            lead: tuple[loop.Expr, ...] = () if shared else (loop.Var("v"),)
            self.row.at[ref] = (self.parameters.tensor(ref), lead)

    def row_array(self, ref: ir.Ref, start: float | int | bool | None = None) -> loop.Alloc:
        """Allocate an array of the row for `ref`, filled with `start` if given; loads of `ref` read it from then on."""
        t = type_of(self.program, ref)
        name = f"{value_name(self.program, ref)}_v"
        self.row.at[ref] = (name, ())
        return loop.Alloc(name, t.dtype, (numel(t.shape),), start)

    def block(self, scope: ValueScope, ref: ir.Ref, name: str) -> list[loop.Stmt]:
        """Compute `ref` into an array of its own, unless it can be loaded already."""
        if find(scope, ref) is not None:
            return []
        t = type_of(self.program, ref)
        body = write(scope, ref, stores_into(name, (), t.shape), self.names)
        scope.at[ref] = (name, ())
        return [loop.Alloc(name, t.dtype, (numel(t.shape),), None), *body]

    def fill(self, ref: ir.Ref, value: Callable[[loop.IndexSum], loop.Expr]) -> list[loop.Stmt]:
        """Overwrite the array that holds `ref` at the row, element by element."""
        size = numel(shape_of(self.program, ref))
        lanes = [(self.names.lane(), size)] if size > 1 else []
        at = loop.IndexSum(tuple((v, 1) for v, _ in lanes))
        return nest(lanes, [loop.Store(self.row.at[ref][0], (at,), value(at))])

    def output(self, scope: ValueScope, ref: ir.Ref, position: str) -> list[loop.Stmt]:
        """Write `ref` to its tensor, at the row that the variable `position` holds."""
        sink = stores_into(
            self.parameters.tensor(ref, loop.Role.output), (loop.Var(position),), shape_of(self.program, ref)
        )
        return self.comment(ref) + write(scope, ref, sink, self.names)

    def total(self, scope: ValueScope, ref: ir.Ref, push: ir.Push) -> list[loop.Stmt]:
        """Add the row's (or edge's) part to the total `ref`."""
        assert isinstance(push.fold, Fold)
        out = self.parameters.tensor(ref, loop.Role.total, push.fold)
        lead: tuple[loop.Expr, ...] = (loop.Var("v"),) if self.sums_items else ()
        if self.items is not None and not lead:
            self.parameters.edges(push.map)  # whether there are any rows decides what the total is
        sink = folds_into(out, shape_of(self.program, ref), push.fold, lead)
        return self.comment(ref) + write(scope, push.x, sink, self.names)

    def comment(self, ref: ir.Ref) -> list[loop.Stmt]:
        loc = self.program.locs[ref]
        return [loop.Comment(str(loc))] if loc else []
