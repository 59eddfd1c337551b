"""`Graph`: nodes and edges of one or several types, with data, whose structure does not change."""

from __future__ import annotations

import torch

from graphweave.graph import convert_to, hetero, messaging, transform
from graphweave.graph.structure import G, Structure
from graphweave.graph.views import EdgeView, NodeView


class Graph(Structure):
    """A graph with the names and semantics of DGL's, made by `graphweave.graph`, `heterograph`, `batch` or `from_...`.

    Edges keep the order in which they were given, and edge e has number e. Nodes and edges have types; a homogeneous
    graph has one of each, "_N" and "_E". A node type `ntype` or relation `etype` may be left out only if the graph has
    no other (DataError otherwise). A relation is given by its name, if no other relation has it, or by (source type,
    name, destination type). Methods take ids as an integer, a list, an array or a tensor of integers, and raise
    IndexRangeError for an id that the graph does not have. They return ids of the graph's `idtype`.

    Compiled functions take graphs just as they take tensors. Sizes are read from tensors, so that one compilation
    serves graphs of all sizes. Index tensors are shared with the caller who passed them in and with the compiler's
    caches, so they must not be edited.
    """

    # Nodes and edges

    @property
    def nodes(self) -> NodeView:
        """`g.nodes(ntype)` returns ids [num_nodes]; `g.nodes[ntype].data` holds the fields of the type."""
        return NodeView(self, tuple(self.node_frames))

    @property
    def srcnodes(self) -> NodeView:
        """Like `nodes`, for the node types at which edges start."""
        return NodeView(self, self._sides()[0])

    @property
    def dstnodes(self) -> NodeView:
        """Like `nodes`, for the node types at which edges end."""
        return NodeView(self, self._sides()[1])

    @property
    def edges(self) -> EdgeView:
        """`g.edges(form, order, etype)` is `g.all_edges(...)`; `g.edges[etype].data` holds the relation's fields."""
        return EdgeView(self)

    # Message passing

    update_all = messaging.update_all
    multi_update_all = messaging.multi_update_all
    send_and_recv = messaging.send_and_recv
    pull = messaging.pull
    push = messaging.push
    apply_edges = messaging.apply_edges
    apply_nodes = messaging.apply_nodes

    # Graphs made from this one

    local_var = transform.local_var
    __getitem__ = transform.relation_slice
    subgraph = transform.subgraph
    edge_subgraph = transform.edge_subgraph
    in_subgraph = transform.in_subgraph
    out_subgraph = transform.out_subgraph
    reverse = transform.reverse
    add_self_loop = transform.add_self_loop
    remove_self_loop = transform.remove_self_loop
    to_bidirected = transform.to_bidirected
    to_homogeneous = hetero.to_homogeneous

    to = transform.moved

    def cpu(self: G) -> G:
        """The graph with structure and fields on the CPU."""
        return transform.moved(self, "cpu")

    def int(self: G) -> G:
        """The graph with 32-bit ids and the same fields. DataError if it has too many nodes or edges for that."""
        return transform.with_idtype(self, torch.int32)

    def long(self: G) -> G:
        """The graph with 64-bit ids and the same fields."""
        return transform.with_idtype(self, torch.int64)

    # Other libraries

    to_pyg = convert_to.to_pyg
    to_scipy = convert_to.to_scipy
    to_networkx = convert_to.to_networkx
    to_dgl = convert_to.to_dgl
