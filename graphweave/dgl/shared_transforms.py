"""Functions that make a graph from a graph, where `graphweave` has them with DGL's meaning."""

from graphweave.graph.hetero import to_heterogeneous, to_homogeneous
from graphweave.graph.transform import (
    add_self_loop,
    edge_subgraph,
    in_subgraph,
    out_subgraph,
    remove_self_loop,
    reverse,
    to_bidirected,
)
from graphweave.graph.transform import subgraph as node_subgraph

__all__ = [
    "add_self_loop",
    "edge_subgraph",
    "in_subgraph",
    "node_subgraph",
    "out_subgraph",
    "remove_self_loop",
    "reverse",
    "to_bidirected",
    "to_heterogeneous",
    "to_homogeneous",
]
