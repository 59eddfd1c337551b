"""Batches of edges as DGL has them: pairs of nodes, negative pairs, and the blocks of all nodes at their ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph import transform
from graphweave.graph.argument_types import IdsByType
from graphweave.graph.assemble import assemble
from graphweave.graph.frame import EID, NID
from graphweave.graph.graph import Graph
from graphweave.graph.query import as_selection
from graphweave.graph.relation import ByRelation, CanonicalEtype, Etype, Relation
from graphweave.sampling.hops import checked_nodes
from graphweave.sampling.negatives import NegativeSampler
from graphweave.sampling.node_table import NodeTable

DrawsPairs = Callable[[Graph, Any], Any]
"""A function of the graph and a batch's edges, which returns (sources, destinations), or relation -> these."""

Negatives = DrawsPairs | Mapping[CanonicalEtype, NegativeSampler] | None

Ends = dict[CanonicalEtype, tuple[Tensor, Tensor]]
"""Relation -> sources and destinations, int64 [pairs] each."""

_EXCLUDE = (None, "self", "reverse_id", "reverse_types")


class NodeSampler(Protocol):
    """The sampler that makes the blocks of the nodes at the ends: a `BlockSampler`, or another class of this form."""

    @property
    def graph(self) -> Graph:
        """The graph that is sampled."""

    def sample(
        self, seeds: Mapping[str, Tensor], epoch: int = 0, exclude: object = None
    ) -> tuple[IdsByType, IdsByType, Sequence[Graph]]:
        """(input nodes, output nodes, blocks) of type -> distinct nodes; no block has the edges `exclude`."""


