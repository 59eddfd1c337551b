"""`NeighborSampler`, which gives PyG's loaders their batches. This file needs PyG; the rest of the room does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.storage import BaseStorage
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)
from torch_geometric.sampler.base import NumNeighbors, SubgraphType
from torch_geometric.sampler.neighbor_sampler import edge_sample, node_sample

from graphweave.core.errors import DataError
from graphweave.core.homogeneous import HOMOGENEOUS_ETYPE, HOMOGENEOUS_NTYPE
from graphweave.graph.argument_types import IdsByType
from graphweave.graph.relation import CanonicalEtype
from graphweave.sampling.adjacency import Adjacency, adjacency
from graphweave.sampling.hops import (
    HopEdges,
    NeighborBatch,
    Strategy,
    batch_key,
    checked_seed,
    fold_numbers,
    hop_sampler,
)
from graphweave.sampling.weighted import checked_weights, weighted_numbers

_HOMOGENEOUS = (HOMOGENEOUS_NTYPE, HOMOGENEOUS_ETYPE, HOMOGENEOUS_NTYPE)


class EpochSampler(BaseSampler):
    """A sampler whose draws are a function of its seed, the epoch and the batch."""

    def __init__(self, seed: int) -> None:
        self._seed = checked_seed(seed)
        self._epoch = torch.zeros(1, dtype=torch.int64, device="cpu").share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Begins epoch number `epoch`, whose draws differ from other epochs'. Workers that run already see it, too.
        DataError for one that is no integer of 64 bits."""
        fold_numbers(0, [epoch])
        self._epoch.fill_(epoch)

    @property
    def edge_permutation(self) -> None:
        """None: edges have the numbers of the data."""
        return None

    def _keyed(self, negatives: NegativeSampling | None, index: EdgeSamplerInput) -> NegativeSampling | None:
        """`negatives`, drawn by a key of the edges `index`."""
        if negatives is None:
            return None
        return KeyedNegatives(negatives, batch_key(self._seed, int(self._epoch), [index.row.long(), index.col.long()]))


