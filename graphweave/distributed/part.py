"""One rank's share of a graph: its own nodes, the rows of others that its edges read, and the edges into its own nodes.

Rows own their incoming edges: an edge belongs to the part that owns its destination, so that a reduction over incoming
edges, softmax included, is local work. What an edge reads of its source may lie on another rank; such rows are the
part's *halo*. Local numbers of a node type count its own rows first, 0..num_own-1, then its halo rows. So the local
number of a destination, a self-loop or a row of features is the same with and without the halo.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class PartNodes:
    """The nodes of one type that a part owns or reads.

    `own: [num_own] i64` are the global numbers of its own rows in local order, and `halo: [num_halo] i64` those of the
    rows that other ranks own, ordered by owner. `halo_counts: [num_parts] i64` says how many halo rows each rank owns;
    the part itself owns none. `send: [num_sent] i64` are the local rows that other ranks read, ordered by rank, and
    `send_counts: [num_parts] i64` how many each rank reads: rank q's halo rows owned by this part are, in order, this
    part's rows for q. `total` is the number of nodes of the type on all ranks. `data` has rows for `own`, by name.
    """

    own: Tensor
    halo: Tensor
    halo_counts: Tensor
    send: Tensor
    send_counts: Tensor
    total: int
    data: dict[str, Tensor] = field(default_factory=dict)

    @property
    def num_own(self) -> int:
        """Rows that the part owns."""
        return self.own.shape[0]

    @property
    def num_halo(self) -> int:
        """Rows of other ranks that the part reads."""
        return self.halo.shape[0]


@dataclass(frozen=True)
class PartEdges:
    """The edges of one type whose destinations the part owns, sorted by destination.

    `edge_index: [2, num_edges] i64` has local numbers: sources below num_own + num_halo of their type, destinations
    below num_own of theirs. `ids: [num_edges] i64` are the edges' global numbers, `total` is the number of edges on all
    ranks, and `data` has a row for each edge of the part, by name.
    """

    edge_index: Tensor
    ids: Tensor
    total: int
    data: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class GraphPart:
    """Part `rank` of `num_parts`. A graph without types has the node type "_N" and the edge type ("_N", "_E", "_N")."""

    rank: int
    num_parts: int
    nodes: dict[str, PartNodes]
    edges: dict[tuple[str, str, str], PartEdges]

    @property
    def edge_index(self) -> Tensor:
        """The edges of a graph with one edge type, `[2, num_edges] i64`."""
        (edges,) = self.edges.values()
        return edges.edge_index
