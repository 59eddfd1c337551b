"""Functions that convert graphs to PyG, SciPy, NetworkX and DGL. Tensors are shared, not copied, if possible."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from graphweave.core.errors import DataError
from graphweave.graph.relation import Etype
from graphweave.graph.structure import Structure

if TYPE_CHECKING:
    import dgl
    import networkx
    from scipy.sparse import coo_matrix
    from torch_geometric.data import Data, HeteroData


def to_pyg(g: Structure) -> Data | HeteroData:
    """PyG's Data for a homogeneous graph, else HeteroData. Fields keep their names, `num_nodes` is set, and indices are
    int64, as PyG expects. For a batch, `batch`, int64 [num_nodes], holds the graph of each node.
    """
    from torch_geometric.data import Data, HeteroData  # optional, and takes seconds to load

    data = Data() if g.is_homogeneous else HeteroData()
    for ntype, frame in g.node_frames.items():
        store = data if g.is_homogeneous else data[ntype]
        store.num_nodes = frame.num_rows
        for name, value in frame.items():
            store[name] = value
        if g.batch_counts is not None:
            sizes = g.batch_counts[0][ntype]
            store.batch = sizes.new_tensor(range(g.batch_size)).repeat_interleave(sizes)
    for key, edge_frame in g.edge_frames.items():
        store = data if g.is_homogeneous else data[key]
        store.edge_index = g.edge_index(key).long()
        for name, value in edge_frame.items():
            if g.is_homogeneous and name in g.ndata:
                raise DataError(
                    f"to_pyg: ndata and edata both have a field {name!r}, but Data has one space of names."
                    " Choose another field."
                )
            store[name] = value
    return data


def to_scipy(g: Structure, etype: Etype | None = None, weight: str | None = None) -> coo_matrix:
    """scipy.sparse.coo_matrix [num_src, num_dst] with entry e at (src[e], dst[e]). Parallel edges are not merged.

    Entries are 1, or the field `weight` of edges, which must have shape [num_edges].
    """
    import scipy.sparse  # takes 0.2 s to load

    relation = g.relation(etype)
    values = np.ones(relation.num_edges, dtype=np.float32)
    if weight is not None:
        field = g.edge_frame(etype)[weight]
        if field.dim() != 1:
            raise DataError(
                f"to_scipy: edata[{weight!r}] must have shape [num_edges] (got {list(field.shape)})."
                " Choose another field."
            )
        values = field.detach().cpu().numpy()
    ends = relation.src.cpu().numpy(), relation.dst.cpu().numpy()
    return scipy.sparse.coo_matrix((values, ends), shape=(g.num_sources(relation), g.num_destinations(relation)))


def to_networkx(
    g: Structure, node_attrs: list[str] | None = None, edge_attrs: list[str] | None = None
) -> networkx.MultiDiGraph:
    """networkx.MultiDiGraph from a homogeneous graph. Nodes are 0..num_nodes-1; the attribute `id` of an edge is its
    number. Each row of the fields named in `node_attrs` and `edge_attrs` becomes an attribute of its node or edge.
    """
    import networkx  # optional

    if not g.is_homogeneous:
        raise DataError(f"to_networkx: expected one node type and one relation (got {g!r}). Take g.to_homogeneous().")
    out = networkx.MultiDiGraph()
    out.add_nodes_from(range(g.num_nodes()))
    for name in node_attrs or ():
        for v, row in enumerate(g.ndata[name]):
            out.nodes[v][name] = row
    fields = {name: g.edata[name] for name in edge_attrs or ()}
    src, dst = (ends.tolist() for ends in g.all_edges())
    for e, (u, v) in enumerate(zip(src, dst, strict=True)):
        out.add_edge(u, v, id=e, **{name: field[e] for name, field in fields.items()})
    return out


def to_dgl(g: Structure) -> dgl.DGLGraph:
    """A dgl.DGLGraph with the same types, order of edges, fields and batch."""
    import dgl  # optional, no longer maintained

    ends = {key: (relation.src, relation.dst) for key, relation in g.relations.items()}
    out = dgl.heterograph(ends, {ntype: frame.num_rows for ntype, frame in g.node_frames.items()})
    for ntype, frame in g.node_frames.items():
        out.nodes[ntype].data.update(dict(frame))
    for key, edge_frame in g.edge_frames.items():
        out.edges[key].data.update(dict(edge_frame))
    if g.batch_counts is not None:
        out.set_batch_num_nodes(g.batch_counts[0])
        out.set_batch_num_edges(g.batch_counts[1])
    return out
