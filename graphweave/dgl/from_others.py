"""Graphs from SciPy matrices and NetworkX graphs, and NetworkX graphs from graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.dgl.construct import graph, heterograph
from graphweave.dgl.graph import DGLGraph
from graphweave.graph.argument_types import Device
from graphweave.graph.convert_from import stacked_attribute
from graphweave.graph.frame import Frame

if TYPE_CHECKING:
    import networkx
    from scipy.sparse import spmatrix


def from_scipy(
    sp_mat: spmatrix,
    eweight_name: str | None = None,
    idtype: torch.dtype | None = None,
    device: Device | None = None,
) -> DGLGraph:
    """A homogeneous graph with an edge r -> c for each stored entry of a square matrix; `eweight_name` gets the
    entries. DataError unless the matrix is square."""
    coo = sp_mat.tocoo()
    if coo.shape[0] != coo.shape[1]:
        raise DataError(f"from_scipy: expected a square matrix (got {list(coo.shape)}). Use bipartite_from_scipy.")
    g = graph(coo, num_nodes=coo.shape[0], idtype=idtype, device=device)
    if eweight_name is not None:
        g.edata[eweight_name] = torch.as_tensor(coo.data, device=device)
    return g


def bipartite_from_scipy(
    sp_mat: spmatrix, utype: str, etype: str, vtype: str, eweight_name: str | None = None,
    idtype: torch.dtype | None = None, device: Device | None = None,
) -> DGLGraph:  # fmt: skip
    """A graph of one relation, with an edge from node r of `utype` to node c of `vtype` for each stored entry."""
    coo = sp_mat.tocoo()
    g = heterograph({(utype, etype, vtype): coo}, {utype: coo.shape[0], vtype: coo.shape[1]}, idtype, device)
    if eweight_name is not None:
        g.edata[eweight_name] = torch.as_tensor(coo.data, device=device)
    return g


def from_networkx(
    nx_graph: networkx.Graph, node_attrs: Sequence[str] | None = None, edge_attrs: Sequence[str] | None = None,
    edge_id_attr_name: str | None = None, idtype: torch.dtype | None = None, device: Device | None = None,
) -> DGLGraph:  # fmt: skip
    """A homogeneous graph. An undirected edge becomes two edges, and nodes are in the order of their sorted labels.

    Attributes named in `node_attrs` and `edge_attrs` are stacked and become fields: DataError if a node or edge lacks
    one, or if edges are to have fields or numbers and the NetworkX graph is undirected. `edge_id_attr_name`: the
    attribute that numbers the edges.
    """
    directed = _directed(nx_graph, edge_id_attr_name, edge_attrs, "from_networkx")
    labels = sorted(nx_graph.nodes)
    place = {label: i for i, label in enumerate(labels)}
    edges = _numbered(directed, edge_id_attr_name)
    ends = [place[u] for u, _, _ in edges], [place[v] for _, v, _ in edges]
    g = graph(ends, num_nodes=len(labels), idtype=idtype or torch.int64, device=device)
    _set(g.ndata, [nx_graph.nodes[label] for label in labels], node_attrs, "node", device)
    _set(g.edata, [attributes for _, _, attributes in edges], edge_attrs, "edge", device)
    return g


def bipartite_from_networkx(
    nx_graph: networkx.Graph, utype: str, etype: str, vtype: str, u_attrs: Sequence[str] | None = None,
    e_attrs: Sequence[str] | None = None, v_attrs: Sequence[str] | None = None, edge_id_attr_name: str | None = None,
    idtype: torch.dtype | None = None, device: Device | None = None,
) -> DGLGraph:  # fmt: skip
    """A graph of one relation. Nodes with the attribute `bipartite` 0 are sources, those with 1 destinations, each in
    the order of their sorted labels. DataError if a node has no such attribute, or an edge runs the other way."""
    directed = _directed(nx_graph, edge_id_attr_name, e_attrs, "bipartite_from_networkx")
    sides: tuple[list[Any], list[Any]] = ([], [])
    for label in nx_graph.nodes:
        side = nx_graph.nodes[label].get("bipartite")
        if side not in (0, 1):
            raise DataError(f"node {label!r} must have an attribute 'bipartite', 0 or 1 (got {side!r}). Set it.")
        sides[side].append(label)
    top, bottom = ({label: i for i, label in enumerate(sorted(labels))} for labels in sides)
    edges = _numbered(directed, edge_id_attr_name)
    if not nx_graph.is_directed():
        edges = [edge for edge in edges if edge[0] in top]
    wrong = next(((u, v) for u, v, _ in edges if u not in top or v not in bottom), None)
    if wrong is not None:
        raise DataError(f"edge {wrong} does not run from a node of side 0 to one of side 1. Correct its direction.")
    ends = [top[u] for u, _, _ in edges], [bottom[v] for _, v, _ in edges]
    sizes = {utype: len(top), vtype: len(bottom)}
    g = heterograph({(utype, etype, vtype): ends}, sizes, idtype or torch.int64, device)
    _set(g.srcdata, [nx_graph.nodes[label] for label in top], u_attrs, "node", device)
    _set(g.dstdata, [nx_graph.nodes[label] for label in bottom], v_attrs, "node", device)
    _set(g.edata, [attributes for _, _, attributes in edges], e_attrs, "edge", device)
    return g


def to_networkx(
    g: DGLGraph,
    node_attrs: object = None,
    edge_attrs: object = None,
    ntype_attr: str = "ntype",
    etype_attr: str = "etype",
    eid_attr: str = "id",
) -> networkx.MultiDiGraph:
    """networkx.MultiDiGraph with the attribute `eid_attr` on edges, their numbers. DataError if g is not on the CPU.

    Rows of the fields named in `node_attrs` and `edge_attrs` become attributes. In a graph of several types nodes are
    numbered type after type and have the attribute `ntype_attr`, edges `etype_attr` (a canonical relation); there
    the fields are given as type -> names, or as names, which not every type has to have.
    """
    if g.device.type != "cpu":
        raise DataError(f"to_networkx: expected a graph on the CPU (got {g.device}). Call g.cpu() first.")
    if g.is_homogeneous:
        return _numbers_renamed(g.to_networkx_of_one_type(node_attrs, edge_attrs), eid_attr)
    import networkx  # optional

    out, start = networkx.MultiDiGraph(), 0
    first: dict[str, int] = {}
    for ntype in g.ntypes:
        data = g.nodes[ntype].data
        fields = {name: data[name] for name in _names(node_attrs, data, ntype)}
        first[ntype] = start
        for v in range(g.num_nodes(ntype)):
            out.add_node(start + v, **{ntype_attr: ntype}, **{name: x[v] for name, x in fields.items()})
        start += g.num_nodes(ntype)
    for key in g.canonical_etypes:
        data = g.edges[key].data
        fields = {name: data[name] for name in _names(edge_attrs, data, key, key[1])}
        src, dst = (ends.tolist() for ends in g.edges(etype=key))
        for e, (u, v) in enumerate(zip(src, dst, strict=True)):
            attributes = {etype_attr: key, eid_attr: e, **{name: x[e] for name, x in fields.items()}}
            out.add_edge(first[key[0]] + u, first[key[2]] + v, **attributes)
    return out


def _names(chosen: Any, data: Any, *types: object) -> list[str]:
    """The fields that `chosen` names for what has one of the names `types`."""
    if isinstance(chosen, Mapping):
        return next((list(chosen[t]) for t in types if t in chosen), [])
    return [name for name in chosen or () if name in data]


def _numbers_renamed(nx_graph: networkx.Graph, name: str) -> object:
    for _, _, attributes in nx_graph.edges(data=True):
        attributes[name] = attributes.pop("id")
    return nx_graph


def _directed(nx_graph: networkx.Graph, number: str | None, attributes: Sequence[str] | None, where: str) -> object:
    if nx_graph.is_directed():
        return nx_graph
    if number is not None or attributes:
        raise DataError(
            f"{where}: fields and numbers of edges are not known for the two directions of an undirected edge."
            " Call nx_graph.to_directed() first, and set them."
        )
    return nx_graph.to_directed()


def _numbered(directed: networkx.Graph, name: str | None) -> list[tuple[object, object, dict[str, object]]]:
    edges = list(directed.edges(data=True))
    if name is None:
        return edges
    if any(name not in attributes for _, _, attributes in edges):
        raise DataError(f"every edge must have the attribute {name!r}, its number. Set it, or leave it out.")
    return sorted(edges, key=lambda edge: edge[2][name])


def _set(
    frame: Frame,
    rows: list[dict[str, object]],
    names: Sequence[str] | None,
    what: str,
    device: Device | None,
) -> None:
    for name in names or ():
        value: Tensor = stacked_attribute(rows, name, what)
        frame[name] = value.to(frame.rows.device) if device is None else value.to(device)
