"""Graphs of walks: line graphs, k-hop graphs, metapaths, and the nodes and edges within k hops of some nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.dgl.construct import heterograph
from graphweave.dgl.distinct import distinct_edges
from graphweave.dgl.graph import DGLGraph
from graphweave.graph import query, transform
from graphweave.graph.argument_types import Device
from graphweave.graph.assemble import assemble, counts
from graphweave.graph.relation import Etype, Relation
from graphweave.graph.structure import G


def join_edges(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], num_mid: int) -> tuple[Tensor, Tensor]:
    """All pairs of an edge of `first` and one of `second` that starts where it ends, as positions (i, j), ordered by i,
    then by j."""
    begins = second[0].long()
    order = torch.argsort(begins, stable=True)
    degree = torch.bincount(begins, minlength=num_mid)
    start = degree.cumsum(0) - degree
    mid = first[1].long()
    many = degree[mid]
    i = torch.repeat_interleave(torch.arange(len(mid), device=mid.device), many)
    within = torch.arange(len(i), device=mid.device) - torch.repeat_interleave(many.cumsum(0) - many, many)
    return i, order[start[mid][i] + within]


def line_graph(g: G, backtracking: bool = True, shared: bool = False) -> G:
    """A graph whose nodes are the edges of g, with an edge from e to f where f starts at the node at which e ends.

    Without `backtracking`, not where f leads back to the start of e. With `shared`, its nodes have the fields of g's
    edges. DataError if g has several relations, or one that joins two node types.
    """
    r = one_relation(g, "line_graph")
    e, f = join_edges((r.src, r.dst), (r.src, r.dst), g.num_destinations(r))
    if not backtracking:
        keep = r.src[e] != r.dst[f]
        e, f = e[keep], f[keep]
    line = Relation(*r.key, e.to(g.idtype), f.to(g.idtype))
    ndata = {r.srctype: g.edge_frames[r.key].take(None)} if shared else None
    return assemble(type(g), {r.srctype: r.num_edges}, {r.key: line}, ndata)


def khop_graph(g: G, k: int, *, copy_ndata: bool = True) -> G:
    """The graph with an edge u -> v for each walk of k edges from u to v. k = 0: an edge v -> v for each node."""
    r = one_relation(g, "khop_graph")
    nodes = torch.arange(g.num_destinations(r), dtype=g.idtype, device=g.device)
    src, dst = nodes, nodes
    for _ in range(k):
        i, j = join_edges((src, dst), (r.src, r.dst), len(nodes))
        src, dst = src[i], r.dst[j]
    order = torch.argsort(src.long() * max(len(nodes), 1) + dst.long(), stable=True)
    walks = Relation(*r.key, src[order], dst[order])
    return transform.replace_edges(g, {r.key: walks}, ndata=None if copy_ndata else {})


def khop_adj(g: G, k: int) -> Tensor:
    """The numbers of walks of k edges from u to v, float32 [N, N] at (u, v)."""
    walks = khop_graph(g, k, copy_ndata=False)
    (r,) = walks.relations.values()
    num = walks.num_destinations(r)
    out = torch.zeros((num, num), device=g.device)
    return out.index_put((r.src.long(), r.dst.long()), torch.ones(r.num_edges, device=g.device), accumulate=True)


def metapath_reachable_graph(g: DGLGraph, metapath: Sequence[Etype]) -> DGLGraph:
    """A graph with one edge u -> v wherever a walk along the relations of `metapath`, one after the other, leads from u
    to v. Nodes have the fields that they have in g. DataError where a relation does not start where the last ends."""
    keys = [g.to_canonical_etype(etype) for etype in metapath]
    for before, after in pairwise(keys):
        if before[2] != after[0]:
            raise DataError(
                f"metapath_reachable_graph: {after} does not start at {before[2]!r}, where {before} ends."
                " Name relations that follow each other."
            )
    first = g.relations[keys[0]]
    src, dst = first.src, first.dst
    for key in keys[1:]:
        r = g.relations[key]
        i, j = join_edges((src, dst), (r.src, r.dst), g.num_sources(r))
        src, dst, _ = distinct_edges(src[i], r.dst[j], g.num_destinations(r))
    ntypes = dict.fromkeys((keys[0][0], keys[-1][2]))
    src, dst, _ = distinct_edges(src, dst, g.node_frames[keys[-1][2]].num_rows)
    sizes = {t: g.node_frames[t].num_rows for t in ntypes}
    out = heterograph({(keys[0][0], "_E", keys[-1][2]): (src, dst)}, sizes)
    for t in ntypes:
        for name, x in g.node_frames[t].items():
            out.nodes[t].data[name] = x
    return out


def khop_in_subgraph(
    g: DGLGraph,
    nodes: object,
    k: int,
    *,
    relabel_nodes: bool = True,
    store_ids: bool = True,
    output_device: Device | None = None,
) -> Any:
    """The nodes from which at most k edges lead to `nodes`, and all edges between them.

    `nodes`: an id, ids, or node type -> ids. With `relabel_nodes`, also returns where `nodes` are among the nodes that
    are kept, by type as `nodes` are; the kept nodes are in the order of their numbers, and edges
    are sorted by source.
    """
    return _within(g, nodes, k, inwards=True, relabel=relabel_nodes, store_ids=store_ids, device=output_device)


def khop_out_subgraph(
    g: DGLGraph,
    nodes: object,
    k: int,
    *,
    relabel_nodes: bool = True,
    store_ids: bool = True,
    output_device: Device | None = None,
) -> Any:
    """Like `khop_in_subgraph`, along edges that start in `nodes`."""
    return _within(g, nodes, k, inwards=False, relabel=relabel_nodes, store_ids=store_ids, device=output_device)


def _within(
    g: DGLGraph, nodes: object, k: int, *, inwards: bool, relabel: bool, store_ids: bool, device: Device | None
) -> Any:
    by_type = nodes if isinstance(nodes, Mapping) else None
    if by_type is None and len(g.node_frames) > 1:
        raise DataError(
            f"the graph has the node types {', '.join(g.node_frames)}; expected a dict of type -> ids. Name them."
        )
    given = {next(iter(g.node_frames)): nodes} if by_type is None else dict(by_type)
    like, near = g.any_index(), {t: torch.zeros(n, dtype=torch.bool) for t, n in counts(g).items()}
    near = {t: x.to(g.device) for t, x in near.items()}
    seeds = {}
    for t, ids in given.items():
        seeds[t] = query.as_selection([ids] if isinstance(ids, int) else ids, len(near[t]), like, "node").long()
        near[t][seeds[t]] = True
    for _ in range(k):
        grown = {t: x.clone() for t, x in near.items()}
        for r in g.relations.values():
            ends, starts = (r.dst, r.src) if inwards else (r.src, r.dst)
            walked = near[r.dsttype if inwards else r.srctype][ends.long()]
            grown[r.srctype if inwards else r.dsttype][starts[walked].long()] = True
        near = grown
    kept = {t: x.nonzero().squeeze(1).to(g.idtype) for t, x in near.items()}
    out = transform.subgraph(g, kept, relabel_nodes=relabel, store_ids=store_ids)
    out = out if device is None else out.to(device)
    if not relabel:
        return out
    found = {t: (near[t].cumsum(0) - 1)[ids] for t, ids in seeds.items()}
    return out, next(iter(found.values())) if by_type is None else found


def one_relation(g: G, what: str) -> Relation:
    """The relation of a graph that has one, between nodes of one type."""
    if len(g.relations) != 1 or len(g.node_frames) != 1:
        raise DataError(
            f"{what}: expected a graph with one node type and one relation (got {g!r}). Take out one: g[etype]."
        )
    return next(iter(g.relations.values()))
