"""Graphs as weighted matrices: `adj_product_graph`, `adj_sum_graph`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.dgl.construct import heterograph
from graphweave.dgl.distinct import distinct_edges
from graphweave.dgl.graph import DGLGraph
from graphweave.dgl.hops import join_edges


def adj_product_graph(a: DGLGraph, b: DGLGraph, weight_name: str, etype: str = "_E") -> DGLGraph:
    """The graph with an edge u -> w wherever a has u -> v and b has v -> w, of weight sum over v of a[u, v] b[v, w].

    `weight_name`: the edge field of weights [num_edges] in both graphs and in the result; gradients flow to both.
    DataError if the nodes at which a's edges end are not as many as those at which b's start.
    """
    r, s = a.relation(None), b.relation(None)
    if a.num_destinations(r) != b.num_sources(s):
        raise DataError(
            f"adj_product_graph: a's edges end in {a.num_destinations(r)} nodes, b's start in {b.num_sources(s)}."
            " Pass graphs that fit."
        )
    i, j = join_edges((r.src, r.dst), (s.src, s.dst), b.num_sources(s))
    weight = a.edge_frames[r.key][weight_name][i] * b.edge_frames[s.key][weight_name][j]
    sizes = a.num_sources(r), b.num_destinations(s)
    return _weighted(r.src[i], s.dst[j], weight, (r.srctype, s.dsttype), sizes, weight_name, etype)


def adj_sum_graph(graphs: Sequence[DGLGraph], weight_name: str) -> DGLGraph:
    """The graph with an edge wherever one of the graphs has one, whose weight is the sum of theirs.

    DataError for no graphs, or for graphs of different sizes or types.
    """
    relations = [g.relation(None) for g in graphs]
    if not relations:
        raise DataError("adj_sum_graph: expected one graph at least (got none). Pass a list of graphs.")
    sizes = {(g.num_sources(r), g.num_destinations(r)) for g, r in zip(graphs, relations, strict=True)}
    if len({r.key for r in relations}) > 1 or len(sizes) > 1:
        raise DataError("adj_sum_graph: graphs must have the same types and as many nodes. Make them alike.")
    first = relations[0]
    src, dst = torch.cat([r.src for r in relations]), torch.cat([r.dst for r in relations])
    weight = torch.cat([g.edge_frames[r.key][weight_name] for g, r in zip(graphs, relations, strict=True)])
    (size,) = sizes
    return _weighted(src, dst, weight, (first.srctype, first.dsttype), size, weight_name, first.etype)


def _weighted(
    src: Tensor, dst: Tensor, weight: Tensor, ntypes: tuple[str, str], sizes: tuple[int, int], name: str, etype: str
) -> DGLGraph:
    u, v, place = distinct_edges(src, dst, sizes[1])
    out = heterograph({(ntypes[0], etype, ntypes[1]): (u, v)}, dict(zip(ntypes, sizes, strict=True)))
    out.edata[name] = weight.new_zeros(len(u)).index_add(0, place, weight)
    return out