class EdgePredictionSampler:
    """Made by `as_edge_prediction_sampler`, which says what the batches are."""

    def __init__(
        self,
        sampler: NodeSampler,
        exclude: object,
        reverse_eids: Mapping[CanonicalEtype, Tensor],
        reverse_etypes: Mapping[CanonicalEtype, CanonicalEtype],
        negatives: Negatives,
        k: int,
    ) -> None:
        self.graph = sampler.graph
        self._sampler, self._exclude, self._negatives, self._k = sampler, exclude, negatives, k
        self._reverse_eids, self._reverse_etypes = reverse_eids, reverse_etypes

    def sample(self, edges: object, epoch: int = 0) -> tuple[Any, ...]:
        """(input nodes, pair graph, blocks) of `edges`, numbers [k], or relation -> numbers; with a negative sampler
        (input nodes, pair graph, negative pair graph, blocks). DataError for no edges, IndexRangeError for an edge out
        of range."""
        graph = self.graph
        chosen = self._chosen(edges)
        ends: Ends = {key: self._ends(key, ids) for key, ids in chosen.items()}
        negative = self._negative(edges, chosen, ends, epoch)
        tables = {
            t: NodeTable(graph.num_nodes(t), torch.empty(0, dtype=torch.int64, device="cpu"), None, 0)
            for t in graph.ntypes
        }
        local = _numbered(tables, ends)
        local_negative = None if negative is None else _numbered(tables, negative)
        nodes = {t: table.all()[0] for t, table in tables.items()}
        seeds = {t: found for t, found in nodes.items() if found.numel()}
        inputs, _, blocks = self._sampler.sample(seeds, epoch, exclude=self._excluded(edges, chosen))
        pair_graph = _pair_graph(graph, nodes, local, chosen)
        if local_negative is None:
            return inputs, pair_graph, blocks
        return inputs, pair_graph, _pair_graph(graph, nodes, local_negative, None), blocks

    def _chosen(self, edges: object) -> dict[CanonicalEtype, Tensor]:
        found = {}
        for key, ids in transform.by_relation(self.graph, edges).items():
            relation = self.graph.relation(key)
            found[key] = as_selection(ids, relation.num_edges, relation.src, "edge").long()
        if not sum(ids.numel() for ids in found.values()):
            raise DataError("edges: expected one at least (got none). Pass those to be predicted.")
        return found

    def _ends(self, key: CanonicalEtype, ids: Tensor) -> tuple[Tensor, Tensor]:
        relation = self.graph.relation(key)
        return relation.src[ids].long(), relation.dst[ids].long()

    def _excluded(self, edges: object, chosen: dict[CanonicalEtype, Tensor]) -> object:
        if self._exclude is None:
            return None
        if callable(self._exclude):
            return self._exclude(edges)
        parts = {key: [ids] for key, ids in chosen.items()}
        for key, ids in chosen.items():
            if self._exclude == "reverse_id":
                if key not in self._reverse_eids:
                    raise DataError(f"reverse_eids: relation {key} has none. Give relation -> numbers of edges.")
                parts[key].append(self._reverse_eids[key][ids])
            elif self._exclude == "reverse_types" and key in self._reverse_etypes:
                parts.setdefault(self._reverse_etypes[key], []).append(ids)
        return {key: torch.cat(ids) for key, ids in parts.items()}

    def _negative(self, edges: object, chosen: dict[CanonicalEtype, Tensor], ends: Ends, epoch: int) -> Ends | None:
        if self._negatives is None:
            return None
        if callable(self._negatives):
            given = self._negatives(self.graph, edges)
            if not isinstance(given, Mapping):
                given = {next(iter(chosen)) if len(chosen) == 1 else None: given}
            drawn = transform.by_relation(self.graph, given)
        else:
            drawn = {}
            for key, (src, _) in ends.items():
                if key not in self._negatives:
                    raise DataError(f"negative_sampler: relation {key} has none. Give relation -> NegativeSampler.")
                if src.numel():
                    tails = self._negatives[key].destinations(src, self._k, epoch)
                    drawn[key] = (src.repeat_interleave(self._k), tails.reshape(-1))
        return {key: self._checked(key, pairs) for key, pairs in drawn.items()}

    def _checked(self, key: CanonicalEtype, pairs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        pairs = tuple(torch.as_tensor(end) for end in pairs)
        if not any(end.numel() for end in pairs):
            return torch.empty(0, dtype=torch.int64, device="cpu"), torch.empty(0, dtype=torch.int64, device="cpu")
        src, dst = (
            checked_nodes(end, self.graph.num_nodes(t), f"negative pairs of relation {key}, {what}")
            for end, t, what in zip(pairs, (key[0], key[2]), ("sources", "destinations"), strict=True)
        )
        if src.numel() != dst.numel():
            raise DataError(
                f"negative pairs of relation {key}: expected as many sources as destinations (got {src.numel()} and"
                f" {dst.numel()}). Return a destination for each source."
            )
        return src, dst


def as_edge_prediction_sampler(
    sampler: NodeSampler,
    exclude: str | Callable[[object], object] | None = None,
    reverse_eids: Tensor | ByRelation[Tensor] | None = None,
    reverse_etypes: ByRelation[Etype] | None = None,
    negative_sampler: NegativeSampler | ByRelation[NegativeSampler] | DrawsPairs | None = None,
    num_negatives: int = 1,
) -> EdgePredictionSampler:
    """A sampler of edges for a `DataLoader` whose indices are edges, with the semantics of the function of this name in
    `dgl.dataloading`.

    A batch is (input nodes, pair graph, blocks), or (input nodes, pair graph, negative pair graph, blocks). The pair
    graph has the edges of the batch in their order, their fields and `edata[EID]`. Its nodes are those at the ends of
    the edges and of the negative pairs: they are the same in the negative pair graph, and those at which the last block
    ends, so that the model's output has a row for each. `ndata[NID]` holds their numbers in the graph.

    `sampler`: a `BlockSampler`. `exclude`: edges that no block of the batch contains: those of the batch ("self"), also
    the edges reverse_eids[e], where `reverse_eids` is [num_edges] or relation -> [num_edges] ("reverse_id"), or also
    the edges of the same numbers of the relation `reverse_etypes[relation]` ("reverse_types"); or a function of the
    batch's edges that returns edges, or relation -> edges. Fanouts are drawn from the other edges.

    `negative_sampler`: a `NegativeSampler`, or relation -> one: each edge u -> v has the pairs (u, v'), v' drawn
    `num_negatives` times, one after the other. Or a function of the graph and the batch's edges that returns (sources,
    destinations), or relation -> these.

    DataError for options that do not go together, and for numbers of reversed edges of another shape.
    """
    graph = sampler.graph
    if not callable(exclude) and exclude not in _EXCLUDE:
        raise DataError(
            f"expected exclude 'self', 'reverse_id', 'reverse_types', None or a function (got {exclude!r})."
            " Pass one of these."
        )
    needed = {"reverse_id": ("reverse_eids", reverse_eids), "reverse_types": ("reverse_etypes", reverse_etypes)}
    if isinstance(exclude, str) and exclude in needed and needed[exclude][1] is None:
        raise DataError(f"exclude={exclude!r} needs {needed[exclude][0]} (got None). Pass it.")
    if not isinstance(num_negatives, int) or isinstance(num_negatives, bool) or num_negatives < 1:
        raise DataError(f"num_negatives must be a positive integer (got {num_negatives!r}). Pass such a number.")
    eids = {key: _reversed(graph, key, ids) for key, ids in transform.by_relation(graph, reverse_eids).items()}
    etypes = {
        graph.to_canonical_etype(one): graph.to_canonical_etype(other)
        for one, other in (reverse_etypes or {}).items()
    }  # fmt: skip
    negatives = negative_sampler if callable(negative_sampler) else _negatives(graph, negative_sampler)
    return EdgePredictionSampler(sampler, exclude, eids, etypes, negatives, num_negatives)


def _reversed(graph: Graph, key: CanonicalEtype, ids: object) -> Tensor:
    relation = graph.relation(key)
    found = as_selection(ids, relation.num_edges, relation.src, "edge").long()
    if found.numel() != relation.num_edges:
        raise DataError(
            f"reverse_eids of relation {key} must have one number for each of {relation.num_edges} edges (got"
            f" {found.numel()}). Give it."
        )
    return found


def _negatives(graph: Graph, given: object) -> dict[CanonicalEtype, NegativeSampler] | None:
    found = transform.by_relation(graph, given)
    for key, sampler in found.items():
        if not isinstance(sampler, NegativeSampler):
            raise DataError(
                f"negative_sampler of relation {key}: expected a NegativeSampler or a function (got"
                f" {type(sampler).__name__}). Pass one of these."
            )
    return found or None


def _numbered(tables: Mapping[str, NodeTable], ends: Ends) -> Ends:
    """The ends by their numbers in `tables`, in which new nodes are entered, sources first."""
    src = {key: tables[key[0]].number(pairs[0], pairs[0], None) for key, pairs in ends.items()}
    dst = {key: tables[key[2]].number(pairs[1], pairs[1], None) for key, pairs in ends.items()}
    return {key: (src[key], dst[key]) for key in ends}


def _pair_graph(
    graph: Graph, nodes: Mapping[str, Tensor], ends: Ends, edges: Mapping[CanonicalEtype, Tensor] | None
) -> Graph:
    none = torch.empty(0, dtype=graph.idtype, device="cpu")
    relations, edata = {}, {}
    for key in graph.canonical_etypes:
        src, dst = (end.to(graph.idtype) for end in ends.get(key, (none, none)))
        relations[key] = Relation(*key, src, dst)
        if edges is not None:
            ids = edges.get(key, none)
            edata[key] = {**graph.edge_frame(key).take(ids.long()), EID: ids.to(graph.idtype)}
    ndata = {t: {NID: found.to(graph.idtype)} for t, found in nodes.items()}
    return assemble(Graph, {t: found.numel() for t, found in nodes.items()}, relations, ndata, edata)
