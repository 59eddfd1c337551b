"""`dgl.partition`: the parts of a graph that METIS finds."""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave import sampling
from graphweave.core.errors import DataError
from graphweave.dgl.graph import DGLGraph
from graphweave.graph.frame import NID
from graphweave.graph.transform import edge_subgraph

__all__ = ["metis_partition", "metis_partition_assignment"]


def metis_partition_assignment(
    g: object,
    k: int,
    balance_ntypes: object = None,
    balance_edges: bool = False,
    mode: str = "k-way",
    objtype: str = "cut",
) -> Tensor:
    """The part of each node, int64 [N], below `k`: by METIS where `pymetis` is installed, else by label propagation.

    `mode` and `objtype` are DGL's and decide nothing. The random numbers are of seed 0, so that equal graphs have equal
    parts. DataError for `balance_ntypes` and `balance_edges`, and where there are fewer nodes than parts.
    """
    if balance_ntypes is not None or balance_edges:
        raise DataError(
            f"expected balance_ntypes=None and balance_edges=False (got {balance_ntypes!r}, {balance_edges!r})."
            " Leave both out: parts have equal numbers of nodes."
        )
    return sampling.ClusterSampler(g, k).labels


def metis_partition(
    g: DGLGraph, k: int, extra_cached_hops: int = 0, reshuffle: bool = False, balance_ntypes: object = None,
    balance_edges: bool = False, mode: str = "k-way",
) -> dict[int, DGLGraph]:  # fmt: skip
    """Part -> the subgraph of its nodes, with the edges between them.

    With `extra_cached_hops`, also the nodes from which as many edges lead to the part's, and the edges into all but the
    outermost. Nodes and edges have their numbers in `g` as '_ID', the part's own nodes come first, and `inner_node` and
    `part_id` say whose a node is. DataError for `reshuffle`.
    """
    if reshuffle:
        raise DataError("reshuffle=True is not supported. Use the '_ID' of nodes, their numbers in the whole graph.")
    parts = metis_partition_assignment(g, k, balance_ntypes, balance_edges, mode)
    src, dst = (x.long() for x in g.edges())
    found = {}
    for part in range(k):
        inner = parts == part
        read, known = inner, inner
        for hop in range(extra_cached_hops):
            read = known if hop else inner
            known = known.clone().index_fill(0, src[read[dst]], True)
        edges = (known[src] & known[dst]) if not extra_cached_hops else read[dst]
        nodes = torch.cat([inner.nonzero().squeeze(1), (known & ~inner).nonzero().squeeze(1)])
        found[part] = _part(g, nodes, edges.nonzero().squeeze(1), parts, part)
    return found


def _part(g: DGLGraph, nodes: Tensor, edges: Tensor, parts: Tensor, part: int) -> DGLGraph:
    kept = edge_subgraph(g, edges.to(g.idtype), relabel_nodes=False)
    out = kept.subgraph(nodes.to(g.idtype))
    out.edata[NID] = edges.to(g.idtype)[out.edata[NID].long()]
    out.ndata["part_id"] = parts[nodes]
    out.ndata["inner_node"] = (parts[nodes] == part).to(torch.int32)
    return out
