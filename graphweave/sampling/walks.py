"""Random walks along edges, of one relation or along a metapath."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph.graph import Graph
from graphweave.graph.relation import CanonicalEtype, Etype
from graphweave.sampling.adjacency import Adjacency, adjacency
from graphweave.sampling.hops import allocated, batch_key, checked_nodes, checked_seed, draw, fold_numbers
from graphweave.sampling.native import RawChoice

_STOPS = 1 << 32
"""The number that keys of restarts fold in, beyond all steps."""


class RandomWalker:
    """Walks that go on from each node along one of its outgoing edges, each equally likely, or by a field of edges
    (Perozzi et al., "DeepWalk: online learning of social representations", 2014, section 4.2.1).

    A walk is a function of `seed`, `epoch`, its start and the other starts, for any number of threads.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        metapath: Sequence[Etype] | None = None,
        prob: str | None = None,
        restart: float = 0.0,
        seed: int = 0,
    ) -> None:
        """`metapath`: the relations of the steps, in order, repeated as often as needed (Dong et al., "metapath2vec",
        2017, section 3.2); None for the graph's only relation. `prob`: a field of edges, finite and not negative, to
        which probabilities are proportional. `restart`: the probability that a walk ends before each step but the
        first.

        DataError for relations that do not follow each other, for fields that cannot be sampled, and for a `restart`
        outside [0, 1).
        """
        path = [graph.to_canonical_etype(e) for e in ([None] if metapath is None else metapath)]
        if not path:
            raise DataError("metapath: expected one relation at least (got none). Name those of the steps.")
        for one, other in pairwise(path):
            if one[2] != other[0]:
                raise DataError(
                    f"metapath: {other} cannot follow {one}, which leads to nodes of type {one[2]!r}."
                    " Name relations each of which begins where the one before ends."
                )
        if not 0 <= restart < 1:
            raise DataError(f"restart must be a probability below 1 (got {restart!r}). Pass 0 for walks without.")
        self._graph, self._path, self._restart, self._seed = graph, path, float(restart), checked_seed(seed)
        self._outgoing = {key: _outgoing(graph, key, prob) for key in dict.fromkeys(path)}
        self._closed = path[-1][2] == path[0][0]

    def walk(self, start: object, length: int, epoch: int = 0) -> tuple[Tensor, Tensor]:
        """(nodes [starts, length + 1], edges [starts, length]), int64: the nodes of each walk, the first being its
        start, and the number of each edge in its relation; -1 after the end of a walk.

        DataError for no starts and for a length that is no positive number or goes beyond a metapath that does not
        lead back to where it begins; IndexRangeError for a start out of range.
        """
        if not isinstance(length, int) or isinstance(length, bool) or length < 1:
            raise DataError(f"length must be a positive integer (got {length!r}). Pass the number of steps.")
        if length > len(self._path) and not self._closed:
            raise DataError(
                f"length must be at most {len(self._path)} (got {length}): the metapath ends at nodes of type"
                f" {self._path[-1][2]!r}, where it cannot begin again. Pass a shorter length or a"
                " metapath that leads back."
            )
        start = checked_nodes(start, self._graph.num_nodes(self._path[0][0]), "start")
        key = batch_key(self._seed, epoch, [start])
        what = f"{start.numel()} walks of {length} steps"
        nodes = allocated(start.numel(), length + 1, what=what, do="a shorter length").fill_(-1)
        edges = allocated(start.numel(), length, what=what, do="a shorter length").fill_(-1)
        nodes[:, 0] = start
        walks = torch.arange(start.numel(), device="cpu")
        for step in range(length):
            if step and self._restart:
                walks = walks[~self._stops(key, step, start.numel())[walks]]
            graph = self._outgoing[self._path[step % len(self._path)]]
            here = nodes[walks, step].contiguous()
            drawn = draw(graph, here, None, RawChoice(1, fold_numbers(key, [step]), True, False), 0)
            walks = walks[drawn.dst]
            nodes[walks, step + 1], edges[walks, step] = drawn.src, drawn.edge
        return nodes, edges

    def _stops(self, key: int, step: int, count: int) -> Tensor:
        generator = torch.Generator().manual_seed(fold_numbers(key, [_STOPS + step]))
        return torch.rand(count, generator=generator, dtype=torch.float64, device="cpu") < self._restart


def _outgoing(graph: Graph, key: CanonicalEtype, prob: str | None) -> Adjacency:
    """The edges of a relation, grouped by source: `sources` of the adjacency are their destinations."""
    relation, field = graph.relation(key), graph.edge_frame(key)
    if prob is not None and prob not in field:
        raise DataError(f"prob: edges of relation {key} have no field {prob!r}. Name one that they have.")
    return adjacency(
        relation.dst, relation.src, graph.num_nodes(key[2]), graph.num_nodes(key[0]),
        weights=None if prob is None else field[prob], what=f"relation {key}",
    )  # fmt: skip
