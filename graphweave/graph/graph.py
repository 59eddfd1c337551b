"""`Graph`: nodes and edges of one or several types, with data, whose structure does not change."""

from __future__ import annotations

from typing import Any

import torch

from graphweave.graph import convert_to, hetero, messaging, transform
from graphweave.graph.relation import CanonicalEtype
from graphweave.graph.structure import Structure
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

    def local_var(self) -> Graph:
        """A graph with the same structure and fields. Setting a field of one graph does not change the other."""
        return transform.local_var(self)

    def __getitem__(self, etype: str | tuple[object, object, object]) -> Graph:
        """One relation as a graph that shares this graph's fields: `g["name"]`, or `g[source, name, destination]`,
        where ":" stands for any."""
        return transform.relation_slice(self, etype)

    def subgraph(self, nodes: object, *, relabel_nodes: bool = True, store_ids: bool = True) -> Graph:
        """`transform.subgraph`: the given nodes and all edges between them."""
        return transform.subgraph(self, nodes, relabel_nodes=relabel_nodes, store_ids=store_ids)

    def edge_subgraph(self, edges: object, *, relabel_nodes: bool = True, store_ids: bool = True) -> Graph:
        """`transform.edge_subgraph`: the given edges, and the nodes at their ends."""
        return transform.edge_subgraph(self, edges, relabel_nodes=relabel_nodes, store_ids=store_ids)

    def in_subgraph(self, nodes: object, *, relabel_nodes: bool = False, store_ids: bool = True) -> Graph:
        """`transform.in_subgraph`: the edges that end in the given nodes."""
        return transform.in_subgraph(self, nodes, relabel_nodes=relabel_nodes, store_ids=store_ids)

    def out_subgraph(self, nodes: object, *, relabel_nodes: bool = False, store_ids: bool = True) -> Graph:
        """`transform.out_subgraph`: the edges that start in the given nodes."""
        return transform.out_subgraph(self, nodes, relabel_nodes=relabel_nodes, store_ids=store_ids)

    def reverse(self, copy_ndata: bool = True, copy_edata: bool = False) -> Graph:
        """`transform.reverse`: every edge with its ends exchanged."""
        return transform.reverse(self, copy_ndata=copy_ndata, copy_edata=copy_edata)

    def add_self_loop(
        self, edge_feat_names: list[str] | None = None, fill_data: float | str = 1.0, etype: Any = None
    ) -> Graph:
        """`transform.add_self_loop`: the graph with an additional edge v -> v for each node."""
        return transform.add_self_loop(self, edge_feat_names, fill_data, etype)

    def remove_self_loop(self, etype: str | CanonicalEtype | None = None) -> Graph:
        """`transform.remove_self_loop`: the graph without its edges v -> v."""
        return transform.remove_self_loop(self, etype)

    def to_bidirected(self, copy_ndata: bool = False) -> Graph:
        """`transform.to_bidirected`: a graph with both directions of every edge, each once."""
        return transform.to_bidirected(self, copy_ndata=copy_ndata)

    def to_homogeneous(self, **options: Any) -> Any:
        """`hetero.to_homogeneous`: a graph with one node type and one relation."""
        return hetero.to_homogeneous(self, **options)

    def to(self, device: torch.device | str) -> Graph:
        """The graph with structure and fields on `device`; the graph itself if they are already there."""
        return self if torch.device(device) == self.device else transform.moved(self, torch.device(device))

    def cpu(self) -> Graph:
        """The graph with structure and fields on the CPU."""
        return self.to("cpu")

    def int(self) -> Graph:
        """The graph with 32-bit ids and the same fields. DataError if it has too many nodes or edges for that."""
        return transform.with_idtype(self, torch.int32)

    def long(self) -> Graph:
        """The graph with 64-bit ids and the same fields."""
        return transform.with_idtype(self, torch.int64)

    # Other libraries

    def to_pyg(self) -> Any:
        """`convert_to.to_pyg`: a PyG Data or HeteroData."""
        return convert_to.to_pyg(self)

    def to_scipy(self, etype: str | CanonicalEtype | None = None, weight: str | None = None) -> Any:
        """`convert_to.to_scipy`: a SciPy COO matrix [num_src, num_dst]."""
        return convert_to.to_scipy(self, etype, weight)

    def to_networkx(self, node_attrs: list[str] | None = None, edge_attrs: list[str] | None = None) -> Any:
        """`convert_to.to_networkx`: a networkx.MultiDiGraph."""
        return convert_to.to_networkx(self, node_attrs, edge_attrs)

    def to_dgl(self) -> Any:
        """`convert_to.to_dgl`: a DGLGraph."""
        return convert_to.to_dgl(self)