class NeighborSampler(EpochSampler):
    """Draws neighbours for PyG's loaders, in native code: neither pyg-lib nor torch-sparse is needed.

    `NodeLoader(data, sampler, ...)` and `LinkLoader(data, sampler, ...)` take it, and `NeighborLoader` and
    `LinkNeighborLoader` as `neighbor_sampler=sampler`. The last two then ignore their own `num_neighbors`.

    A batch is a function of `seed`, the epoch and the batch's seeds alone: it is the same for any number of threads and
    of workers. With shuffled seeds every epoch has different batches. Without, each epoch draws the same neighbours
    unless `set_epoch` is called. Negative edges of a `LinkLoader` are drawn so, too; like PyG's, they may be edges.

    Graph: SAGE-style sampling (Hamilton et al., "Inductive Representation Learning on Large Graphs", 2017, section
    3.1). Each node found by hop l - 1 draws `num_neighbors[l]` of its incoming edges, all of them for -1; nodes without
    incoming edges draw none.
    """

    def __init__(
        self,
        data: object,
        num_neighbors: object,
        *,
        seed: int = 0,
        replace: bool = False,
        disjoint: bool = False,
        subgraph_type: str = "directional",
        temporal_strategy: Strategy = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
    ) -> None:
        """`data`: a PyG `Data` or `HeteroData` on the CPU with `edge_index`.

        `num_neighbors`: a fanout for each hop, or for `HeteroData` also edge type -> such a list. `replace`: whether an
        edge may be drawn again. `disjoint`: whether each seed has a tree of its own, named by `batch`. `subgraph_type`:
        "directional", or "bidirectional" with every sampled edge in both directions. `weight_attr`: names an edge
        attribute [edges], finite and not negative, to which probabilities are proportional. `time_attr`: names an
        integer attribute of nodes or of edges; a tree, then disjoint, contains nothing later than its seed, and
        `temporal_strategy` "last" takes the latest edges instead of random ones. Seeds get times by the loader's
        `input_time` (`edge_label_time`), or else are given their nodes' times.

        DataError for data, fanouts or attributes that cannot be sampled.
        """
        if not isinstance(data, (Data, HeteroData)):
            raise DataError(f"expected a PyG Data or HeteroData (got {type(data).__name__}). Pass one of these.")
        if subgraph_type not in ("directional", "bidirectional"):
            raise DataError(
                f"expected subgraph_type 'directional' or 'bidirectional' (got {subgraph_type!r}). Pass one of these."
            )
        super().__init__(seed)
        self.is_hetero = isinstance(data, HeteroData)
        self.subgraph_type = SubgraphType(subgraph_type)
        self.node_time, edge_times = _times(data, time_attr)
        relations = relations_of(data, edge_times, self.node_time, weight_attr)
        types = data.node_types if self.is_hetero else [HOMOGENEOUS_NTYPE]
        counts = {t: num_nodes_of(data[t] if self.is_hetero else data, t) for t in types}
        self.num_nodes: Any = counts if self.is_hetero else counts[HOMOGENEOUS_NTYPE]
        self._sampler = hop_sampler(
            relations, counts, _fanouts(num_neighbors, list(relations), self.is_hetero), seed,
            replace=replace, disjoint=disjoint, strategy=temporal_strategy,
        )  # fmt: skip

    @property
    def disjoint(self) -> bool:
        """Whether each seed has a tree of its own."""
        return self._sampler.disjoint or self._sampler.timed

    def sample_from_nodes(self, index: NodeSamplerInput, **kwargs: object) -> SamplerOutput | HeteroSamplerOutput:
        """The batch of the nodes `index.node`. Errors as of `HopSampler.sample`."""
        return self._directed(node_sample(index, self._sample))

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput | HeteroSamplerOutput:
        """The batch of both ends of the edges `index.row` -> `index.col`, and of the negative edges asked for."""
        if index.time is not None and not self.disjoint:
            raise DataError("the edges have times (edge_label_time), but the sampler has no time_attr. Give it one.")
        given = (self.num_nodes, self.disjoint, self.node_time, self._keyed(neg_sampling, index))
        return self._directed(edge_sample(index, self._sample, *given))

    def _directed(self, out: SamplerOutput | HeteroSamplerOutput) -> SamplerOutput | HeteroSamplerOutput:
        return out.to_bidirectional() if self.subgraph_type == SubgraphType.bidirectional else out

    def _sample(self, seed: IdsByType, seed_time: IdsByType | None = None) -> SamplerOutput | HeteroSamplerOutput:
        seeds, times = _by_type(seed), None if seed_time is None else _by_type(seed_time)
        if times is None and self.node_time is not None:
            of = _by_type(self.node_time)
            times = {t: of[t][nodes] for t, nodes in seeds.items() if t in of}
        batch = self._sampler.sample(seeds, times, int(self._epoch))
        return _hetero_output(batch) if self.is_hetero else _output(batch)


class KeyedNegatives(NegativeSampling):
    """PyG's negative sampling with random numbers that are a function of a key."""

    def __init__(self, like: NegativeSampling, key: int) -> None:
        super().__init__(like.mode, like.amount, like.src_weight, like.dst_weight)
        self._key, self._calls = key, 0

    def sample(self, num_samples: int, endpoint: str, num_nodes: int | None = None) -> Tensor:
        """int64 [num_samples]: nodes drawn uniformly, or by `src_weight` and `dst_weight`."""
        self._calls += 1
        generator = torch.Generator().manual_seed(fold_numbers(self._key, [self._calls]))
        weight = self.src_weight if endpoint == "src" else self.dst_weight
        if weight is None:
            assert num_nodes is not None
            return torch.randint(num_nodes, (num_samples,), generator=generator, device="cpu")
        if num_nodes is not None and weight.numel() != num_nodes:
            raise DataError(
                f"{endpoint}_weight must have one number for each of {num_nodes} nodes (got {weight.numel()}). Give it."
            )
        weight = checked_weights(weight, f"{endpoint}_weight", "node")
        found = weighted_numbers(weight, num_samples, generator)
        if found is None:
            raise DataError(f"{endpoint}_weight must have a number above 0 (got none). Give the nodes weights.")
        return found


def _by_type(ids: IdsByType) -> Mapping[str, Tensor]:
    return ids if isinstance(ids, Mapping) else {HOMOGENEOUS_NTYPE: ids}


def num_nodes_of(store: BaseStorage, what: str) -> int:
    """The number of nodes of a store of PyG's, which messages call `what`. DataError if it is not known."""
    found = store.num_nodes
    if found is None:
        raise DataError(f"{what}: the number of nodes is not known. Set num_nodes.")
    return int(found)


