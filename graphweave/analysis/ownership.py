"""Whose rows a rank has of each value of a program: words for it, and which spaces are divided among the ranks.

A program over the parts of a graph is one program for all ranks (as in GSPMD, Xu et al., "GSPMD: General and Scalable
Parallelization for ML Computation Graphs"). Its spaces are of two kinds. Of a *sharded* space each rank has some of the
rows: nodes, edges, and what is chosen from these. Of a *replicated* one all ranks have all rows: shared data, types.

A sharded space whose halo rows are read has a twin: own rows, then halo rows. The twin of a union of such spaces is the
union of their twins. Own rows have the same numbers in a space and in its twin, but for unions, whose later segments
begin elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from graphweave.analysis.cones import row_space
from graphweave.analysis.flow import reached
from graphweave.analysis.maps import is_position
from graphweave.core.errors import ShardError
from graphweave.core.ranks import LinkName
from graphweave.core.sizes import Size, leaves
from graphweave.core.types import UNIT, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands


@dataclass(frozen=True, slots=True)
class Sharding:
    """Facts that a program knows of its part. `edges` are names of inputs that are a part's `edge_index`, each with the
    node types of sources and destinations. `halo` has the number of halo rows of each node type on this rank,
    `mean_halo` the mean over the ranks, from which all make their choices. `shared` are names of inputs that all ranks
    have (parameters, buffers). `group` names the ranks (`core/ranks.py`). With `stale`, the forward uses halo rows of
    the last step."""

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


# ---------------------------------------------------------------- what a rank has of a value


class Whose(Enum):
    """Which rows of a value a rank has; of a map, which rows it leads to."""

    all = "all"
    """All of them, which are the same on every rank."""
    mine = "mine"
    """The rank's own rows."""
    halo = "halo"
    """Own rows and halo rows, to which a map may lead."""
    partial = "partial"
    """Own rows of which other ranks may have some, too, each with a summand of the value."""


@dataclass(frozen=True, slots=True)
class NumberedSegments:
    """The spaces of a union, and the node type of each whose rows of other ranks are named."""

    of: tuple[Space, ...]
    node_types: tuple[tuple[Space, str], ...]


@dataclass(frozen=True, slots=True)
class Numbers:
    """The value holds numbers of a rank's own rows, or with `leaves` of own and halo rows; of nodes of a type, of the
    rows of several types one after the other (`segments`), or of other rows.

    To take numbers for ones that leave is never wrong, since own rows have the same numbers in both numberings; it only
    costs an exchange.
    """

    node_type: str | None = None
    leaves: bool = False
    segments: NumberedSegments | None = None


@dataclass(frozen=True, slots=True)
class PairOfNumbers:
    """A tensor [2, n] of two indices, as `edge_index` is."""

    first: Numbers | None
    second: Numbers | None


Held: TypeAlias = Numbers | PairOfNumbers | None


@dataclass(frozen=True, slots=True)
class Owned:
    """The rows of one value that a rank has, and what they number if they are integers. Of a map, `numbers` are
    those of its index."""

    whose: Whose
    numbers: Held = None


@dataclass(frozen=True, slots=True)
class HaloRows:
    """`leaving` are the maps that lead to rows of other ranks, `node_types` the spaces that have such rows, each with
    the type of these nodes, and `unions` the spaces of several types one after the other, each with its segments."""

    leaving: frozenset[ir.Ref] = frozenset()
    node_types: Mapping[Space, str] = field(default_factory=dict)
    unions: Mapping[Space, tuple[Space, ...]] = field(default_factory=dict)

    def of(self, space: Space) -> tuple[str, ...]:
        """The node types whose halo rows follow the own rows of `space`, once for each segment that has them."""
        found = (self.node_types.get(s) for s in self.unions.get(space, (space,)))
        return tuple(t for t in found if t is not None)

    def twin(self, space: Space) -> Space:
        """The space of own and halo rows; `space` itself if no halo rows of it are read."""
        return Space(f"{space.name}_all") if space in self.unions or space in self.node_types else space


def halo_of(space: Space) -> Space:
    """The space of a rank's halo rows of `space`."""
    return Space(f"{space.name}_halo")


