"""Batches of neighbours, hop by hop, over one relation or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.core.ranges import range_error
from graphweave.graph.relation import CanonicalEtype
from graphweave.runtime.threads import num_threads
from graphweave.sampling.adjacency import Adjacency, checked_times
from graphweave.sampling.native import RawChoice, RawRows, address, library
from graphweave.sampling.node_table import NodeTable

Strategy = Literal["uniform", "last"]


class HopEdges(NamedTuple):
    """Edges that one hop drew of one relation, each int64 [edges], grouped by destination in rising order."""

    src: Tensor
    """The number of the source within the batch, among the nodes of its type."""
    dst: Tensor
    """The number of the destination within the batch."""
    edge: Tensor
    """The number of the edge in the graph."""


@dataclass(frozen=True, eq=False)
class NeighborBatch:
    """The nodes and edges that a batch of seeds reaches. Nodes are numbered by type: the seeds as they were given, then
    the nodes of each hop in the order in which its edges name them first."""

    nodes: dict[str, list[Tensor]]
    """Type -> int64 [found] for the seeds and for each hop: their numbers in the graph."""
    trees: dict[str, list[Tensor]] | None
    """Grouped like `nodes`: the seed from which each node was reached, if trees are disjoint."""
    edges: dict[CanonicalEtype, list[HopEdges]]
    """Relation -> the edges of each hop."""


@dataclass(frozen=True, eq=False)
class HopSampler:
    """Draws the neighbours of seeds, of their neighbours, and so on. One batch is a function of `seed` and of the
    arguments of `sample` alone, whatever the number of threads.

    Each node that hop l - 1 found draws, of each relation that ends at its type, `fanouts[relation][l]` of its incoming
    edges: all of them if that is -1. Without `replace`, an edge is drawn at most once for a node, every set of edges
    is equally likely, and a node with fewer edges draws all; with it, draws are independent, and a node with an edge
    draws the whole fanout. Nodes without edges draw none. Weighted relations draw an edge with a probability
    proportional to its weight; without `replace`, this holds for each draw among the edges left. Edges of weight 0 are
    never drawn.

    With `disjoint`, each seed has a tree of its own. With times, a tree contains no edge and no source that is later
    than the time of its seed; strategy "last" then takes the latest edges instead of random ones.
    """

    relations: Mapping[CanonicalEtype, Adjacency]
    num_nodes: Mapping[str, int]
    fanouts: Mapping[CanonicalEtype, Sequence[int]]
    seed: int
    replace: bool = False
    disjoint: bool = False
    strategy: Strategy = "uniform"
    repeat: bool = False
    """Whether each hop draws for all nodes found so far, not only for those of the hop before."""
    by_node: bool = False
    """Whether a draw is a function of `seed`, the epoch, the batch's number, the hop and the node alone. With `repeat`,
    parts of a batch then draw what the whole batch draws. It is not for disjoint trees, which would draw alike."""

    @property
    def num_hops(self) -> int:
        return max((len(fanout) for fanout in self.fanouts.values()), default=0)

    @property
    def timed(self) -> bool:
        """Whether edges or nodes have times."""
        return any(a.edge_times is not None or a.node_times is not None for a in self.relations.values())

    def sample(
        self,
        seeds: Mapping[str, Tensor],
        times: Mapping[str, Tensor] | None,
        epoch: int,
        excluded: Mapping[CanonicalEtype, Tensor] | None = None,
        batch_number: int = 0,
    ) -> NeighborBatch:
        """The batch of `seeds`, type -> node numbers [k]; `times`: type -> the time of each seed, for timed relations.
        `excluded`: relation -> positions in its `Adjacency`, int64 in rising order, each once, that are not drawn.
        `batch_number`: that of the batch within its epoch, for draws `by_node`.

        DataError for seeds that are no integers, and for missing times; IndexRangeError for a seed out of range.
        """
        given = {t: checked_nodes(nodes, self.num_nodes[t], f"seeds of type {t!r}") for t, nodes in seeds.items()}
        disjoint = self.disjoint or self.timed
        limits = self._times(given, times)
        of_batch = [*given.values(), *([] if limits is None else [limits])]
        if self.by_node:
            of_batch = [torch.tensor([batch_number], device="cpu")]
        key = batch_key(self.seed, epoch, of_batch)
        tables = self._tables(given, disjoint)
        edges: dict[CanonicalEtype, list[HopEdges]] = {relation: [] for relation in self.relations}
        for hop in range(self.num_hops):
            fronts = {t: table.all() if self.repeat else table.last() for t, table in tables.items()}
            begins = {t: table.count - fronts[t][0].numel() for t, table in tables.items()}
            for table in tables.values():
                table.next_hop()
            for number, (relation, graph) in enumerate(self.relations.items()):
                rows, trees = fronts[relation[2]]
                choice = self._choice(key, hop, number, self.fanouts[relation][hop])
                row_times = limits[trees] if limits is not None and trees is not None else None
                without = (excluded or {}).get(relation)
                drawn = draw(graph, rows, row_times, choice, begins[relation[2]], without)
                drawn_by = drawn.dst if trees is None else drawn.dst - begins[relation[2]]
                local = tables[relation[0]].number(drawn.src, drawn_by, trees)
                edges[relation].append(HopEdges(local, drawn.dst, drawn.edge))
        found = {t: table.chunks for t, table in tables.items()}
        trees_of = {t: table.tree_chunks for t, table in tables.items() if table.tree_chunks is not None}
        return NeighborBatch(found, trees_of if disjoint else None, edges)

    def _times(self, seeds: Mapping[str, Tensor], times: Mapping[str, Tensor] | None) -> Tensor | None:
        """int64 [seeds of all types]: the time of each tree."""
        if not self.timed:
            return None
        if times is None or (missing := seeds.keys() - times.keys()):
            of = ", ".join(sorted(missing)) if times else "any type"
            raise DataError(f"edges have times, but seeds of {of} have none. Give the time of each seed (input_time).")
        return torch.cat(
            [checked_times(times[t], nodes.numel(), "times of seeds", "seeds") for t, nodes in seeds.items()]
        )

    def _tables(self, seeds: Mapping[str, Tensor], disjoint: bool) -> dict[str, NodeTable]:
        num_trees = sum(nodes.numel() for nodes in seeds.values())
        none = torch.empty(0, dtype=torch.int64, device="cpu")
        trees = dict(
            zip(
                seeds,
                torch.arange(num_trees, device="cpu").split([nodes.numel() for nodes in seeds.values()]),
                strict=True,
            )
        )
        return {
            t: NodeTable(count, seeds.get(t, none), trees.get(t, none) if disjoint else None, num_trees)
            for t, count in self.num_nodes.items()
        }

    def _choice(self, key: int, hop: int, number: int, fanout: int) -> RawChoice:
        latest = self.strategy == "last" and self.timed
        return RawChoice(fanout, fold_numbers(key, [hop, number]), self.replace, latest, self.by_node)


def hop_sampler(
    relations: Mapping[CanonicalEtype, Adjacency],
    num_nodes: Mapping[str, int],
    fanouts: Mapping[CanonicalEtype, Sequence[int]],
    seed: int,
    **options: Any,
) -> HopSampler:
    """A `HopSampler` of checked arguments, whose native library is compiled. DataError for what cannot be sampled."""
    checked_seed(seed)
    if options.get("strategy", "uniform") not in ("uniform", "last"):
        raise DataError(f"expected strategy 'uniform' or 'last' (got {options['strategy']!r}). Pass one of these.")
    if missing := relations.keys() - fanouts.keys():
        raise DataError(f"relations {', '.join(map(str, sorted(missing)))} have no fanouts. Give some for each.")
    lengths = {relation: len(checked_fanouts(fanouts[relation], str(relation))) for relation in relations}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{relation}: {length}" for relation, length in lengths.items())
        raise DataError(f"expected fanouts of equal length for all relations (got {listed}). Give one for each hop.")
    library()
    checked = {relation: tuple(fanouts[relation]) for relation in relations}
    return HopSampler(dict(relations), dict(num_nodes), checked, seed, **options)


def checked_seed(seed: object) -> int:
    """`seed`; DataError if it is no integer of 64 bits."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not -(1 << 63) <= seed < 1 << 63:
        raise DataError(f"seed must be an integer of 64 bits (got {seed!r}). Pass such a number.")
    return seed


