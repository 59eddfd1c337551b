"""Samplers of `dgl.dataloading` whose batches are subgraphs (Cluster-GCN, GraphSAINT, shaDow), and LABOR's blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graphweave import sampling
from graphweave.core.errors import DataError
from graphweave.dgl.block import DGLBlock
from graphweave.dgl.changed import remove_edges
from graphweave.dgl.graph import DGLGraph, on_device
from graphweave.dgl.random import choice
from graphweave.dgl.sampler_base import DGLBlockSampler, DGLSampler, drawn_key, long_ids, with_fields
from graphweave.dgl.sampling import edges_of, sample_neighbors
from graphweave.dgl.to_block import to_block
from graphweave.dgl.walks import random_walk
from graphweave.graph import transform
from graphweave.graph.argument_types import Device, IdsByType
from graphweave.graph.frame import EID, NID
from graphweave.graph.relation import CanonicalEtype
from graphweave.sampling.blocks import Fanout


class ClusterGCNSampler(DGLSampler):
    """Batches of clusters: `sample(g, clusters)` gives the subgraph of their nodes (Chiang et al., "Cluster-GCN",
    2019).

    `g`: a graph of one relation. `k`: the number of clusters, which `graphweave.sampling.ClusterSampler` finds.
    `cache_path`: a file that keeps them, in NumPy's format; DGL's pickled files are not read. The other arguments
    decide nothing. DataError for `balance_ntypes` and `balance_edges`, and for a file of another graph or number.
    """

    def __init__(
        self, g: DGLGraph, k: int, cache_path: str = "cluster_gcn.pkl", balance_ntypes: object = None,
        balance_edges: bool = False, mode: str = "k-way", prefetch_ndata: object = None, prefetch_edata: object = None,
        output_device: Device | None = None,
    ) -> None:  # fmt: skip
        if balance_ntypes is not None or balance_edges:
            raise DataError(
                f"expected balance_ntypes=None and balance_edges=False (got {balance_ntypes!r}, {balance_edges!r})."
                " Leave both out: clusters have equal numbers of nodes."
            )
        self.output_device = output_device
        self._clusters = sampling.ClusterSampler(g, k, path=cache_path)

    def sample(self, g: DGLGraph, partition_ids: object) -> DGLGraph:
        """The nodes of the clusters `partition_ids`, cluster after cluster, with all edges between them."""
        nodes = torch.cat([self._clusters.nodes(c) for c in torch.as_tensor(partition_ids).reshape(-1).tolist()])
        return on_device(g.subgraph(nodes.to(g.idtype)), self.output_device)


class DegreeSAINTSampler(DGLSampler):
    """Subgraphs of drawn nodes: `sample(g, number)` (Zeng et al., "GraphSAINT", 2020). Draws are with replacement.

    `mode`: "node", `budget` nodes by out-degree; "edge", both ends of `budget` edges u -> v by 1 / outdegree(u) + 1 /
    indegree(v); "walk", all nodes of the walks of `budget[1]` steps from `budget[0]` nodes. Degrees are at least 1.
    `cache`: whether chances are computed for the first graph only. These are DGL's chances;
    `graphweave.sampling.SAINTSampler` has the paper's, and its coefficients. DataError for another mode.
    """

    def __init__(
        self, mode: str, budget: Any, cache: bool = True, prefetch_ndata: object = None, prefetch_edata: object = None,
        output_device: Device | None = "cpu",
    ) -> None:  # fmt: skip
        if mode not in ("node", "edge", "walk"):
            raise DataError(f"expected mode 'node', 'edge' or 'walk' (got {mode!r}). Pass one of these.")
        self.mode, self.budget, self.cache, self.output_device = mode, budget, cache, output_device
        self._chances: Tensor | None = None

    def sample(self, g: DGLGraph, indices: object) -> DGLGraph:
        """A subgraph of `g`. What `indices` are decides nothing."""
        if self._chances is None or not self.cache:
            self._chances = self._chances_of(g)
        if self.mode == "node":
            nodes = choice(g.num_nodes(), self.budget, prob=self._chances)
        elif self.mode == "edge":
            drawn = choice(g.num_edges(), self.budget, prob=self._chances)
            nodes = torch.cat([ends.long()[drawn] for ends in g.edges()])
        else:
            roots, length = self.budget
            traces, _ = random_walk(g, torch.randint(g.num_nodes(), (roots,)), length=length)
            nodes = traces[traces >= 0]
        return on_device(g.subgraph(nodes.unique().to(g.idtype)), self.output_device)

    def _chances_of(self, g: DGLGraph) -> Tensor | None:
        outgoing: Tensor = g.out_degrees().double().clamp(min=1)
        if self.mode == "node":
            return outgoing
        if self.mode == "walk":
            return None
        src, dst = (ends.long() for ends in g.edges())
        found: Tensor = 1 / g.in_degrees().double().clamp(min=1)[dst] + 1 / outgoing[src]
        return found


class ShaDowKHopSampler(DGLSampler):
    """The subgraph of the seeds and of the neighbours that are drawn for them: `sample(g, seeds)` gives (nodes, seeds,
    subgraph), seeds first (Zeng et al., "Decoupling the Depth and Scope of Graph Neural Networks", 2021).

    `fanouts`: as those of `NeighborSampler`; the last is that of the seeds. `replace`: whether an edge may be drawn
    again. `prob`: a field of edges to which chances are proportional. The other arguments decide nothing.
    """

    def __init__(
        self,
        fanouts: Sequence[Fanout],
        replace: bool = False,
        prob: str | None = None,
        prefetch_node_feats: object = None,
        prefetch_edge_feats: object = None,
        output_device: Device | None = None,
    ) -> None:
        self.fanouts, self.replace, self.prob, self.output_device = list(fanouts), replace, prob, output_device

    def sample(self, g: DGLGraph, seed_nodes: object, exclude_eids: object = None) -> tuple[object, object, DGLGraph]:
        """(nodes of the subgraph, `seed_nodes`, subgraph). `exclude_eids`: edges that are not drawn, and that the
        subgraph does not have."""
        nodes = seed_nodes
        for fanout in reversed(self.fanouts):
            drawn = sample_neighbors(
                g, nodes, fanout, replace=self.replace, prob=self.prob, exclude_edges=exclude_eids, copy_ndata=False,
                copy_edata=False,
            )  # fmt: skip
            nodes = to_block(drawn, nodes).srcdata[NID]
        sub = g.subgraph(nodes)
        if exclude_eids is not None:
            sub = _without(sub, _by_relation(g, exclude_eids))
        return nodes, seed_nodes, on_device(sub, self.output_device)


class LaborSampler(DGLBlockSampler):
    """Layer-neighbour sampling: seeds that have a neighbour in common tend to draw the same, so that a batch has fewer
    nodes: `sample(g, seeds)` gives (input nodes, output nodes, blocks) as `NeighborSampler` does.

    Each node j has a number r_j, and a seed takes its `fanout` sources with the smallest. Numbers are drawn anew for
    each batch and layer, or with `layer_dependency` for each batch. `fanouts`: as those of `NeighborSampler`. Source:
    Balin and Catalyurek, "Layer-Neighbor Sampling: Defusing Neighborhood Explosion in GNNs", NeurIPS 2023, LABOR-0 of
    section 3.2, with a fixed number of draws (appendix A.3). DataError for what is not written here: outgoing edges,
    `prob`, `importance_sampling` and `batch_dependency`.
    """

    def __init__(
        self, fanouts: Sequence[Fanout], edge_dir: str = "in", prob: str | None = None, importance_sampling: int = 0,
        layer_dependency: bool = False, batch_dependency: int = 1, prefetch_node_feats: object = None,
        prefetch_labels: object = None, prefetch_edge_feats: object = None, output_device: Device | None = None,
    ) -> None:  # fmt: skip
        wanted = {"edge_dir": "in", "prob": None, "importance_sampling": 0, "batch_dependency": 1}
        given = {
            "edge_dir": edge_dir, "prob": prob, "importance_sampling": importance_sampling,
            "batch_dependency": batch_dependency,
        }  # fmt: skip
        for name, value in given.items():
            if value != wanted[name]:
                raise DataError(f"LaborSampler: {name} must be {wanted[name]!r} (got {value!r}). Use NeighborSampler.")
        super().__init__(prefetch_node_feats, prefetch_labels, prefetch_edge_feats, output_device)
        self.fanouts, self.layer_dependency = list(fanouts), layer_dependency

    def sample_blocks(
        self, g: DGLGraph, seed_nodes: object, exclude_eids: object = None
    ) -> tuple[object, object, list[DGLBlock]]:
        """(input nodes, output nodes, blocks) of `seed_nodes`, ids or type -> ids. `exclude_eids`: edges that no block
        has."""
        excluded = _by_relation(g, exclude_eids)
        nodes, blocks, key = seed_nodes, list[DGLBlock](), drawn_key()
        for fanout in reversed(self.fanouts):
            drawn = _smallest_sources(g, long_ids(nodes), fanout, key, excluded)
            block = to_block(drawn, nodes)
            for relation in block.canonical_etypes:
                data = block.edges[relation].data
                data[EID] = drawn.edges[relation].data[EID][data[EID].long()]
            nodes = block.srcdata[NID]
            blocks.insert(0, block)
            key = key if self.layer_dependency else drawn_key()
        last = len(blocks) - 1
        blocks = [with_fields(g, block, i == 0, i == last) for i, block in enumerate(blocks)]
        return nodes, seed_nodes, [on_device(block, self.output_device) for block in blocks]


def _smallest_sources(
    g: DGLGraph,
    seeds: IdsByType,
    fanout: Fanout,
    key: int,
    excluded: Mapping[CanonicalEtype, Tensor],
) -> DGLGraph:
    """All nodes of `g`, with the `fanout` incoming edges of each seed whose sources have the smallest numbers. '_ID' of
    an edge is its number in `g`."""
    given = transform.by_ntype(g, seeds)
    found = {}
    for relation in g.canonical_etypes:
        most = fanout.get(relation, fanout.get(relation[1], 0)) if isinstance(fanout, Mapping) else fanout
        into = given.get(relation[2], torch.empty(0, dtype=torch.long)).to(g.idtype)
        src, dst, eid = (x.long() for x in g.in_edges(into, "all", etype=relation))
        if relation in excluded:
            kept = ~torch.isin(eid, excluded[relation])
            src, dst, eid = src[kept], dst[kept], eid[kept]
        if most >= 0:
            eid = eid[_smallest(dst, _numbers(src, key + g.get_ntype_id(relation[0])), most)]
        found[relation] = eid
    return edges_of(g, found, False, False, None)


def _smallest(dst: Tensor, r: Tensor, most: int) -> Tensor:
    """The places of the `most` smallest of r for each destination, in rising order."""
    order = torch.argsort(r, stable=True)
    order = order[torch.argsort(dst[order], stable=True)]
    group = dst[order]
    rank = torch.arange(len(order), device=dst.device) - torch.searchsorted(group, group)
    return order[rank < most].sort().values


def _numbers(ids: Tensor, key: int) -> Tensor:
    """int64 numbers that are a function of each id and the key, uniform over all 64 bits (Steele et al., "Fast
    Splittable Pseudorandom Number Generators", 2014, the mixing function of SplitMix64)."""
    x = ids * _signed(0x9E3779B97F4A7C15) + _signed(key * 0xD1B54A32D192ED03)
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """The bits of x moved right, with zeros from the left."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(number: int) -> int:
    """The lowest 64 bits as a signed number."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


def _by_relation(g: DGLGraph, eids: object) -> dict[CanonicalEtype, Tensor]:
    return {key: torch.as_tensor(x).long() for key, x in transform.by_relation(g, eids).items()}


def _without(sub: DGLGraph, excluded: Mapping[CanonicalEtype, Tensor]) -> DGLGraph:
    """A subgraph without the edges that have these numbers in the whole graph, '_ID'."""
    for relation, eids in excluded.items():
        there = torch.isin(sub.edges[relation].data[EID].long(), eids)
        sub = remove_edges(sub, there.nonzero().squeeze(1).to(sub.idtype), relation)
    return sub
