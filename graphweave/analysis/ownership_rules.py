"""The rows that a rank has of each value of a program over the parts of a graph: a rule for each kind of node.

Whose rows a value has, and what its integers number, follow from the node and from what the rank has of its operands.
A call of PyTorch answers by its row of `core/calls` (`ownership_of_calls.py`). A node whose numbers would not be those
of the whole graph is refused, and so is one without a rule. Each refusal names the user's line, and says what to do
instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graphweave.analysis.cones import map_type, row_space
from graphweave.analysis.linear import is_linear
from graphweave.analysis.maps import COUNTED, elements, source_of
from graphweave.analysis.ownership import (
    HaloRows,
    Held,
    NumberedSegments,
    Numbers,
    Owned,
    OwnedRows,
    PairOfNumbers,
    Sharding,
    Whose,
    WhyRefused,
)
from graphweave.analysis.ownership_of_calls import CallOwnership
from graphweave.analysis.row_orders import mixed_orders
from graphweave.core.calls import Elements, Lead, facts_of
from graphweave.core.types import UNIT, DType, Fold, Op, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands

_COMPARISONS = frozenset({Op.eq, Op.ne, Op.lt, Op.le, Op.gt, Op.ge})


def owned_rows(program: ir.Program, sharding: Sharding) -> OwnedRows:
    """The rows that a rank has of each value of `program`; `refused` says why, if it cannot run over ranks."""
    return _Rules(program, sharding).owned()


class _Rules(CallOwnership):
    """The rules for all kinds of nodes."""

    def owned(self) -> OwnedRows:
        for ref, node in enumerate(self.program.nodes):
            self._check_space(ref, node)
            numbers = RULES.get(type(node), _Rules.without_rule)(self, ref, node)
            self.values.append(Owned(self._whose(ref, node), self._integral(ref, numbers)))
        self._check_unions()
        for ref in mixed_orders(self.program, self.sharded):
            self._refuse(ref, WhyRefused.two_orders)
        for output in (r for r in self.program.outputs if r is not None):
            if self.values[output].whose is Whose.partial:
                self._refuse(output, WhyRefused.partial_given)
            elif row_space(self.program, output) in self.copied:
                self._refuse(output, WhyRefused.copied)
        halo = HaloRows(frozenset(self.leaving), self.node_types, self.unions)
        return OwnedRows(self.program, self.sharded, tuple(self.values), halo, tuple(self.refused))

    # -------------------------------------------------------- whose rows

    def _whose(self, ref: ir.Ref, node: ir.Node) -> Whose:
        if self._is_partial(ref, node):
            return Whose.partial
        match self.program.types[ref]:
            case ir.MapType(cod=space):
                if ref in self.leaving:
                    return Whose.halo
                mine = space in self.sharded
            case ir.Type(space=space) | ir.DistinctType(space=space):
                mine = space in self.sharded
            case t:
                given = isinstance(node, ir.Input) and node.name not in self.shared
                tensors = t.dims is not None or t.items is not None
                mine = tensors and (given or any(map(self._is_mine, operands(node))))
        return Whose.mine if mine else Whose.all

    def _check_space(self, ref: ir.Ref, node: ir.Node) -> None:
        space = row_space(self.program, ref)
        if space not in self.sharded:
            return
        if isinstance(node, ir.Input) and node.name in self.shared:
            self._refuse(ref, WhyRefused.parameter)
        if isinstance(node, ir.RunningSum):
            self._refuse(ref, WhyRefused.summed_in_order)
        if isinstance(size := self.sizes.get(space), int):
            self._refuse(ref, WhyRefused.compiled_in, size)

    def _is_partial(self, ref: ir.Ref, node: ir.Node) -> bool:
        """Whether each rank has a summand of the value, as of what is pushed to pairs that several ranks have. It may
        go only where it is linear, to where the ranks' summands are added."""
        partial = {r for r in operands(node) if self.values[r].whose is Whose.partial}
        linear = is_linear(self.program, node, partial)
        if not isinstance(node, ir.Push | ir.Gram):
            if partial and not linear:
                self._refuse(ref, WhyRefused.partial_used)
            return bool(partial) and linear
        sums = isinstance(node, ir.Gram) or node.fold is Fold.sum
        copied = sums and row_space(self.program, node.x) in self.copied
        to_copied = node.map is not None and map_type(self.program, node.map).cod in self.copied
        begins = to_copied and sums and not (partial or copied)
        ends = bool(partial) and sums and linear and not to_copied
        if (partial or copied or to_copied) and not (begins or ends):
            self._refuse(ref, WhyRefused.partial_used)
        return begins

    # -------------------------------------------------------- rules: what integers number

    def without_rule(self, ref: ir.Ref, node: ir.Node) -> Held:
        self._refuse(ref, WhyRefused.no_rule, type(node).__name__.lower())
        return None

    def no_numbers(self, ref: ir.Ref, node: ir.Node) -> Held:
        return None

    def input(self, ref: ir.Ref, node: ir.Input) -> Held:
        return self.given.get(node.name)

    def first_operand(self, ref: ir.Ref, node: ir.Node) -> Held:
        return self._held(operands(node)[0])

    def pull(self, ref: ir.Ref, node: ir.Pull) -> Held:
        held = self._held(node.x)
        if held is not None and node.map in self.leaving:
            self._refuse(ref, WhyRefused.numbers_of_others)
        return held

    def merge(self, ref: ir.Ref, node: ir.Concat) -> Held:
        return self._merged(ref, map(self._held, node.xs))

    def join(self, ref: ir.Ref, node: ir.Join) -> Held:
        if node.space in self.sharded and any(row_space(self.program, x) == UNIT for x in node.xs):
            self._refuse(ref, WhyRefused.shared_rows)
        self._lay_out(ref, behind=True)
        return self._merged(ref, map(self._held, node.xs))

    def reduce(self, ref: ir.Ref, node: ir.Push | ir.Reduce) -> Held:
        if self._held(node.x) is not None:
            self._refuse(ref, WhyRefused.numbers_reduced)
        return None

    def pointwise(self, ref: ir.Ref, node: ir.Pointwise) -> Held:
        held = [self._held(a) for a in node.args]
        numbers = [h for h in held if isinstance(h, Numbers)]
        if node.op is Op.where:
            if numbers and any(isinstance(self.program.nodes[a], ir.Const) for a in node.args[1:]):
                self._refuse(ref, WhyRefused.number_among_rows)
            return self._merged(ref, held[1:])
        if node.op not in _COMPARISONS:
            return self.compute(ref, node)
        if numbers and len(numbers) < len(held):
            self._refuse(ref, WhyRefused.compared_with_none)
        elif numbers and node.op not in (Op.eq, Op.ne):
            self._refuse(ref, WhyRefused.compared_by_size)
        elif len(types := sorted({n.node_type for n in numbers if n.node_type is not None})) > 1:
            self._refuse(ref, WhyRefused.compared_by_type, *types[:2])
        return None

    def numbers_of_rows(self, ref: ir.Ref, node: ir.RowsOfSegments | ir.Chosen | ir.DistinctRow) -> Held:
        return Numbers() if self._on_sharded(ref) else None

    def order(self, ref: ir.Ref, node: ir.Order) -> Held:
        if not self._on_sharded(ref):
            return None
        if not all(map(self._is_integral, node.keys)):
            self._refuse(ref, WhyRefused.sorted_by_rank)
        return Numbers()

    def by_arithmetic(self, ref: ir.Ref, node: ir.ByArithmetic) -> Held:
        if not self.sharded.isdisjoint((node.of, node.space)):
            self._refuse(ref, WhyRefused.equal_runs)
        return None

    def reorder(self, ref: ir.Ref, node: ir.Places | ir.Inverse | ir.Reordered) -> Held:
        if self._on_sharded(ref):
            self._refuse(ref, WhyRefused.reordered)
        return self._held(node.x) if isinstance(node, ir.Reordered) else None

    def distinct(self, ref: ir.Ref, node: ir.Distinct) -> Held:
        """Several ranks may have the same row if none of its keys numbers a row that belongs to one rank alone."""
        own = any(isinstance(h, Numbers) and not h.leaves for h in map(self._held, node.keys))
        if node.space in self.sharded and not own:
            self.copied.add(node.space)
        return None

    def distinct_key(self, ref: ir.Ref, node: ir.DistinctKey) -> Held:
        return self._held(operands(self.program.nodes[node.distinct])[node.at])

    def join_indices(self, ref: ir.Ref, node: ir.JoinIndices) -> Held:
        """Finds what the joined numbers of rows of several spaces hold."""
        held = [self._held(x) for x in node.indices]
        if len(node.of) == 1 or not any(isinstance(h, Numbers) and h.leaves for h in held):
            return self._merged(ref, held)
        types: dict[Space, str] = {}
        for h, at in zip(held, node.at, strict=True):
            if not isinstance(h, Numbers) or not h.leaves:
                continue
            if h.node_type is None:
                self._refuse(ref, WhyRefused.joined_twice)
            elif types.setdefault(node.of[at], h.node_type) != h.node_type:
                self._refuse(ref, WhyRefused.same_rows, types[node.of[at]], h.node_type)
        named = tuple(sorted(types.items(), key=lambda item: item[0].name))
        return Numbers(None, True, NumberedSegments(node.of, named))

    def map_of(self, ref: ir.Ref, node: ir.MapOf) -> Held:
        held, dom = self._held(node.index), map_type(self.program, ref).dom
        assert not isinstance(held, PairOfNumbers)
        if node.cod in self.sharded and dom == UNIT:
            self._refuse(ref, WhyRefused.one_row)
        if node.cod in self.sharded and self._counts_others(node.index, node.cod):
            self._refuse(ref, WhyRefused.by_place)
        if held is not None and node.cod not in self.sharded:
            self._refuse(ref, WhyRefused.shared_data)
        index = self.program.nodes[node.index]
        if isinstance(index, ir.Aten) and facts_of(index.target).rows is Lead.taken:  # an end of the edges
            self._stand_in(ref, dom, None)
        if held is not None and held.leaves and (held.node_type is not None or held.segments is not None):
            self._lead_to_others(ref, node.cod, held)
        return None

    def _lead_to_others(self, ref: ir.Ref, cod: Space, held: Numbers) -> None:
        """Notes which spaces have halo rows because of a map."""
        self.leaving.add(ref)
        if held.segments is not None and self.unions.setdefault(cod, held.segments.of) != held.segments.of:
            self._refuse(ref, WhyRefused.two_ways)
        named = ((cod, held.node_type),) if held.segments is None else held.segments.node_types
        for space, node_type in named:
            assert node_type is not None
            if self.node_types.setdefault(space, node_type) != node_type:
                self._refuse(ref, WhyRefused.two_types, self.node_types[space], node_type)

    def _check_unions(self) -> None:
        for ref in sorted(self.leaving):
            cod, of = map_type(self.program, ref).cod, self.unions
            if cod in of and (cod in self.node_types or any(s in of for s in of[cod])):
                self._refuse(ref, WhyRefused.nested)

    def _counts_others(self, index: ir.Ref, cod: Space) -> bool:
        """Whether the index counts other rows than all those of `cod`, such as all but the first or the last one."""
        source = source_of(self.program.nodes, index)
        counts, space = self.program.nodes[source], row_space(self.program, source)
        found = elements(self.program.nodes, source)
        if found not in COUNTED or not isinstance(counts, ir.Aten):
            return False
        known, rows = self.sizes.get(space), self.sizes.get(cod)
        others = known is not None and rows is not None and known != rows
        return others or (found is Elements.counted and counts.args[0] != 0)

    def _integral(self, ref: ir.Ref, held: Held) -> Held:
        """Finds what a value of integers holds; numbers of rows may not become anything else."""
        t = self.program.types[ref]
        if held is None or not isinstance(t, ir.Type | ir.AnyType) or t.dtype is None:
            return held
        if t.dtype.is_float or t.dtype is DType.bool:
            self._refuse(ref, WhyRefused.numbers_become, "floats" if t.dtype.is_float else "truth values")
            return None
        return held