def _fanouts(given: Any, relations: list[CanonicalEtype], hetero: bool) -> dict[CanonicalEtype, Any]:
    if not isinstance(given, NumNeighbors):
        given = NumNeighbors(given)
    if not hetero:
        if isinstance(given.values, dict):
            raise DataError("num_neighbors: expected a list for homogeneous data (got a dict). Pass a list.")
        return {_HOMOGENEOUS: list(given.values) if isinstance(given.values, tuple) else given.values}
    try:
        found: dict[CanonicalEtype, Any] = given.get_values(relations)
    except ValueError as error:
        raise DataError(f"num_neighbors: {error}. Give a list of fanouts for each edge type.") from error
    return found


def relations_of(
    data: Data | HeteroData,
    edge_times: dict[CanonicalEtype, Tensor],
    node_times: IdsByType | None,
    weight_attr: str | None,
) -> dict[CanonicalEtype, Adjacency]:
    """The edges of each edge type, with `weight_attr` as weights where they have it and the times given. DataError for
    data that cannot be sampled."""
    hetero = isinstance(data, HeteroData)
    stores = dict(zip(data.edge_types, data.edge_stores, strict=True)) if hetero else {_HOMOGENEOUS: data}
    weighted = [key for key, store in stores.items() if weight_attr is not None and weight_attr in store]
    if weight_attr is not None and not weighted:
        raise DataError(f"weight_attr: no edges have an attribute {weight_attr!r}. Name one that they have.")
    made = {}
    for key, store in stores.items():
        what = f"edge type {key}" if hetero else "data"
        if "edge_index" not in store:
            raise DataError(f"{what}: expected an edge_index (got {', '.join(store.keys()) or 'nothing'}). Set it.")
        ends = store.edge_index
        src_store, dst_store = (data[key[0]], data[key[2]]) if hetero else (data, data)
        times = node_times.get(key[0]) if isinstance(node_times, Mapping) else node_times
        made[key] = adjacency(
            ends[0], ends[1], num_nodes_of(src_store, what), num_nodes_of(dst_store, what), what=what,
            weights=store[weight_attr] if key in weighted else None, edge_times=edge_times.get(key), node_times=times,
        )  # fmt: skip
    return made


def _times(data: Data | HeteroData, attr: str | None) -> tuple[IdsByType | None, dict[CanonicalEtype, Tensor]]:
    """Times of nodes, by type for `HeteroData`, and of edges."""
    if attr is None:
        return None, {}
    if isinstance(data, HeteroData):
        nodes: Any = {
            t: store[attr] for t, store in zip(data.node_types, data.node_stores, strict=True) if attr in store
        }
        edges = {t: store[attr] for t, store in zip(data.edge_types, data.edge_stores, strict=True) if attr in store}
    else:
        nodes = data[attr] if attr in data and data.is_node_attr(attr) else None
        edges = {_HOMOGENEOUS: data[attr]} if attr in data and nodes is None and data.is_edge_attr(attr) else {}
    if not edges and (nodes is None or not len(nodes)):
        raise DataError(f"time_attr: neither nodes nor edges have an attribute {attr!r}. Name one that they have.")
    return (nodes if nodes is not None and len(nodes) else None), edges


def _edges(hops: list[HopEdges]) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    src, dst, edge = (torch.cat(parts) for parts in zip(*hops, strict=True))
    return src, dst, edge, [hop.edge.numel() for hop in hops]


def _output(batch: NeighborBatch) -> SamplerOutput:
    nodes = batch.nodes[HOMOGENEOUS_NTYPE]
    row, col, edge, counts = _edges(batch.edges[_HOMOGENEOUS])
    return SamplerOutput(
        node=torch.cat(nodes), row=row, col=col, edge=edge,
        batch=None if batch.trees is None else torch.cat(batch.trees[HOMOGENEOUS_NTYPE]),
        num_sampled_nodes=[chunk.numel() for chunk in nodes], num_sampled_edges=counts,
    )  # fmt: skip


def _hetero_output(batch: NeighborBatch) -> HeteroSamplerOutput:
    edges = {key: _edges(hops) for key, hops in batch.edges.items()}
    return HeteroSamplerOutput(
        node={t: torch.cat(chunks) for t, chunks in batch.nodes.items()},
        row={key: parts[0] for key, parts in edges.items()},
        col={key: parts[1] for key, parts in edges.items()},
        edge={key: parts[2] for key, parts in edges.items()},
        batch=None if batch.trees is None else {t: torch.cat(chunks) for t, chunks in batch.trees.items()},
        num_sampled_nodes={t: [chunk.numel() for chunk in chunks] for t, chunks in batch.nodes.items()},
        num_sampled_edges={key: parts[3] for key, parts in edges.items()},
    )