class WhyRefused(Enum):
    """Why the numbers of a node would not be those of the whole graph, and what a user may do instead."""

    # fmt: off
    parameter = ("a parameter has a row for each node or edge, of which a rank has only its own",
                 "Pass it as an argument with the rank's own rows.")
    compiled_in = ("the {} rows of a tensor were compiled in, which differ from rank to rank",
                   "Do not compile the number of nodes in (mark_static, assertions on sizes).")
    partial_used = ("a sum for each pair of a row and a type is used, of which a rank has only a part",
                    "Leave out compact (options).")
    partial_given = ("a sum for each pair of a row and a type is a result", "Leave out compact (options).")
    copied = ("several ranks may have the same of the rows that are told apart",
              "Tell rows apart by numbers of the rank's own rows, or outside of the model.")
    no_rule = ("no rule says whose rows '{}' makes", "Write it with other operations, or call it outside of the model.")
    left_to_pytorch = ("{} is left to PyTorch, which sees only the rows of one rank",
                       "Write it with operations on rows, or call it outside of the model.")
    numbers_reduced = ("numbers of rows are reduced, but each rank numbers its rows itself",
                       "Pass the number of nodes, or compute it from the features (x.shape[0]).")
    numbers_computed = ("numbers of rows are computed with ({}), but each rank numbers its rows itself",
                        "Compute the index from the whole graph before it is divided.")
    numbers_become = ("numbers of rows become {}, which differ from those of the whole graph",
                      "Pass what is known of each node as an argument.")
    numbers_of_others = ("numbers of rows are read from rows of other ranks, where they number others",
                         "Compose the indices on the whole graph, and pass the result as edges of a type of their own.")
    number_among_rows = ("a number that is the same on each rank stands among numbers of rows, which are not",
                         "Leave out rows by a mask instead.")
    compared_with_none = ("a number of a row is compared with a number that is none",
                          "A mask with a value for each own row says the same on every rank.")
    compared_by_size = ("numbers of rows are compared by size, but each rank numbers its rows itself",
                        "Pass a mask with a value for each of the part's edges.")
    compared_by_type = ("numbers of nodes of {!r} are compared with those of {!r}",
                        "Pass a mask with a value for each of the part's edges.")
    shared_data = ("numbers of a rank's rows choose rows of shared data",
                   "Pass the rows themselves, those of the rank's own nodes.")
    shared_rows = ("rows that all ranks have are joined to a rank's own rows, so that each rank has them once more",
                   "Compute with them apart.")
    one_row = ("one row of a tensor is read, which lies on one rank", "Read it outside the model.")
    by_place = ("rows are chosen by their place among all rows, of which a rank has only its own",
                "Choose them by a mask, or pass them in that order.")
    equal_runs = ("rows are cut into runs of equal length, or repeated, while a rank has only some of them",
                  "Pass an index of the runs, or leave these rows out of the graph that is divided.")
    two_orders = ("rows that were sorted stand next to rows in another order, while each rank sorts its own",
                  "Bring all of them into the same order.")
    sorted_by_rank = ("rows are put into the order of what is computed for them, while a rank sees its own alone",
                      "Sort outside of the model.")
    summed_in_order = ("rows are added up in order, of which a rank has only its own",
                       "Add them up outside of the model.")
    reordered = ("rows are put into another order", "Leave out relabel: parts are ordered on disk.")
    joined_twice = ("indices of several node types are joined twice",
                    "Join the edges of all types in one call, or leave out merge (options).")
    same_rows = ("numbers of nodes of {!r} and of {!r} lead to the same rows",
                 "Add to each index the number of rows before those of its type.")
    two_ways = ("the rows of one tensor are those of several types in two ways", "Leave out merge (options).")
    two_types = ("rows of one tensor are numbered as nodes of {!r} and of {!r}",
                 "Pass the edges of each type with the tensors of its own node types.")
    nested = ("rows of several types are numbered as rows of one type", "Leave out merge (options).")
    joined_with_others = ("an index of the edges of several node types is joined with other numbers of rows",
                          "Join the edges of each type with such numbers first.")
    several_types = ("an index holds numbers of nodes of {} types ({})",
                     "Keep the edges of each type in an index of their own.")
    # fmt: on


