"""Batches as DGL has them: input nodes, output nodes, and a bipartite graph for each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph import transform
from graphweave.graph.argument_types import IdsByType
from graphweave.graph.assemble import assemble
from graphweave.graph.frame import EID, NID
from graphweave.graph.graph import Graph
from graphweave.graph.query import as_selection
from graphweave.graph.relation import CanonicalEtype, Relation
from graphweave.sampling.adjacency import adjacency
from graphweave.sampling.hops import HopEdges, checked_fanouts, checked_nodes, hop_sampler

DST = "_dst"
"""The ending of the names of a block's destination types: the same nodes are sources under their own name, too."""


Fanout: TypeAlias = int | Mapping[Any, int]
"""Edges that each destination draws: a number, -1 for all, or relation -> such a number."""


class BlockSampler:
    """Draws the blocks of a batch, as DGL's `NeighborSampler` does: one bipartite graph for each layer of a model.

    The nodes at which a block's edges end are the block's first source nodes, in the same order, so that
    `h_dst = h[: block.num_dst_nodes()]`. The destinations of the last block are the output nodes, and those of any
    other block are the sources of the next. Every destination draws anew in each block, `fanouts[l]` of its incoming
    edges in block l, all of them for -1 (Wang et al., "Deep Graph Library", 2019; Hamilton et al., 2017, algorithm 2).
    Nodes without incoming edges draw none.

    Edges of a block are sorted by destination, so its formats need neither a sort nor a permutation. A batch is a
    function of `seed`, `epoch` and its seeds, as with `NeighborSampler`.
    """

    def __init__(
        self,
        graph: Graph,
        fanouts: Sequence[Fanout],
        *,
        seed: int = 0,
        replace: bool = False,
        prob: str | None = None,
    ) -> None:
        """`fanouts`: for each layer, the first layer first, a number or relation -> number. `replace`: whether an edge
        may be drawn again. `prob`: a field of edges, finite and not negative, to which probabilities are proportional.

        DataError for fanouts or fields that cannot be sampled.
        """
        self._graph = graph
        relations, weighted = {}, 0
        for key in graph.canonical_etypes:
            field = graph.edge_frame(key)
            given = field[prob] if prob is not None and prob in field else None
            weighted += given is not None
            relations[key] = adjacency(
                graph.relation(key).src, graph.relation(key).dst, graph.num_nodes(key[0]), graph.num_nodes(key[2]),
                weights=given, what=f"relation {key}",
            )  # fmt: skip
        if prob is not None and not weighted:
            raise DataError(f"prob: no edges have a field {prob!r}. Name one that they have.")
        counts = {t: graph.num_nodes(t) for t in graph.ntypes}
        found = _fanouts(graph, fanouts)
        self._sampler = hop_sampler(relations, counts, found, seed, replace=replace, repeat=True)
        self._places: dict[CanonicalEtype, Tensor | None] = {}

    @property
    def graph(self) -> Graph:
        """The graph that is sampled."""
        return self._graph

    def sample(
        self, seeds: IdsByType, epoch: int = 0, exclude: object = None
    ) -> tuple[IdsByType, IdsByType, list[Graph]]:
        """(input nodes, output nodes, blocks) of `seeds`, int64 [k] without duplicates, or type -> such nodes.
        `exclude`: edges, or relation -> edges, that no block has; a node draws its fanout of the others.

        Input and output nodes are a tensor, or type -> tensor for a graph of several node types. A block has the
        graph's relations, whose destination types have names that end in "_dst"; `srcdata[NID]`, `dstdata[NID]` and
        `edata[EID]` hold numbers in the graph. DataError for no seeds and for duplicates, IndexRangeError for a seed
        or an excluded edge out of range.
        """
        given = self._seeds(seeds)
        batch = self._sampler.sample(given, None, epoch, self._positions(exclude))
        blocks: list[Graph] = []
        for hop in range(self._sampler.num_hops):
            dst = {t: torch.cat(chunks[: hop + 1]) for t, chunks in batch.nodes.items()}
            src = {t: torch.cat(chunks[: hop + 2]) for t, chunks in batch.nodes.items()}
            edges = {key: hops[hop] for key, hops in batch.edges.items()}
            blocks.insert(0, _block(src, dst, edges, self._graph.idtype))
        inputs = {t: torch.cat(chunks) for t, chunks in batch.nodes.items()}
        if len(inputs) > 1:
            return inputs, given, blocks
        (only,) = inputs
        return inputs[only], given[only], blocks

    def _positions(self, exclude: object) -> dict[CanonicalEtype, Tensor]:
        """Relation -> the positions of its excluded edges, in rising order."""
        found = {}
        for key, ids in transform.by_relation(self._graph, exclude).items():
            if key not in self._places:
                self._places[key] = self._sampler.relations[key].places()
            relation, places = self._graph.relation(key), self._places[key]
            edges = as_selection(ids, relation.num_edges, relation.src, "edge").long()
            found[key] = (edges if places is None else places[edges].long()).unique()
        return found

    def _seeds(self, seeds: IdsByType) -> dict[str, Tensor]:
        found = {}
        for t, nodes in transform.by_ntype(self._graph, seeds).items():
            found[t] = checked_nodes(nodes, self._graph.num_nodes(t), f"seeds of type {t!r}")
            if found[t].unique().numel() != found[t].numel():
                raise DataError(f"seeds of type {t!r} must be different nodes (got some twice). Pass seeds.unique().")
        if not found:
            raise DataError("seeds: expected nodes of one type at least (got none). Pass the output nodes.")
        return found


def _fanouts(graph: Graph, given: object) -> dict[CanonicalEtype, list[int]]:
    """Relation -> the fanout of each hop, that of the last layer first."""
    keys = graph.canonical_etypes
    if not isinstance(given, (list, tuple)) or not all(isinstance(layer, Mapping) for layer in given) or not given:
        return {key: list(checked_fanouts(given, "fanouts"))[::-1] for key in keys}
    layers = [{graph.to_canonical_etype(name): fanout for name, fanout in layer.items()} for layer in given]
    if missing := sorted({key for key in keys for layer in layers if key not in layer}):
        raise DataError(f"fanouts: relation {missing[0]} has none in some layer. Give one for each layer.")
    return {key: [layer[key] for layer in reversed(layers)] for key in keys}


def _block(
    src: dict[str, Tensor], dst: dict[str, Tensor], edges: Mapping[CanonicalEtype, HopEdges], idtype: torch.dtype
) -> Graph:
    relations, edata = {}, {}
    for (start, name, end), hop in edges.items():
        relation = Relation(start, name, end + DST, hop.src.to(idtype), hop.dst.to(idtype))
        relations[relation.key] = relation
        edata[relation.key] = {EID: hop.edge.to(idtype)}
    nodes = {key[0]: src[key[0]] for key in edges} | {key[2] + DST: dst[key[2]] for key in edges}
    ndata = {t: {NID: rows.to(idtype)} for t, rows in nodes.items()}
    return assemble(Graph, {t: nodes[t].numel() for t in sorted(nodes)}, relations, ndata, edata)
