"""Which rows of a program each rank has of its own, and which indices name rows of other ranks.

A program over the parts of a graph is one program for all ranks (as in GSPMD, Xu et al., "GSPMD: General and Scalable
Parallelization for ML Computation Graphs"). Its spaces are of two kinds. Of a *sharded* space each rank has some of the
rows: nodes, edges, and what is chosen from these. Of a *replicated* one all ranks have all rows: shared data, types.

An index *leaves* if its numbers may name halo rows: the sources of a part's edges, and what is filtered, joined or
otherwise made from them. To take an index for one that leaves is never wrong, since own rows have the same numbers in
both numberings; it only costs an exchange.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from graphweave.analysis.calls_on_rows import POSITIONS, REARRANGED, SAME_ROWS, is_position, keeps_pairs, moved
from graphweave.analysis.cones import row_space
from graphweave.analysis.halo_rows import HaloRows, Held, NumberedSegments, Numbers, PairOfNumbers
from graphweave.analysis.partial_sums import check_partial
from graphweave.analysis.refused_rows import Refusals, refuse
from graphweave.core.calls import UNKNOWN, Lead, facts_of
from graphweave.core.ranks import LinkName
from graphweave.core.sizes import Size, leaves
from graphweave.core.types import UNIT, Op, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands
from graphweave.ir.message.nodes import Program, Ref


@dataclass(frozen=True, slots=True)
class Sharding:
    """What a program knows of its part. `edges` are names of inputs that are a part's `edge_index`, each with the node
    types of sources and destinations. `halo` has the number of halo rows of each node type on this rank, `mean_halo`
    the mean over the ranks, from which all make their choices. `shared` are names of inputs that all ranks have
    (parameters, buffers). `group` names the ranks (`core/ranks.py`). With `stale`, the forward uses halo rows
    of the last step."""

    group: str
    rank: int
    edges: tuple[tuple[str, str, str], ...]
    halo: tuple[tuple[str, int], ...]
    mean_halo: tuple[tuple[str, int], ...]
    shared: frozenset[str]
    stale: bool = False

    def link_to(self, node_type: str) -> LinkName:
        """The name of the link for rows of a node type."""
        return LinkName(self.group, node_type)


@dataclass(frozen=True, slots=True)
class OwnedRows:
    """`sharded` are the spaces of which each rank has rows of its own. `halo` says which maps and spaces have rows of
    other ranks, and `numbers` what integers number."""

    sharded: frozenset[Space]
    halo: HaloRows
    numbers: Mapping[Ref, Held]


def owned_rows(program: Program, sharding: Sharding) -> OwnedRows:
    """Whose rows are whose in `program`. Raises ShardError where its numbers would not be those of the whole graph."""
    return _Reader(program, sharding).read()


def halo_rows(program: Program, sharding: Sharding) -> HaloRows:
    """Which maps and spaces of `program` have rows of other ranks. Nothing is refused."""
    reader = _Reader(program, sharding, strict=False)
    reader.find_numbers()
    return reader.maps()


def numbers_held(program: Program, sharding: Sharding) -> Mapping[Ref, Held]:
    """What the integers of `program` number. Nothing is refused."""
    reader = _Reader(program, sharding, strict=False)
    reader.find_numbers()
    return reader.numbers


class _Reader:
    def __init__(self, program: Program, sharding: Sharding, *, strict: bool = True) -> None:
        self.strict = strict
        self.program, self.sharding = program, sharding
        self.given = {name: (src, dst) for name, src, dst in sharding.edges}
        self.numbers: dict[Ref, Held] = {}
        self.sharded: set[Space] = set()
        self.halo = HaloRows()
        self.outside: set[Ref] = set()  # divided tensors outside the algebra, such as pairs of indices

    def find_numbers(self) -> None:
        for ref in range(len(self.program.nodes)):
            self.numbers[ref] = self._numbers(ref)

    def read(self) -> OwnedRows:
        self._spread()
        self.find_numbers()
        self.halo = self.maps()
        check_partial(self.program, self._copied(), self._refuse)
        Refusals(self.program, self.sharded, self.outside, self.numbers, self.halo).check()
        return OwnedRows(frozenset(self.sharded), self.halo, self.numbers)

    # -------------------------------------------------------- which spaces are sharded

    def _spread(self) -> None:
        """Finds the sharded spaces: those of the part's edges, of the user's tensors that no index leads to, the ends
        of edges, and what is made from or leads to them."""
        nodes, types = self.program.nodes, self.program.types
        # rows that are chosen by their position, as a mask does, are a rank's own like those that nothing chooses
        ends = {
            t.cod for node, t in zip(nodes, types, strict=True)
            if isinstance(t, ir.MapType) and not (isinstance(node, ir.MapOf) and is_position(self.program, node.index))
        }  # fmt: skip
        of_edges = set[Ref]()  # computed from the indices of edges
        counted = set[Size]()  # numbers of edges
        for ref, node in enumerate(nodes):
            if isinstance(node, ir.Input):
                if node.name in self.given:
                    of_edges.add(ref)
                    dims = node.type.dims if isinstance(node.type, ir.AnyType) else None
                    counted.update(s for size in dims or () for s in leaves(size))
                elif (
                    isinstance(t := node.type, ir.Type)
                    and t.space not in ends
                    and node.name not in self.sharding.shared
                ):
                    self._add(t.space)
            elif self._is_index_work(ref) and not of_edges.isdisjoint(operands(node)):
                of_edges.add(ref)
                if isinstance(made := types[ref], ir.Type):
                    self._add(made.space)
        shared = {
            t.space for n in nodes if isinstance(n, ir.Input) and n.name in self.sharding.shared
            and isinstance(t := n.type, ir.Type)
        }  # fmt: skip
        before = -1
        while before != len(self.sharded):
            before = len(self.sharded)
            for ref in range(len(nodes)):
                self._spread_through(ref, of_edges)
            symbols = {
                s for space, size in self.program.spaces if space in self.sharded for s in leaves(size)
            } | counted
            for space, size in self.program.spaces:
                if not symbols.isdisjoint(leaves(size)):
                    self._add(space)
        for ref, node in enumerate(nodes):
            described = types[ref]
            if isinstance(described, ir.AnyType) and (described.dims is not None or described.items is not None):
                mine = isinstance(node, ir.Input) and node.name not in self.sharding.shared
                if mine or any(self._is_divided(r) for r in operands(node)):
                    self.outside.add(ref)
        for space in sorted(shared & self.sharded, key=lambda s: s.name):
            self._refuse(
                next(r for r, t in enumerate(types) if isinstance(t, ir.Type) and t.space == space),
                "a parameter has a row for each node or edge, of which a rank has only its own",
                "Pass it as an argument with the rank's own rows.",
            )
        for space, size in self.program.spaces:
            if space in self.sharded and isinstance(size, int):
                self._refuse(
                    next(r for r, t in enumerate(types) if isinstance(t, ir.Type) and t.space == space),
                    f"the {size} rows of a tensor were compiled in, which differ from rank to rank",
                    "Do not compile the number of nodes in (mark_static, assertions on sizes).",
                )

    def _spread_through(self, ref: Ref, of_edges: set[Ref]) -> None:
        node, t = self.program.nodes[ref], self.program.types[ref]
        if isinstance(t, ir.MapType) and isinstance(node, ir.MapOf):
            if t.cod in self.sharded and t.dom == UNIT:
                self._refuse(ref, "one row of a tensor is read, which lies on one rank", "Read it outside the model.")
            if t.cod in self.sharded:
                self._add(t.dom)
            elif node.index in of_edges and t.dom in self.sharded:
                self._add(t.cod)
        elif isinstance(node, ir.UniquePairs):
            if self._on_sharded(node.a):
                self._add(node.space)
        elif isinstance(node, ir.Join | ir.RowsOfSegments | ir.NumbersOfSegments | ir.JoinIndices | ir.Part):
            of = node.of if not isinstance(node, ir.Join) else tuple(row_space(self.program, x) for x in node.xs)
            union = row_space(self.program, node.x) if isinstance(node, ir.Part) else node.space
            if isinstance(node, ir.JoinIndices):
                of = tuple(row_space(self.program, x) for x in node.indices)
            if union in self.sharded or any(s in self.sharded for s in of):
                self._add(union)
                for space in of:
                    self._add(space)
        elif isinstance(node, ir.Aten) and isinstance(t, ir.Type) and t.space != UNIT:
            if any(self._on_sharded(r) for r in operands(node)):
                self._add(t.space)
        elif isinstance(node, ir.Inverse | ir.Chosen) and self._on_sharded(operands(node)[0]):
            self._add(node.space)

    def _add(self, space: Space) -> None:
        if space != UNIT:
            self.sharded.add(space)

    def _on_sharded(self, ref: Ref) -> bool:
        return row_space(self.program, ref) in self.sharded

    def _is_index_work(self, ref: Ref) -> bool:
        """Whether the node is integers made from integers, rows of which are rows of the result."""
        node, t = self.program.nodes[ref], self.program.types[ref]
        if isinstance(node, ir.MapOf | ir.Push | ir.Reduce | ir.AssertIndex) or not isinstance(t, ir.Type | ir.AnyType):
            return False
        return t.dtype is None or not t.dtype.is_float

    # -------------------------------------------------------- what integers number

    def _numbers(self, ref: Ref) -> Held:
        node, t = self.program.nodes[ref], self.program.types[ref]
        match node:
            case ir.Input(name):
                if name not in self.given:
                    return None
                src, dst = self.given[name]
                return PairOfNumbers(Numbers(src, leaves=True), Numbers(dst))
            case (
                ir.Pull(x)
                | ir.Reshape(x)
                | ir.Broadcast(x)
                | ir.Permute(x)
                | ir.Slice(x)
                | ir.Part(x)
                | ir.Cast(x)
                | ir.Reordered(x)
            ):
                return self._if_integral(ref, self.numbers[x])
            case (
                ir.After(x)
                | ir.LaidOut(x)
                | ir.Own(x)
                | ir.Kept(x)
                | ir.Exchange(x)
                | ir.ExchangeBack(x)
                | ir.AllReduce(x)
            ):
                return self.numbers[x]
            case ir.JoinIndices():
                return self._of_segments(ref, node)
            case ir.Join(xs):
                return self._merged(ref, [self.numbers[x] for x in xs])
            case ir.RowsOfSegments() | ir.Places() | ir.Inverse() | ir.Order() | ir.Chosen():
                return Numbers() if self._on_sharded(ref) else None
            case ir.PairIndex(pairs, part):
                made = self.program.nodes[pairs]
                assert isinstance(made, ir.UniquePairs)
                return Numbers() if part == "rows" else self.numbers[made.a if part == "a" else made.b]
            case ir.Pointwise(Op.where, (_, a, b)):
                return self._merged(ref, [self.numbers[a], self.numbers[b]])
            case ir.Aten():
                return self._of_call(ref, node)
            case _:
                del t
                return None

    def _if_integral(self, ref: Ref, held: Held) -> Held:
        t = self.program.types[ref]
        if held is None or not isinstance(t, ir.Type) or t.dtype.value == "bool":
            return None
        if t.dtype.is_float:
            self._refuse(
                ref, "numbers of rows become floats, which differ from those of the whole graph",
                "Pass what is known of each node as an argument.",
            )  # fmt: skip
        return held

    def _of_call(self, ref: Ref, node: ir.Aten) -> Held:
        known, held = facts_of(node.target), [self.numbers[r] for r in operands(node)]
        if node.target == "builtin.getitem":
            return self._of_item(ref, node, held[0])
        if known.rows is Lead.taken and isinstance(pair := held[0], PairOfNumbers) and node.args[1] == 0:
            return pair.first if node.args[2] in (0, -2) else pair.second
        if known.elements in POSITIONS:
            # the space of a row number that leads nowhere is not known; without an operand it counts shared rows
            t = self.program.types[ref]
            return Numbers() if not isinstance(t, ir.Type) or t.space in self.sharded else None
        if known.by_rank is None:
            return None
        if known.elements in SAME_ROWS or known.rows is Lead.parts or len(known.results) > 1:
            return next((h for h in held if h is not None), None)
        if known.elements not in REARRANGED:
            return None
        return self._of_rearranged(ref, node, [self.numbers[r] for r in moved(node)])

    def _of_item(self, ref: Ref, node: ir.Aten, held: Held) -> Held:
        """What an item of a call with several results holds, if the call's value holds `held`."""
        source = self.program.nodes[operands(node)[0]]
        known = facts_of(source.target) if isinstance(source, ir.Aten) else UNKNOWN
        item = node.args[1]
        if known.by_rank is not None and len(known.results) > 1 and isinstance(item, int):
            return held if known.results[item] in REARRANGED else Numbers()
        if known.rows is Lead.parts and isinstance(held, PairOfNumbers):
            of_one = _num_dims(self.program.types[ref]) == 1
            return (held.first if item == 0 else held.second) if of_one else self._merged(ref, [held])
        return held

    def _of_rearranged(self, ref: Ref, node: ir.Aten, chosen: list[Held]) -> Held:
        rows = facts_of(node.target).rows
        if isinstance(pair := chosen[0], PairOfNumbers) and rows is Lead.along and isinstance(node.args[1], tuple):
            return PairOfNumbers(pair.second, pair.first) if node.args[1] == (0,) else pair  # a flip
        if keeps_pairs(node):
            pairs = [h if isinstance(h, PairOfNumbers) else PairOfNumbers(h, h) for h in chosen]
            return PairOfNumbers(
                self._merged(ref, [p.first for p in pairs]), self._merged(ref, [p.second for p in pairs])
            )
        if rows is Lead.stacked and len(chosen) == 2 and node.args[1:] in ((), (0,)):
            first, second = (self._merged(ref, [h]) for h in chosen)
            return PairOfNumbers(first, second)
        return self._merged(ref, chosen)

    def _of_segments(self, ref: Ref, node: ir.JoinIndices) -> Numbers | None:
        """What numbers of rows of several spaces behind each other hold."""
        held = [self.numbers[x] for x in node.indices]
        if len(node.of) == 1 or not any(isinstance(h, Numbers) and h.leaves for h in held):
            return self._merged(ref, held)
        types: dict[Space, str] = {}
        for h, at in zip(held, node.at, strict=True):
            if not isinstance(h, Numbers) or not h.leaves:
                continue
            if h.node_type is None:
                self._refuse(
                    ref, "indices of several node types are joined twice",
                    "Join the edges of all types in one call, or leave out merge (options).",
                )  # fmt: skip
            elif types.setdefault(node.of[at], h.node_type) != h.node_type:
                self._refuse(
                    ref, f"numbers of nodes of {types[node.of[at]]!r} and of {h.node_type!r} lead to the same rows",
                    "Add to each index the number of rows before those of its type.",
                )  # fmt: skip
        named = tuple(sorted(types.items(), key=lambda item: item[0].name))
        return Numbers(None, True, NumberedSegments(node.of, named))

    def _merged(self, ref: Ref, held: Iterable[Held]) -> Numbers | None:
        """What a value holds whose elements are those of several."""
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
                self._refuse(
                    ref, "an index of the edges of several node types is joined with other numbers of rows",
                    "Join the edges of each type with such numbers first.",
                )  # fmt: skip
            return Numbers(None, leaves, next(s for s in segments if s is not None))
        if leaves and len(types) > 1:
            self._refuse(
                ref, f"an index holds numbers of nodes of {len(types)} types ({', '.join(sorted(types))})",
                "Keep the edges of each type in an index of their own.",
            )  # fmt: skip
        return Numbers(types.pop() if len(types) == 1 else None, leaves)

    # -------------------------------------------------------- maps

    def maps(self) -> HaloRows:
        of, unions, leaving = dict[Space, str](), dict[Space, tuple[Space, ...]](), set[Ref]()
        for ref, node in enumerate(self.program.nodes):
            if not isinstance(node, ir.MapOf):
                continue
            held = self.numbers[node.index]
            assert not isinstance(held, PairOfNumbers)
            if held is not None and node.cod not in self.sharded:
                self._refuse(
                    ref, "numbers of a rank's rows choose rows of shared data",
                    "Pass the rows themselves, those of the rank's own nodes.",
                )  # fmt: skip
            if held is None or not held.leaves or (held.node_type is None and held.segments is None):
                continue
            leaving.add(ref)
            if held.segments is not None and unions.setdefault(node.cod, held.segments.of) != held.segments.of:
                self._refuse(
                    ref, "the rows of one tensor are those of several types in two ways", "Leave out merge (options)."
                )
            named = ((node.cod, held.node_type),) if held.segments is None else held.segments.node_types
            for space, node_type in named:
                assert node_type is not None
                if of.setdefault(space, node_type) != node_type:
                    self._refuse(
                        ref, f"rows of one tensor are numbered as nodes of {of[space]!r} and of {node_type!r}",
                        "Pass the edges of each type with the tensors of its own node types.",
                    )  # fmt: skip
        if nested := sorted((s for s in unions if s in of or any(s in u for u in unions.values())), key=str):
            ref = next(r for r in leaving if isinstance(n := self.program.nodes[r], ir.MapOf) and n.cod in nested)
            self._refuse(ref, "rows of several types are numbered as rows of one type", "Leave out merge (options).")
        return HaloRows(frozenset(leaving), of, unions)

    def _copied(self) -> frozenset[Space]:
        """Spaces of pairs of which several ranks may have the same: none of the two ends belongs to one rank alone."""

        def of_one_rank(x: Ref) -> bool:
            held = self.numbers[x]
            return isinstance(held, Numbers) and not held.leaves

        return frozenset(
            n.space for n in self.program.nodes
            if isinstance(n, ir.UniquePairs) and n.space in self.sharded and not (of_one_rank(n.a) or of_one_rank(n.b))
        )  # fmt: skip

    def _is_divided(self, ref: Ref) -> bool:
        return ref in self.outside or self._on_sharded(ref)

    def _refuse(self, ref: Ref, why: str, do: str) -> None:
        if self.strict:
            refuse(self.program, ref, why, do)


def _num_dims(t: ir.ValueType) -> int:
    """The number of dims of a tensor, that of its rows among them."""
    if isinstance(t, ir.Type):
        return len(t.shape) + (t.space != UNIT)
    return len(t.dims) if isinstance(t, ir.AnyType) and t.dims is not None else 0