@dataclass(frozen=True, slots=True)
class Refusal:
    """A node that must not run over ranks. `words` are those that its reason leaves open."""

    ref: ir.Ref
    reason: WhyRefused
    words: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class OwnedRows:
    """The rows that a rank has of each value of `program`. `sharded` are the spaces of which each rank has rows of its
    own, `values` stand next to the types of the program's nodes, and `halo` says which rows of other ranks are read."""

    program: ir.Program
    sharded: frozenset[Space]
    values: tuple[Owned, ...]
    halo: HaloRows
    refused: tuple[Refusal, ...]

    def check(self) -> None:
        """Raises the ShardError of the first node whose numbers would not be those of the whole graph."""
        for refusal in self.refused[:1]:
            (why, do), where = refusal.reason.value, self.program.locs[refusal.ref]
            line = f" ({where})" if where else ""
            raise ShardError(f"the model cannot run over parts: {why.format(*refusal.words)}{line}. {do}")


# ---------------------------------------------------------------- which spaces are sharded


def sharded_spaces(program: ir.Program, sharding: Sharding) -> tuple[frozenset[Space], frozenset[Size]]:
    """The spaces of which each rank has rows of its own, and the symbols of their numbers of rows.

    These are the spaces of the part's edges, of the user's tensors to which no index leads, the ends of edges, and what
    is made from or leads to them, or has a number of rows that is computed from theirs.
    """
    given = {name for name, *_ in sharding.edges}
    ends = _ends(program)
    begin: set[Space | Size] = set()
    leads: defaultdict[Space | Size, set[Space | Size]] = defaultdict(set)
    for space, size in program.spaces:
        for symbol in leaves(size):
            leads[space].add(symbol)
            leads[symbol].add(space)
    of_edges = set[ir.Ref]()  # computed from the indices of edges
    for ref, (node, t) in enumerate(zip(program.nodes, program.types, strict=True)):
        if isinstance(node, ir.Input):
            if node.name in given:
                of_edges.add(ref)
                begin.update(leaves(t.dims[1]) if isinstance(t, ir.AnyType) and t.dims else ())
            elif isinstance(t, ir.Type) and t.space not in ends and node.name not in sharding.shared:
                begin.add(t.space)
        elif _is_index_work(node, t) and not of_edges.isdisjoint(operands(node)):
            of_edges.add(ref)
            if isinstance(t, ir.Type):
                begin.add(t.space)
        for one, other in _sharded_with(program, ref, of_edges):
            leads[one].add(other)
    found = reached(begin - {UNIT}, lambda one: leads[one] - {UNIT})
    spaces = frozenset(one for one in found if isinstance(one, Space))
    return spaces, frozenset(one for one in found if not isinstance(one, Space))


def _ends(program: ir.Program) -> set[Space]:
    """The spaces to which an index leads. One that holds positions of rows, as those of a mask, chooses a rank's own
    rows like any value on them."""
    return {
        t.cod for node, t in zip(program.nodes, program.types, strict=True)
        if isinstance(t, ir.MapType) and not (isinstance(node, ir.MapOf) and is_position(program, node.index))
    }  # fmt: skip


def _is_index_work(node: ir.Node, t: ir.ValueType) -> bool:
    """Whether the node is integers made from integers, rows of which are rows of the result."""
    if isinstance(node, ir.MapOf | ir.Push | ir.Reduce | ir.AssertIndex) or not isinstance(t, ir.Type | ir.AnyType):
        return False
    return t.dtype is None or not t.dtype.is_float


def _sharded_with(program: ir.Program, ref: ir.Ref, of_edges: set[ir.Ref]) -> Iterator[tuple[Space, Space]]:
    """Pairs of spaces of which the second is sharded if the first is, because of one node."""
    node, t = program.nodes[ref], program.types[ref]
    match node:
        case ir.MapOf(index, cod):
            assert isinstance(t, ir.MapType)
            yield cod, t.dom
            if index in of_edges:
                yield t.dom, cod
        case ir.Distinct((x, *_), made) | ir.Inverse(x, made) | ir.Chosen(x, made):
            yield row_space(program, x), made
        case ir.Join(xs, union) | ir.JoinIndices(xs, space=union):
            yield from _segments(union, (row_space(program, x) for x in xs))
        case ir.RowsOfSegments(of, _, union) | ir.NumbersOfSegments(of, _, union):
            yield from _segments(union, of)
        case ir.Part(x, of):
            yield from _segments(row_space(program, x), of)
        case ir.Aten():
            for x in operands(node):
                yield row_space(program, x), row_space(program, ref)


def _segments(union: Space, of: Iterable[Space]) -> Iterator[tuple[Space, Space]]:
    for space in of:
        yield space, union
        yield union, space
