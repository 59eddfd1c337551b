"""The rows that a rank has of each value of a program over the parts of a graph: a rule for each kind of node.

Whose rows a value has, and what its integers number, follow from the node and from what the rank has of its operands.
A call of PyTorch answers by its row of `core/calls`. A node whose numbers would not be those of the whole graph is
refused, and so is one without a rule. Each refusal names the user's line, and says what to do instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from graphweave.analysis.cones import map_type, row_space
from graphweave.analysis.linear import is_linear
from graphweave.analysis.maps import COUNTED, REARRANGED, SAME_ROWS, elements, source_of
from graphweave.analysis.ownership import (
    HaloRows,
    Held,
    NumberedSegments,
    Numbers,
    Owned,
    OwnedRows,
    PairOfNumbers,
    Refusal,
    Sharding,
    Whose,
    WhyRefused,
    sharded_spaces,
)
from graphweave.analysis.row_orders import mixed_orders
from graphweave.core.calls import ByRank, CallFacts, Elements, Lead, facts_of
from graphweave.core.sizes import Size, leaves, product
from graphweave.core.types import UNIT, DType, Fold, Op, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.aten import argument
from graphweave.ir.message.builder import operands
from graphweave.ir.message.nodes import Program, Ref

_COMPARISONS = frozenset({Op.eq, Op.ne, Op.lt, Op.le, Op.gt, Op.ge})


def owned_rows(program: Program, sharding: Sharding) -> OwnedRows:
    """The rows that a rank has of each value of `program`; `refused` says why, if it cannot run over ranks."""
    return _Rules(program, sharding).owned()


class _Rules:
    """`symbols` are numbers of rows that differ from rank to rank. `copied` are spaces of pairs of which several ranks
    may have the same. `orders` says in which orders the rows of a space stand: that of a sort, or None. `layouts` says
    whether rows of a space are those of others one behind the other, or several for each row of another."""

    def __init__(self, program: Program, sharding: Sharding) -> None:
        self.program, self.shared, self.sizes = program, sharding.shared, dict(program.spaces)
        self.given = {name: PairOfNumbers(Numbers(src, True), Numbers(dst)) for name, src, dst in sharding.edges}
        self.sharded, self.symbols = sharded_spaces(program, sharding)
        self.values, self.refused = list[Owned](), list[Refusal]()
        self.leaving, self.copied, self.layouts = set[Ref](), set[Space](), dict[Space, set[bool]]()
        self.node_types, self.unions = dict[Space, str](), dict[Space, tuple[Space, ...]]()
        inputs = (n.type for n in program.nodes if isinstance(n, ir.Input))
        self.orders: dict[Space, set[Ref | None]] = {t.space: {None} for t in inputs if isinstance(t, ir.Type)}

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

    def _refuse(self, ref: Ref, reason: WhyRefused, *words: object) -> None:
        self.refused.append(Refusal(ref, reason, words))

    # -------------------------------------------------------- whose rows

    def _whose(self, ref: Ref, node: ir.Node) -> Whose:
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

    def _is_mine(self, ref: Ref) -> bool:
        return self.values[ref].whose is not Whose.all

    def _check_space(self, ref: Ref, node: ir.Node) -> None:
        space = row_space(self.program, ref)
        if space not in self.sharded:
            return
        if isinstance(node, ir.Input) and node.name in self.shared:
            self._refuse(ref, WhyRefused.parameter)
        if isinstance(node, ir.RunningSum):
            self._refuse(ref, WhyRefused.summed_in_order)
        if isinstance(size := self.sizes.get(space), int):
            self._refuse(ref, WhyRefused.compiled_in, size)

    def _is_partial(self, ref: Ref, node: ir.Node) -> bool:
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

    def without_rule(self, ref: Ref, node: ir.Node) -> Held:
        self._refuse(ref, WhyRefused.no_rule, type(node).__name__.lower())
        return None

    def no_numbers(self, ref: Ref, node: ir.Node) -> Held:
        return None

    def input(self, ref: Ref, node: ir.Input) -> Held:
        return self.given.get(node.name)

    def first_operand(self, ref: Ref, node: ir.Node) -> Held:
        return self._held(operands(node)[0])

    def pull(self, ref: Ref, node: ir.Pull) -> Held:
        held = self._held(node.x)
        if held is not None and node.map in self.leaving:
            self._refuse(ref, WhyRefused.numbers_of_others)
        return held

    def merge(self, ref: Ref, node: ir.Concat) -> Held:
        return self._merged(ref, map(self._held, node.xs))

    def join(self, ref: Ref, node: ir.Join) -> Held:
        if node.space in self.sharded and any(row_space(self.program, x) == UNIT for x in node.xs):
            self._refuse(ref, WhyRefused.shared_rows)
        self._lay_out(ref, behind=True)
        return self._merged(ref, map(self._held, node.xs))

    def reduce(self, ref: Ref, node: ir.Push | ir.Reduce) -> Held:
        if self._held(node.x) is not None:
            self._refuse(ref, WhyRefused.numbers_reduced)
        return None

    def compute(self, ref: Ref, node: ir.Node) -> Held:
        if any(self._held(r) is not None for r in operands(node)):
            kind = node.target if isinstance(node, ir.Aten) else type(node).__name__.lower()
            word = node.op.value if isinstance(node, ir.Pointwise) else kind
            self._refuse(ref, WhyRefused.numbers_computed, word)
        return None

    def pointwise(self, ref: Ref, node: ir.Pointwise) -> Held:
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

    def numbers_of_rows(self, ref: Ref, node: ir.RowsOfSegments | ir.Chosen | ir.DistinctRow) -> Held:
        return Numbers() if self._on_sharded(ref) else None

    def order(self, ref: Ref, node: ir.Order) -> Held:
        if not self._on_sharded(ref):
            return None
        if not all(map(self._is_integral, node.keys)):
            self._refuse(ref, WhyRefused.sorted_by_rank)
        self._stand_in(ref, row_space(self.program, ref), ref)
        return Numbers()

    def equal_runs(self, ref: Ref, node: ir.EqualRuns) -> Held:
        if not self.sharded.isdisjoint((node.of, node.space)):
            self._refuse(ref, WhyRefused.equal_runs)
        return None

    def reorder(self, ref: Ref, node: ir.Places | ir.Inverse | ir.Reordered) -> Held:
        if self._on_sharded(ref):
            self._refuse(ref, WhyRefused.reordered)
        return self._held(node.x) if isinstance(node, ir.Reordered) else None

    def distinct(self, ref: Ref, node: ir.Distinct) -> Held:
        """Several ranks may have the same row if none of its keys numbers a row that belongs to one rank alone."""
        own = any(isinstance(h, Numbers) and not h.leaves for h in map(self._held, node.keys))
        if node.space in self.sharded and not own:
            self.copied.add(node.space)
        return None

    def distinct_key(self, ref: Ref, node: ir.DistinctKey) -> Held:
        return self._held(operands(self.program.nodes[node.distinct])[node.at])

    def join_indices(self, ref: Ref, node: ir.JoinIndices) -> Held:
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

    def map_of(self, ref: Ref, node: ir.MapOf) -> Held:
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

    def _lead_to_others(self, ref: Ref, cod: Space, held: Numbers) -> None:
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

    def _counts_others(self, index: Ref, cod: Space) -> bool:
        """Whether the index counts other rows than all those of `cod`, such as all but the first or the last one."""
        source = source_of(self.program.nodes, index)
        counts, space = self.program.nodes[source], row_space(self.program, source)
        found = elements(self.program.nodes, source)
        if found not in COUNTED or not isinstance(counts, ir.Aten):
            return False
        known, rows = self.sizes.get(space), self.sizes.get(cod)
        others = known is not None and rows is not None and known != rows
        return others or (found is Elements.counted and counts.args[0] != 0)

    # -------------------------------------------------------- rules: calls of PyTorch

    def call(self, ref: Ref, node: ir.Aten) -> Held:
        known, held = facts_of(node.target), [self._held(r) for r in operands(node)]
        self._check_call(ref, node, known)
        if node.target == "builtin.getitem":
            return self._item(ref, node, held[0])
        if known.elements is Elements.positions and not known.of_data:
            self._sort(ref, ref)
        if known.elements in (Elements.positions, *COUNTED):
            if known.of_data:
                self.compute(ref, node)
            # the space of a row number that leads nowhere is not known; without an operand it counts shared rows
            on_type = isinstance(self.program.types[ref], ir.Type)
            return Numbers() if not on_type or self._on_sharded(ref) else None
        if known.by_rank is None or known.elements is Elements.sizes:
            if any(row_space(self.program, r) in self.copied for r in operands(node)):
                self._refuse(ref, WhyRefused.copied)
            return None
        if known.elements in SAME_ROWS or known.rows is Lead.parts or len(known.results) > 1:
            return next((h for h in held if h is not None), None)
        if known.elements not in REARRANGED:
            return self.compute(ref, node)
        return self._rearranged(ref, node, known, held[:1] if known.moves_rows else held)

    def _item(self, ref: Ref, node: ir.Aten, held: Held) -> Held:
        """Finds what an item of a call with several results holds, if the call's value holds `held`."""
        source, item = self.program.nodes[at := operands(node)[0]], node.args[1]
        if not isinstance(source, ir.Aten):
            return held
        known = facts_of(source.target)
        if known.by_rank is not None and len(known.results) > 1 and isinstance(item, int):
            if Elements.positions in known.results:
                self._sort(ref, at)
            return held if known.results[item] in REARRANGED else Numbers()
        if known.rows is Lead.parts and isinstance(held, PairOfNumbers):
            of_one = len(self._shape(ref)) == 1
            return (held.first if item == 0 else held.second) if of_one else self._merged(ref, [held])
        return held

    def _rearranged(self, ref: Ref, node: ir.Aten, known: CallFacts, chosen: list[Held]) -> Held:
        """Finds what moved elements hold. A pair of indices stays one if its columns are chosen or joined."""
        pair, dims = chosen[0], self._dims(node, known)
        if isinstance(pair, PairOfNumbers) and dims == (0,):
            if known.rows is Lead.taken:
                return pair.first if node.args[2] in (0, -2) else pair.second
            if known.rows is Lead.along and isinstance(node.args[1], tuple):  # a flip
                return PairOfNumbers(pair.second, pair.first)
        if dims == (1,) and (known.index is not None or known.rows in (Lead.joined, Lead.along)):
            pairs = [h if isinstance(h, PairOfNumbers) else PairOfNumbers(h, h) for h in chosen]
            return PairOfNumbers(
                self._merged(ref, [p.first for p in pairs]), self._merged(ref, [p.second for p in pairs])
            )
        if known.rows is Lead.stacked and len(chosen) == 2 and dims == (0,):
            return PairOfNumbers(*(self._merged(ref, [h]) for h in chosen))
        return self._merged(ref, chosen)

    def _check_call(self, ref: Ref, node: ir.Aten, known: CallFacts) -> None:
        """Refuses a call on rows that a rank has of its own, unless it is known to do the same to each row."""
        used = [r for r in operands(node) if self._is_mine(r)]
        alike = node.target.startswith("builtin.") or known.by_rank is ByRank.each
        if alike or not (used or self._on_sharded(ref)):
            return
        if known.by_rank is ByRank.integers and self._is_integral(ref) and all(map(self._is_integral, used)):
            self._check_places(ref, node, known)
        elif not (node.serial and not used and row_space(self.program, ref) == UNIT):
            self._refuse(ref, WhyRefused.left_to_pytorch, node.target)

    def _check_places(self, ref: Ref, node: ir.Aten, known: CallFacts) -> None:
        """Refuses a call on integers that tells rows apart by their place, or reads rows of others."""
        used, dims = operands(node), self._dims(node, known)
        if known.index is not None:
            by = [h for r in used[1:] if isinstance(h := self._held(r), Numbers)]
            if any(h.leaves for h in by):
                self._refuse(ref, WhyRefused.numbers_of_others)
            elif by and not self._is_mine(used[0]):
                self._refuse(ref, WhyRefused.shared_data)
        elif known.rows is Lead.joined:
            along = [self._is_divided(r, dims) for r in used]
            if any(along) and not all(found or self._is_mine(r) for r, found in zip(used, along, strict=True)):
                self._refuse(ref, WhyRefused.shared_rows)
            if any(along):
                self._lay_out(ref, behind=True)
        elif known.elements is Elements.reshaped:
            old, new = self._shape(used[0]), self._shape(ref)
            if self._cuts_rows(ref, used[0]):
                self._refuse(ref, WhyRefused.by_place)
            elif len(new) < len(old) and new[:1] != () and new[0] not in old:
                self._lay_out(ref, behind=not self._is_divided(used[0], (0,)))
        elif known.rows in (Lead.along, Lead.taken, Lead.parts) and self._is_divided(used[0], dims):
            self._refuse(ref, WhyRefused.by_place)

    def _lay_out(self, ref: Ref, *, behind: bool) -> None:
        """Notes that rows of several kinds are one behind the other, or that those of one row follow each other. Rows
        of both kinds do not fit, since a rank has others at the same place than the whole graph."""
        space = row_space(self.program, ref)
        layouts = self.layouts.setdefault(space, set())
        layouts.add(behind)
        if space in self.sharded and len(layouts) > 1:
            self._refuse(ref, WhyRefused.by_place)

    def _sort(self, ref: Ref, call: Ref) -> None:
        """Notes that rows stand in the order of a sort."""
        node = self.program.nodes[call]
        assert isinstance(node, ir.Aten)
        if self._is_divided(operands(node)[0], self._dims(node, facts_of(node.target))):
            self._stand_in(ref, row_space(self.program, ref), call)

    def _stand_in(self, ref: Ref, space: Space, order: Ref | None) -> None:
        """Notes an order of the rows of a space. Rows in two orders do not fit, since each rank sorts its own."""
        orders = self.orders.setdefault(space, set())
        orders.add(order)
        if space in self.sharded and len(orders) > 1:
            self._refuse(ref, WhyRefused.two_orders)

    def _dims(self, node: ir.Aten, known: CallFacts) -> tuple[int, ...]:
        """The dims along which a call works, counted from the front."""
        if known.index is not None and known.index.listed:
            said: Any = node.args[known.index.at]
            return tuple(i for i, index in enumerate(said) if index is not None)
        if known.index is not None:
            said = 0 if known.index.dim is None else node.args[known.index.dim]
        else:
            said = argument(node, known.dim, known.default)
        count = len(self._shape(operands(node)[0])) + (known.rows in (Lead.stacked, Lead.widened))
        return tuple(d % max(count, 1) for d in (said if isinstance(said, tuple) else (said,)) if isinstance(d, int))

    # -------------------------------------------------------- what rules ask

    def _held(self, ref: Ref) -> Held:
        return self.values[ref].numbers

    def _merged(self, ref: Ref, held: Iterable[Held]) -> Numbers | None:
        """Finds what a value holds if its elements come from several values."""
        flat: list[Numbers] = []
        for h in held:
            flat += [n for n in ((h.first, h.second) if isinstance(h, PairOfNumbers) else (h,)) if n is not None]
        if not flat:
            return None
        types = {n.node_type for n in flat if n.node_type is not None}
        leaves = any(n.leaves for n in flat)
        segments = {n.segments for n in flat}
        if segments != {None}:
            if len(segments) > 1:
                self._refuse(ref, WhyRefused.joined_with_others)
            return Numbers(None, leaves, next(s for s in segments if s is not None))
        if leaves and len(types) > 1:
            self._refuse(ref, WhyRefused.several_types, len(types), ", ".join(sorted(types)))
        return Numbers(types.pop() if len(types) == 1 else None, leaves)

    def _integral(self, ref: Ref, held: Held) -> Held:
        """Finds what a value of integers holds; numbers of rows may not become anything else."""
        t = self.program.types[ref]
        if held is None or not isinstance(t, ir.Type | ir.AnyType) or t.dtype is None:
            return held
        if t.dtype.is_float or t.dtype is DType.bool:
            self._refuse(ref, WhyRefused.numbers_become, "floats" if t.dtype.is_float else "truth values")
            return None
        return held

    def _is_integral(self, ref: Ref) -> bool:
        t = self.program.types[ref]
        if isinstance(t, ir.AnyType) and t.items is not None:
            return all(i.dtype is not None and not i.dtype.is_float for i in t.items)
        return isinstance(t, ir.Type | ir.AnyType) and t.dtype is not None and not t.dtype.is_float

    def _is_divided(self, ref: Ref, dims: tuple[int, ...]) -> bool:
        """Whether one of `dims` of a tensor counts rows of which each rank has its own."""
        t, sizes = self.program.types[ref], self._shape(ref)
        if isinstance(t, ir.Type):
            return t.space in self.sharded and 0 in dims
        return any(d < len(sizes) and not self.symbols.isdisjoint(leaves(sizes[d])) for d in dims)

    def _cuts_rows(self, ref: Ref, x: Ref) -> bool:
        """Whether a view in row-major order takes several rows for one: it has no dim of the rows, alone or with dims
        next to them."""
        if row_space(self.program, ref) == row_space(self.program, x) != UNIT:
            return False
        old, new = self._shape(x), self._shape(ref)
        divided = [d for d in range(len(old)) if self._is_divided(x, (d,))]
        runs = (
            {product(*(n for n in old[i:j] if n is not None)) for i in range(d + 1) for j in range(d + 1, len(old) + 1)}
            for d in divided
        )
        return any(run.isdisjoint(new) for run in runs)

    def _on_sharded(self, ref: Ref) -> bool:
        return row_space(self.program, ref) in self.sharded

    def _shape(self, ref: Ref) -> tuple[Size | None, ...]:
        """The sizes of a tensor, its number of rows among them."""
        match self.program.types[ref]:
            case ir.Type(space, shape):
                return shape if space == UNIT else (self.sizes.get(space), *shape)
            case ir.AnyType(dims=dims):
                return dims or ()
            case _:
                return ()


Rule = Callable[[_Rules, Ref, Any], Held]

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
    ir.Order: _Rules.order, ir.EqualRuns: _Rules.equal_runs, ir.Aten: _Rules.call,
}  # fmt: skip
"""Kind of node -> what its integers number. Nodes between ranks have none: a program that has them is divided."""