Rule = Callable[[_Rules, ir.Ref, Any], Held]

RULES: Mapping[type[Any], Rule] = {
    **dict.fromkeys(
        (ir.Const, ir.Random, ir.ToUnit, ir.AssertIndex, ir.NumbersOfSegments), _Rules.no_numbers
    ),
    **dict.fromkeys(
        (ir.Reshape, ir.Broadcast, ir.Permute, ir.Slice, ir.Part, ir.Cast, ir.After, ir.LaidOut, ir.Own, ir.Kept),
        _Rules.first_operand,
    ),
    **dict.fromkeys((ir.MatMul, ir.AddMatMul, ir.Gram, ir.Pad, ir.RunningSum), _Rules.compute),
    **dict.fromkeys((ir.Push, ir.Reduce), _Rules.reduce),
    **dict.fromkeys((ir.Places, ir.Inverse, ir.Reordered), _Rules.reorder),
    ir.Input: _Rules.input, ir.MapOf: _Rules.map_of, ir.Pull: _Rules.pull, ir.Pointwise: _Rules.pointwise,
    ir.Concat: _Rules.merge, ir.Join: _Rules.join, ir.Distinct: _Rules.distinct,
    ir.DistinctKey: _Rules.distinct_key, ir.JoinIndices: _Rules.join_indices,
    **dict.fromkeys((ir.RowsOfSegments, ir.Chosen, ir.DistinctRow), _Rules.numbers_of_rows),
    **dict.fromkeys((ir.EqualRuns, ir.Rounds, ir.EachItem), _Rules.by_arithmetic),
    ir.Order: _Rules.order, ir.Aten: _Rules.call,
}  # fmt: skip
"""Kind of node -> what its integers number. Nodes between ranks have none: a program that has them is divided."""
