"""`to_block`: the edges of a graph as a bipartite graph between the nodes that they read and the nodes they reach."""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.dgl.block import DGLBlock, make_block
from graphweave.dgl.graph import DGLGraph
from graphweave.graph import query, transform
from graphweave.graph.frame import EID, NID


def to_block(
    g: DGLGraph, dst_nodes: object = None, include_dst_in_src: bool = True, src_nodes: object = None
) -> DGLBlock:
    """A block with the edges of g, in their order.

    `dst_nodes`: the destination nodes in their order, or type -> nodes, which leaves out the
    edges to other types; None: the nodes at which edges end, increasing.
    With `include_dst_in_src` the first source nodes are the destination nodes, in the same order, and the others follow
    as they first occur. `src_nodes`: the source nodes instead. Fields are kept, and '_ID' holds the numbers that nodes
    and edges have in g.
    DataError if `dst_nodes` lacks a node at which an edge ends, or `src_nodes` one at which an edge starts.
    """
    ends: dict[str, list[Tensor]] = {t: [] for t in g.node_frames}
    starts: dict[str, list[Tensor]] = {t: [] for t in g.node_frames}
    given_dst, given_src = _by_type(g, dst_nodes), _by_type(g, src_nodes)
    kept_edges = {
        key: slice(0) if given_dst and r.dsttype not in given_dst else slice(None) for key, r in g.relations.items()
    }
    for key, r in g.relations.items():
        ends[r.dsttype].append(r.dst[kept_edges[key]])
        starts[r.srctype].append(r.src[kept_edges[key]])
    place: list[dict[str, Tensor]] = [{}, {}]
    kept: list[dict[str, Tensor]] = [{}, {}]
    for t in g.node_frames:
        none = g.any_index().new_empty(0)
        met, read = torch.cat([none, *ends[t]]), torch.cat([none, *starts[t]])
        dst = torch.unique(met) if dst_nodes is None else given_dst.get(t, none)
        src = given_src[t] if t in given_src else _in_order(torch.cat([dst, read]) if include_dst_in_src else read)
        for side, nodes, used, name in ((0, src, read, "src_nodes"), (1, dst, met, "dst_nodes")):
            number = torch.full((g.node_frames[t].num_rows,), -1, dtype=g.idtype, device=g.device)
            number[nodes.long()] = torch.arange(nodes.shape[0], dtype=g.idtype, device=g.device)
            if used.numel() and int(number[used.long()].min()) < 0:
                missing = int(used[(number[used.long()] < 0)][0])
                raise DataError(f"to_block: {name} lacks node {missing} of type {t!r}, which an edge has. Add it.")
            place[side][t], kept[side][t] = number, nodes
    edges, edata = {}, {}
    for key, r in g.relations.items():
        rows = torch.arange(r.num_edges, device=g.device)[kept_edges[key]]
        edges[key] = place[0][r.srctype][r.src[rows].long()], place[1][r.dsttype][r.dst[rows].long()]
        edata[key] = {**g.edge_frames[key].take(rows), EID: rows.to(g.idtype)}
    data = [{t: {**g.node_frames[t].take(nodes), NID: nodes} for t, nodes in side.items()} for side in kept]
    sizes = [{t: nodes.shape[0] for t, nodes in side.items()} for side in kept]
    return make_block(sizes[0], sizes[1], edges, data[0], data[1], edata)


def _by_type(g: DGLGraph, nodes: object) -> dict[str, Tensor]:
    given, like = transform.by_ntype(g, nodes), g.any_index()
    return {t: query.as_selection(x, g.node_frame(t).num_rows, like, "node") for t, x in given.items()}


def _in_order(ids: Tensor) -> Tensor:
    """The distinct ids, in the order in which they first occur."""
    values, inverse = torch.unique(ids, return_inverse=True)
    first = torch.full((values.shape[0],), ids.shape[0], device=ids.device)
    first = first.scatter_reduce(0, inverse, torch.arange(ids.shape[0], device=ids.device), "amin")
    return values[torch.argsort(first)]
