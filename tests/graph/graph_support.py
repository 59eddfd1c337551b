"""Graphs of the awkward zoo for tests of `graphweave.Graph`."""

from __future__ import annotations

import torch
from torch import Tensor

import graphweave
from graphweave.graph.graph import Graph
from tests.programs.graphs import EdgeList, zoo

ZOO = zoo()
SQUARE = [edges for edges in ZOO if edges.square]


def name_of(value: object) -> str | None:
    return value.name if isinstance(value, EdgeList) else None


def homogeneous(edges: EdgeList, dtype: torch.dtype = torch.int64) -> Graph:
    """The graph has fields on every row: `x` float32 [N, 3], `mark` int64 [N], and on edges `w` float32 [E]."""
    g = graphweave.graph((edges.src.to(dtype), edges.dst.to(dtype)), num_nodes=edges.num_src)
    g.ndata["x"], g.ndata["mark"] = signed(edges.num_src, 3), torch.arange(edges.num_src)
    g.edata["w"] = signed(edges.src.numel())
    return g


def bipartite(edges: EdgeList, dtype: torch.dtype = torch.int64) -> Graph:
    """user -buys-> item, with the fields of `homogeneous`."""
    relation = {("user", "buys", "item"): (edges.src.to(dtype), edges.dst.to(dtype))}
    g = graphweave.heterograph(relation, {"user": edges.num_src, "item": edges.num_dst})
    g.srcdata["x"], g.dstdata["x"] = signed(edges.num_src, 3), signed(edges.num_dst, 3, seed=1)
    g.edata["w"] = signed(edges.src.numel())
    return g


def typed(dtype: torch.dtype = torch.int64) -> Graph:
    """Three node types, four relations, one of them without edges; names of relations repeat."""
    index = {
        ("user", "follows", "user"): ([0, 1, 1, 3], [1, 2, 2, 3]),
        ("user", "rates", "item"): ([0, 4, 2], [1, 1, 0]),
        ("item", "rates", "user"): ([1, 0], [0, 2]),
        ("shop", "sells", "item"): ([], []),
    }
    data = {key: (torch.tensor(u, dtype=dtype), torch.tensor(v, dtype=dtype)) for key, (u, v) in index.items()}
    g = graphweave.heterograph(data, {"user": 5, "item": 3, "shop": 2})
    for i, ntype in enumerate(g.ntypes):
        g.nodes[ntype].data["x"] = signed(g.num_nodes(ntype), 2, seed=i)
    g.nodes["user"].data["age"] = torch.arange(5)
    for i, etype in enumerate(g.canonical_etypes):
        g.edges[etype].data["w"] = signed(g.num_edges(etype), seed=10 + i)
    return g


def signed(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
