"""Methods that decide which rank owns which node. All balance one weight (`weights_of`).

To add one, write a function like those below and name it in `METHODS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.distributed.graph_file import GraphFile, joined_pieces
from graphweave.distributed.spill import Buckets, sorted_rows
from graphweave.distributed.streaming import GreedyStream
from graphweave.sampling.partition import metis
from graphweave.sampling.undirected import undirected_of

EDGES_OF_A_ROW = 16
"""A row weighs as much as this many edges into it in the balance of parts.

A training step reads and writes each row's features, products, results and their gradients, a few matrices of about
the width of what one edge reads. So a row takes several times the time and memory of an edge. With a weight of 1 a part
of few nodes with many edges would get half the edges and few of the rows, and another part nearly all the memory.
"""


def weights_of(in_degrees: Tensor) -> Tensor:
    """int64 [nodes]: the work that a node brings its owner, `EDGES_OF_A_ROW` and the number of edges into it."""
    return EDGES_OF_A_ROW + in_degrees


@dataclass(frozen=True, eq=False)
class AllNodes:
    """The nodes of all types in one row of numbers, type after type, and the edges of all types between them."""

    graph: GraphFile
    in_degrees: dict[str, Tensor]
    """int64 [nodes of the type]: edges of all types into each node."""
    piece: int
    """Edges that are read at a time."""
    spill: Path
    """A folder for files that are deleted again."""

    @property
    def weights(self) -> Tensor:
        """int64 [nodes]: what parts balance (`weights_of`)."""
        return weights_of(torch.cat([*self.in_degrees.values(), torch.empty(0, dtype=torch.int64)]))

    def pieces(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Sources and destinations of edges, a piece at a time."""
        counts = self.graph.num_nodes
        first = dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))
        for (source, _, target), stream in self.graph.edges.items():
            for src, dst in stream.pieces(self.piece):
                yield src + first[source], dst + first[target]


Method: TypeAlias = Callable[[AllNodes, int, int], Tensor]
"""From the nodes, the number of parts and a seed to the part of each node, integers [nodes]."""


def random_parts(nodes: AllNodes, num_parts: int, seed: int) -> Tensor:
    """Nodes in a random order, cut into stretches of about equal weight. No part is over the mean by more than the
    heaviest node. It reads no edges."""
    weights = nodes.weights
    if 2 * int(weights.sum()) * num_parts >= 1 << 63:
        raise DataError(f"num_parts must be smaller for a graph of this size (got {num_parts}). Pass a smaller number.")
    order = torch.randperm(weights.numel(), generator=torch.Generator().manual_seed(seed))
    middles = 2 * weights[order].cumsum(0) - weights[order]
    parts = torch.empty_like(order)
    parts[order] = middles * num_parts // max(2 * int(weights.sum()), 1)
    return parts


def metis_parts(nodes: AllNodes, num_parts: int, seed: int) -> Tensor:
    """The parts that METIS finds (Karypis and Kumar 1998), of about equal weight with few edges between them. All
    edges are read into memory, where METIS takes about 100 bytes for each. DataError where pymetis is absent."""
    src, dst = joined_pieces(nodes.pieces())
    weights = nodes.weights
    found = metis(undirected_of(src, dst, weights.numel(), weights), num_parts, seed)
    if found is None:
        raise DataError("method 'metis' needs the package pymetis (not found). Install it, or pass 'ldg' or 'random'.")
    return found


def greedy_parts(nodes: AllNodes, num_parts: int, seed: int) -> Tensor:
    """Linear deterministic greedy (Stanton and Kliot 2012; see `GreedyStream`) over the nodes in the order of the
    file. Edges are sorted by node on disk, so that memory holds `piece` of them, and a few numbers a node."""
    weights = nodes.weights
    stream = GreedyStream(weights, num_parts, seed)
    ends = torch.zeros(weights.numel(), dtype=torch.int64)
    for src, dst in nodes.pieces():
        ends += torch.bincount(torch.cat([src, dst]), minlength=weights.numel())
    bounds = stretches(ends, nodes.piece)
    in_memory = nodes.graph.num_edges <= nodes.piece
    buckets = Buckets(bounds.numel() - 1, 2, None if in_memory else nodes.spill / "neighbours")
    for src, dst in nodes.pieces():
        node, other = torch.cat([src, dst]), torch.cat([dst, src])
        buckets.add(torch.bucketize(node, bounds[1:], right=True), node, other)
    for number, (first, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        _, other = sorted_rows(buckets.take(number), 0)
        indptr = torch.zeros(end - first + 1, dtype=torch.int64)
        indptr[1:] = ends[first:end].cumsum(0)
        stream.place(indptr, other)
    buckets.remove()
    return stream.parts


METHODS: dict[str, Method] = {"metis": metis_parts, "random": random_parts, "ldg": greedy_parts}
"""Methods by the name that `--method` gives them."""


READ_ALL_EDGES = frozenset({"metis"})
"""Methods that have all edges in memory, so that nothing is gained by sorting them on disk later."""


def stretches(counts: Tensor, most: int) -> Tensor:
    """int64 [stretches + 1], rising from 0 to the number of nodes: bounds of stretches of nodes that have fewer than
    `most` edges each, by `counts`, besides those of their first node."""
    numbers = counts.cumsum(0).div(most, rounding_mode="floor")
    changes = 1 + (numbers.diff() > 0).nonzero().flatten()
    return torch.cat([torch.tensor([0]), changes, torch.tensor([counts.numel()])]).unique()


def assigned(
    graph: GraphFile, in_degrees: dict[str, Tensor], num_parts: int, method: str, seed: int, piece: int, spill: Path
) -> dict[str, Tensor]:
    """The part of each node, int64 [nodes] by node type. `spill` is an empty folder, and is empty again afterwards.

    DataError for an unknown method.
    """
    if method not in METHODS:
        raise DataError(f"method must be one of {', '.join(METHODS)} (got {method!r}). Pass one of these.")
    found = METHODS[method](AllNodes(graph, in_degrees, piece, spill), num_parts, seed)
    return dict(zip(graph.num_nodes, found.long().split(list(graph.num_nodes.values())), strict=True))