def checked_fanouts(fanouts: Any, what: str) -> tuple[int, ...]:
    """`fanouts` as integers >= -1 of 64 bits, one for each hop. DataError for anything else, and for no hop."""
    whole = isinstance(fanouts, (list, tuple)) and all(isinstance(k, int) and not isinstance(k, bool) for k in fanouts)
    if not whole or not fanouts or min(fanouts) < -1 or max(fanouts) >= 1 << 63:
        raise DataError(
            f"{what}: expected a list of fanouts, one integer of 64 bits for each hop (got {fanouts!r})."
            " Pass for example [10, 5]; -1 takes all neighbours."
        )
    return tuple(fanouts)


def fold_numbers(key: int, numbers: Sequence[int] | Tensor) -> int:
    """A key that depends on `key` and on all `numbers`, each of 64 bits, in their order. DataError for larger ones."""
    try:
        values = torch.as_tensor(numbers, dtype=torch.int64).contiguous()
    except (RuntimeError, ValueError, OverflowError, TypeError) as error:
        raise DataError(
            f"epochs and numbers of batches must be integers of 64 bits (got {numbers!r}). Pass such numbers."
        ) from error
    return int(library().gw_sample_key(key, address(values), values.numel()))


def batch_key(seed: int, epoch: int, tensors: Sequence[Tensor]) -> int:
    """The key of a batch's random numbers: it depends on the seed, the epoch and all numbers in int64 `tensors`."""
    return fold_numbers(fold_numbers(seed, [epoch]), torch.cat([t.reshape(-1) for t in tensors]) if tensors else [])


