"""`dgl.sampling`: random walks, sampled and strongest neighbours, negative edges, and the neighbours of PinSAGE.

All draws come from PyTorch's generator, so that `torch.manual_seed` and `dgl.seed` make them repeatable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from graphweave import sampling
from graphweave.core.errors import DataError
from graphweave.dgl.block import DST
from graphweave.dgl.construct import heterograph
from graphweave.dgl.distinct import to_simple
from graphweave.dgl.graph import DGLGraph, on_device
from graphweave.dgl.walks import node2vec_random_walk, pack_traces, random_walk
from graphweave.graph import transform
from graphweave.graph.argument_types import Device
from graphweave.graph.frame import EID
from graphweave.graph.relation import CanonicalEtype, Etype
from graphweave.sampling.blocks import Fanout

__all__ = [
    "PinSAGESampler", "RandomWalkNeighborSampler", "global_uniform_negative_sampling", "node2vec_random_walk",
    "pack_traces", "random_walk", "sample_neighbors", "select_topk",
]  # fmt: skip

_ENOUGH = 1.3
"""Drawn pairs for each that is wanted, where some are left out afterwards."""


def sample_neighbors(
    g: DGLGraph, nodes: object, fanout: Fanout, edge_dir: str = "in", prob: str | None = None, replace: bool = False,
    copy_ndata: bool = True, copy_edata: bool = True, exclude_edges: object = None, output_device: Device | None = None,
) -> DGLGraph:  # fmt: skip
    """All nodes of `g`, with the incoming edges ("out": the outgoing) that each of `nodes` draws; '_ID' of an edge is
    its number in `g`.

    `nodes`: ids, or type -> ids. `fanout`: edges for each node, or relation -> edges; -1 for all. `prob`: a field of
    edges to which chances are proportional. `replace`: whether an edge may be drawn again. `exclude_edges`: edges that
    are not drawn. DataError for another `edge_dir`.
    """
    seeds = _by_type(g, nodes)
    way = _towards(g, edge_dir)
    sampler = sampling.BlockSampler(way, [fanout], seed=int(torch.randint(2**31, ())), replace=replace, prob=prob)
    block = sampler.sample({t: x for t, x in seeds.items() if x.numel()}, exclude=exclude_edges)[2][0]
    found = {}
    for (start, name, end), frame in block.edge_frames.items():
        key = (start, name, end.removesuffix(DST))
        found[key if edge_dir == "in" else key[::-1]] = frame[EID].long()
    return edges_of(g, found, copy_ndata, copy_edata, output_device)


def select_topk(
    g: DGLGraph, k: object, weight: str, nodes: object = None, *, edge_dir: str = "in", ascending: bool = False,
    copy_ndata: bool = True, copy_edata: bool = True, output_device: Device | None = None,
) -> DGLGraph:  # fmt: skip
    """All nodes of `g`, with the `k` incoming edges ("out": the outgoing) of each of `nodes` (None: all) whose field
    `weight` is largest, or smallest if `ascending`; '_ID' of an edge is its number in `g`.

    `k`: a number, or relation -> number; -1 for all. Of equal weights, the edge with the smaller number is first.
    DataError for another `edge_dir`, or a weight with other than one number an edge.
    """
    if edge_dir not in ("in", "out"):
        raise DataError(f"edge_dir must be 'in' or 'out' (got {edge_dir!r}). Pass one of them.")
    chosen = None if nodes is None else _by_type(g, nodes)
    limits = {g.to_canonical_etype(e): n for e, n in k.items()} if isinstance(k, Mapping) else {}
    found = {}
    for key in g.canonical_etypes:
        src, dst = (ends.long() for ends in g.all_edges(etype=key))
        ends, kind = (dst, key[2]) if edge_dir == "in" else (src, key[0])
        values = g.edge_frame(key)[weight].reshape(len(ends), -1)
        if len(ends) and values.shape[1] != 1:
            raise DataError(f"weight: expected one number an edge in {weight!r} (got {values.shape[1]}). Name another.")
        kept = _strongest(ends, values.reshape(-1), limits.get(key, -1 if limits else k), ascending)
        if chosen is not None:
            kept = kept[torch.isin(ends[kept], chosen.get(kind, ends.new_empty(0)))]
        found[key] = kept
    return edges_of(g, found, copy_ndata, copy_edata, output_device)


def global_uniform_negative_sampling(
    g: DGLGraph,
    num_samples: int,
    exclude_self_loops: bool = True,
    replace: bool = False,
    etype: Etype | None = None,
    redundancy: float | None = None,
) -> tuple[Tensor, Tensor]:
    """(sources, destinations) of at most `num_samples` pairs of nodes that no edge of the relation joins, each equally
    likely. `redundancy`: how many more pairs are drawn, as a share, where self-loops or repeated pairs are left out."""
    extra = _ENOUGH if redundancy is None else 1 + redundancy
    picky = exclude_self_loops or not replace
    drawn = sampling.NegativeSampler(g, etype=etype, seed=int(torch.randint(2**31, ())))
    src, dst = drawn.pairs(int(num_samples * extra) + 1 if picky else num_samples)
    if exclude_self_loops:
        apart = src != dst
        src, dst = src[apart], dst[apart]
    if not replace:
        several = g.num_nodes(g.to_canonical_etype(etype)[2])
        keys = (src * several + dst).unique()
        keys = keys[torch.randperm(len(keys))]
        src, dst = keys // several, keys % several
    return src[:num_samples].to(g.idtype), dst[:num_samples].to(g.idtype)


class RandomWalkNeighborSampler:
    """The neighbours of a node are the `num_neighbors` nodes that `num_random_walks` walks from it visit most (Ying et
    al., "Graph Convolutional Neural Networks for Web-Scale Recommender Systems", 2018, section 3.1).

    A walk goes along `metapath`, which leads back to the type where it begins, at most `num_traversals` times, and
    ends with the chance `termination_prob` after each. `metapath` is None for the only relation of a graph.
    """

    def __init__(
        self, G: DGLGraph, num_traversals: int, termination_prob: float, num_random_walks: int, num_neighbors: int,
        metapath: Sequence[Etype] | None = None, weight_column: str = "weights",
    ) -> None:  # fmt: skip
        self.G, self.weight_column, self.num_traversals = G, weight_column, num_traversals
        self.termination_prob, self.num_random_walks = termination_prob, num_random_walks
        self.num_neighbors = num_neighbors
        keys = [G.to_canonical_etype(e) for e in ([None] if metapath is None else metapath)]
        if keys[0][0] != keys[-1][2]:
            raise DataError(
                f"metapath: expected one that leads back to {keys[0][0]!r} (got one to {keys[-1][2]!r}). Add the"
                " relations back."
            )
        self.metapath, self.ntype = keys, keys[0][0]

    def __call__(self, seed_nodes: object) -> DGLGraph:
        """A graph of all nodes of the type, with an edge from each neighbour to its seed; the field `weight_column`
        says how many visits it stands for."""
        seeds = torch.as_tensor(seed_nodes).long().view(-1).repeat_interleave(self.num_random_walks)
        here, to = seeds, seeds
        src, dst = [], []
        for _ in range(self.num_traversals):
            if not here.numel():
                break
            end = random_walk(self.G, here, metapath=self.metapath)[0][:, -1]
            here, to = end[end >= 0], to[end >= 0]
            src.append(here)
            dst.append(to)
            goes_on = torch.rand(len(here)) >= self.termination_prob
            here, to = here[goes_on], to[goes_on]
        none = seeds.new_empty(0)
        ends = torch.cat([none, *src]).to(self.G.idtype), torch.cat([none, *dst]).to(self.G.idtype)
        visited = heterograph({(self.ntype, "_E", self.ntype): ends}, {self.ntype: self.G.num_nodes(self.ntype)})
        counted = to_simple(visited, return_counts=self.weight_column)
        out = select_topk(counted, self.num_neighbors, self.weight_column)
        out.edata.pop(EID)
        return out


class PinSAGESampler(RandomWalkNeighborSampler):
    """`RandomWalkNeighborSampler` for nodes of `ntype`, joined with nodes of `other_type` by a relation in each
    direction. DataError if a direction has no relation."""

    def __init__(
        self, G: DGLGraph, ntype: str, other_type: str, num_traversals: int, termination_prob: float,
        num_random_walks: int, num_neighbors: int, weight_column: str = "weights",
    ) -> None:  # fmt: skip
        path = []
        for start, end in ((ntype, other_type), (other_type, ntype)):
            between = [key for key in G.canonical_etypes if (key[0], key[2]) == (start, end)]
            if not between:
                raise DataError(f"expected a relation from {start!r} to {end!r} (got none). Add reversed edges.")
            path.append(between[0])
        super().__init__(G, num_traversals, termination_prob, num_random_walks, num_neighbors, path, weight_column)


def _by_type(g: DGLGraph, nodes: object) -> dict[str, Tensor]:
    return {t: torch.as_tensor(x).long().view(-1) for t, x in transform.by_ntype(g, nodes).items()}


def _towards(g: DGLGraph, edge_dir: str) -> DGLGraph:
    if edge_dir not in ("in", "out"):
        raise DataError(f"edge_dir must be 'in' or 'out' (got {edge_dir!r}). Pass one of them.")
    return g if edge_dir == "in" else g.reverse(copy_ndata=False, copy_edata=True)


def _strongest(ends: Tensor, weight: Tensor, k: int, ascending: bool) -> Tensor:
    """The numbers of the k edges of each end that come first by weight, in rising order."""
    if k < 0:
        return torch.arange(len(ends))
    by_weight = torch.argsort(weight, descending=not ascending, stable=True)
    order = by_weight[torch.argsort(ends[by_weight], stable=True)]
    counts = torch.bincount(ends) if len(ends) else ends
    first = (counts.cumsum(0) - counts)[ends[order]]
    return order[torch.arange(len(order)) - first < k].sort().values


def edges_of(
    g: DGLGraph, found: Mapping[CanonicalEtype, Tensor], copy_ndata: bool, copy_edata: bool, device: Device | None
) -> DGLGraph:
    out = g.edge_subgraph(dict(found), relabel_nodes=False)
    for t in () if copy_ndata else out.ntypes:
        for name in list(out.node_frames[t]):
            del out.node_frames[t][name]
    for key in () if copy_edata else out.canonical_etypes:
        for name in [n for n in out.edge_frames[key] if n != EID]:
            del out.edge_frames[key][name]
    return on_device(out, device)
