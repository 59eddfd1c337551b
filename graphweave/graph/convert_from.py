"""Functions that convert graphs of PyG, SciPy, NetworkX and DGL. Tensors are shared, not copied, if possible."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph.build import graph, heterograph
from graphweave.graph.graph import Graph

if TYPE_CHECKING:
    import dgl
    import networkx
    from scipy.sparse import spmatrix
    from torch_geometric.data import Data, HeteroData


def from_pyg(data: Data | HeteroData) -> Graph:
    """A Graph from PyG's Data or HeteroData, or from a Batch of them, which stays a batch.

    Edges keep their order. Every tensor that PyG takes for an attribute of nodes or of edges becomes a field. Other
    attributes (a label of the graph, strings) are left out.
    """
    if hasattr(data, "node_types"):
        return _from_hetero_data(data)
    if data.edge_index is None:
        raise DataError(f"from_pyg: expected data with an edge_index (got {data}). Set data.edge_index.")
    g = graph(data.edge_index, _int(data.num_nodes))
    for name, value in data:
        if not isinstance(value, Tensor) or name in ("edge_index", "batch", "ptr"):
            continue
        if data.is_node_attr(name):
            g.ndata[name] = value
        elif data.is_edge_attr(name):
            g.edata[name] = value
    if isinstance(getattr(data, "ptr", None), Tensor):
        graphs = data.batch[g.edges()[0].long()]
        _check_grouped(graphs)
        size = data.ptr.numel() - 1
        g.batch_counts = {g.ntypes[0]: data.ptr.diff()}, {g.canonical_etypes[0]: torch.bincount(graphs, minlength=size)}
    return g


def _from_hetero_data(data: HeteroData) -> Graph:
    sizes = {ntype: _int(data[ntype].num_nodes) for ntype in data.node_types}
    g = heterograph({tuple(key): data[key].edge_index for key in data.edge_types}, sizes)
    for ntype in data.node_types:
        for name, value in data[ntype].items():
            if isinstance(value, Tensor) and name not in ("batch", "ptr") and data[ntype].is_node_attr(name):
                g.nodes[ntype].data[name] = value
    for key in data.edge_types:
        for name, value in data[key].items():
            if isinstance(value, Tensor) and name != "edge_index" and data[key].is_edge_attr(name):
                g.edges[tuple(key)].data[name] = value
    if all(isinstance(data[ntype].get("ptr"), Tensor) for ntype in data.node_types):
        g.batch_counts = {ntype: data[ntype].ptr.diff() for ntype in g.ntypes}, {}
        for key, relation in g.relations.items():
            graphs = data[key[0]].batch[relation.src.long()]
            _check_grouped(graphs)
            g.batch_counts[1][key] = torch.bincount(graphs, minlength=data[key[0]].ptr.numel() - 1)
    return g


def _check_grouped(graphs: Tensor) -> None:
    if bool((graphs[1:] < graphs[:-1]).any()):
        raise DataError(
            "from_pyg: edges of a batch must follow each other graph by graph."
            " Make the batch with Batch.from_data_list."
        )


def _int(num: int | Tensor) -> int:
    if num is None:
        raise DataError("from_pyg: the number of nodes is not known. Set data.num_nodes.")
    return int(num)


def from_scipy(matrix: spmatrix, eweight_name: str | None = None) -> Graph:
    """A homogeneous graph from a square SciPy sparse matrix, with an edge r -> c for each stored entry, in COO order.

    `eweight_name`: the field of edges that gets the entries. DataError unless the matrix is square.
    """
    coo = matrix.tocoo()
    if coo.shape[0] != coo.shape[1]:
        raise DataError(
            f"from_scipy: expected a square matrix (got {list(coo.shape)}). Use heterograph for two node types."
        )
    dtype = np.int32 if coo.row.dtype == np.int32 else np.int64
    g = graph((coo.row.astype(dtype, copy=False), coo.col.astype(dtype, copy=False)), coo.shape[0])
    if eweight_name is not None:
        g.edata[eweight_name] = torch.as_tensor(coo.data)
    return g


def from_networkx(
    nx_graph: networkx.Graph,
    node_attrs: list[str] | None = None,
    edge_attrs: list[str] | None = None,
    edge_id_attr_name: str | None = None,
) -> Graph:
    """A homogeneous graph from a NetworkX graph. An undirected edge becomes two edges, a self-loop one.

    Nodes are in the order of their sorted labels, or in NetworkX's order if the labels cannot be sorted. The attributes
    named in `node_attrs` and `edge_attrs` are stacked and become fields: DataError if a node or edge lacks one. Edges
    are in the order of their attribute `edge_id_attr_name`, or in NetworkX's order if it is None.
    """
    try:
        nodes = sorted(nx_graph.nodes)
    except TypeError:
        nodes = list(nx_graph.nodes)
    place = {node: i for i, node in enumerate(nodes)}
    directed = nx_graph if nx_graph.is_directed() else nx_graph.to_directed()
    edges = list(directed.edges(data=True))
    if edge_id_attr_name is not None:
        edges.sort(key=lambda edge: edge[2][edge_id_attr_name])
    g = graph(([place[u] for u, _, _ in edges], [place[v] for _, v, _ in edges]), len(nodes))
    for name in node_attrs or ():
        g.ndata[name] = stacked_attribute([nx_graph.nodes[node] for node in nodes], name, "node")
    for name in edge_attrs or ():
        g.edata[name] = stacked_attribute([attributes for _, _, attributes in edges], name, "edge")
    return g


def stacked_attribute(rows: list[dict[str, object]], name: str, what: str) -> Tensor:
    """The attribute `name` of each row, [rows, ...]. DataError if a row, a `what` ("node"), lacks it."""
    missing = next((i for i, row in enumerate(rows) if name not in row), None)
    if missing is not None:
        raise DataError(f"from_networkx: {what} {missing} has no attribute {name!r}. Set it on each of them.")
    return torch.stack([torch.as_tensor(row[name]) for row in rows]) if rows else torch.empty(0, device="cpu")


def from_dgl(dgl_graph: dgl.DGLGraph) -> Graph:
    """A Graph from a DGLGraph, with its types, order of edges, fields and batch. DataError for a DGL block."""
    if dgl_graph.is_block:
        raise DataError("from_dgl: a block has two kinds of nodes of one name; convert it with dgl.block_to_graph.")
    ends = {key: dgl_graph.edges(etype=key) for key in dgl_graph.canonical_etypes}
    g = heterograph(ends, {ntype: dgl_graph.num_nodes(ntype) for ntype in dgl_graph.ntypes})
    for ntype in g.ntypes:
        g.nodes[ntype].data.update(dict(dgl_graph.nodes[ntype].data))
    for key in g.canonical_etypes:
        g.edges[key].data.update(dict(dgl_graph.edges[key].data))
    if dgl_graph.batch_size > 1:
        nodes = {ntype: dgl_graph.batch_num_nodes(ntype) for ntype in g.ntypes}
        g.batch_counts = nodes, {key: dgl_graph.batch_num_edges(key) for key in g.canonical_etypes}
    return g