def allocated(*shape: int, what: str, do: str) -> Tensor:
    """int64 `shape`, undefined. DataError where there is no memory for it; `what` says what needs it, and `do` what to
    pass instead."""
    try:
        if min(shape) >= 0:
            return torch.empty(shape, dtype=torch.int64, device="cpu")
    except (
        RuntimeError,
        ValueError,
        TypeError,
        OverflowError,
    ):  # no memory, or too many bytes
        pass
    raise DataError(f"{what}, for which there is no memory. Pass {do}.")


def checked_nodes(nodes: object, num_nodes: int, what: str) -> Tensor:
    """Node numbers as int64 [k] on the CPU. DataError for none and for other dtypes and shapes, IndexRangeError for a
    number out of range."""
    found = torch.as_tensor(nodes)
    if found.numel() == 0:
        raise DataError(f"{what}: expected one at least (got none). Pass the nodes from which sampling starts.")
    if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool or found.dim() != 1:
        raise DataError(
            f"{what} must be integers of shape [k] (got {found.dtype} {list(found.shape)})."
            " Pass mask.nonzero().view(-1) in place of a mask."
        )
    found = found.to("cpu", torch.int64).contiguous()
    low, high = (int(x) for x in torch.aminmax(found))
    if low < 0 or high >= num_nodes:
        raise range_error(found, num_nodes, what=what, of="nodes", do="Correct it.")
    return found


def draw(
    graph: Adjacency,
    rows: Tensor,
    times: Tensor | None,
    choice: RawChoice,
    first: int,
    excluded: Tensor | None = None,
) -> HopEdges:
    """The edges that `rows` draw; `src` holds the numbers of sources in the graph, `dst` those of rows from `first`.
    `excluded`: int64 positions in rising order, each once, that are not drawn."""
    raw, raw_rows = graph.raw(excluded), RawRows(address(rows), address(times), rows.numel())
    offsets = torch.empty(rows.numel() + 1, dtype=torch.int64, device="cpu")
    threads = num_threads()
    total = library().gw_sample_count(raw, raw_rows, choice, address(offsets), threads)
    drawn = "2^63 edges or more" if total < 0 else f"{total} edges"
    src, dst, edge = allocated(
        3, total, what=f"{rows.numel()} nodes that draw {choice.fanout} edges each draw {drawn}", do="smaller fanouts"
    )
    outputs = map(address, (src, edge, dst))
    library().gw_sample_fill(raw, raw_rows, choice, address(offsets), first, *outputs, threads)
    return HopEdges(src, dst, edge)
