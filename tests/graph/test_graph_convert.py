"""Graphs to and from PyG, SciPy, NetworkX and DGL."""

from __future__ import annotations

import networkx
import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Batch, Data

import graphweave
from graphweave.core.errors import DataError
from graphweave.graph.graph import Graph
from tests.graph.graph_support import SQUARE, ZOO, bipartite, homogeneous, name_of, typed
from tests.programs.graphs import EdgeList


def assert_same(g: Graph, other: Graph) -> None:
    """Both graphs have the same types, edges in the same order, fields and batch."""
    assert (g.ntypes, g.canonical_etypes) == (other.ntypes, other.canonical_etypes)
    for ntype in g.ntypes:
        assert g.num_nodes(ntype) == other.num_nodes(ntype)
        assert g.nodes[ntype].data.keys() == other.nodes[ntype].data.keys()
        assert all(value.equal(other.nodes[ntype].data[name]) for name, value in g.nodes[ntype].data.items())
        assert g.batch_num_nodes(ntype).equal(other.batch_num_nodes(ntype))
    for etype in g.canonical_etypes:
        assert all(a.equal(b) for a, b in zip(g.edges(etype=etype), other.edges(etype=etype), strict=True))
        assert g.edges[etype].data.keys() == other.edges[etype].data.keys()
        assert all(value.equal(other.edges[etype].data[name]) for name, value in g.edges[etype].data.items())
        assert g.batch_num_edges(etype).equal(other.batch_num_edges(etype))


def mark_edges(g: Graph) -> Graph:
    """Fields by which PyG tells nodes' from edges': it goes by names where the counts are equal."""
    g.edata["edge_attr"] = g.edata.pop("w")
    return g


@pytest.mark.parametrize("edges", SQUARE, ids=name_of)
def test_pyg(edges: EdgeList) -> None:
    g = mark_edges(homogeneous(edges))
    data = g.to_pyg()
    assert isinstance(data, Data) and data.num_nodes == g.num_nodes()
    assert data.edge_index.equal(g.edge_index()) and data.x is g.ndata["x"]
    if g.num_nodes() != g.num_edges():
        assert_same(graphweave.from_pyg(data), g)
    assert_same(
        graphweave.from_pyg(Data(edge_index=g.edge_index(), x=g.ndata["x"])).reverse(), without_mark(g).reverse()
    )


def without_mark(g: Graph) -> Graph:
    g = g.local_var()
    del g.ndata["mark"]
    return g


def test_pyg_types() -> None:
    g = typed()
    assert_same(graphweave.from_pyg(g.to_pyg()), g)
    assert_same(graphweave.from_pyg(bipartite(ZOO[-3]).to_pyg()), bipartite(ZOO[-3]))


def test_pyg_batches() -> None:
    graphs = [mark_edges(homogeneous(edges)) for edges in SQUARE if edges.src.numel() not in (0, edges.num_src)]
    many = graphweave.from_pyg(Batch.from_data_list([g.to_pyg() for g in graphs]))
    assert_same(many, graphweave.batch(graphs))
    assert many.to_pyg().batch.tolist() == [i for i, g in enumerate(graphs) for _ in range(g.num_nodes())]
    typed_many = graphweave.from_pyg(Batch.from_data_list([typed().to_pyg(), typed().to_pyg()]))
    assert_same(typed_many, graphweave.batch([typed(), typed()]))


def test_pyg_leaves_behind_what_has_no_rows() -> None:
    data = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), x=torch.ones(3, 2), y=torch.tensor([4]), name="small")
    assert list(graphweave.from_pyg(data).ndata) == ["x"]
    with pytest.raises(DataError, match="edge_index"):
        graphweave.from_pyg(Data(x=torch.ones(3, 2)))


def test_pyg_names_are_one_space() -> None:
    g = graphweave.graph(([0, 1], [1, 2]))
    g.ndata["x"], g.edata["x"] = torch.ones(3), torch.ones(2)
    with pytest.raises(DataError, match="both have a field 'x'"):
        g.to_pyg()


@pytest.mark.parametrize("edges", ZOO, ids=name_of)
def test_scipy(edges: EdgeList) -> None:
    g = bipartite(edges)
    dense = np.zeros((edges.num_src, edges.num_dst))
    np.add.at(dense, (edges.src.numpy(), edges.dst.numpy()), g.edata["w"].numpy())
    matrix = g.to_scipy(weight="w")
    assert matrix.shape == dense.shape and np.allclose(matrix.toarray(), dense, atol=1e-5)
    assert g.to_scipy().sum() == g.num_edges()
    if edges.square:
        square = graphweave.from_scipy(matrix, eweight_name="w")
        assert_same(square, matrix_graph(matrix))
        assert square.num_edges() == g.num_edges() and square.edata["w"].equal(g.edata["w"])


def matrix_graph(matrix: scipy.sparse.coo_matrix) -> Graph:
    g = graphweave.graph((matrix.row, matrix.col), matrix.shape[0])
    g.edata["w"] = torch.as_tensor(matrix.data)
    return g


def test_scipy_refuses() -> None:
    with pytest.raises(DataError, match="square"):
        graphweave.from_scipy(scipy.sparse.random(3, 4))
    g = graphweave.graph(([0], [1]))
    g.edata["w"] = torch.ones(1, 2)
    with pytest.raises(DataError, match=r"shape \[num_edges\]"):
        g.to_scipy(weight="w")


@pytest.mark.parametrize("edges", SQUARE, ids=name_of)
def test_networkx(edges: EdgeList) -> None:
    g = homogeneous(edges)
    nx = g.to_networkx(node_attrs=["x", "mark"], edge_attrs=["w"])
    assert isinstance(nx, networkx.MultiDiGraph) and nx.number_of_nodes() == g.num_nodes()
    assert [nx.in_degree(v) for v in range(g.num_nodes())] == g.in_degrees().tolist()
    empty = {"node_attrs": ["x", "mark"] if g.num_nodes() else [], "edge_attrs": ["w"] if g.num_edges() else []}
    again = graphweave.from_networkx(nx, **empty, edge_id_attr_name="id")
    assert all(a.equal(b) for a, b in zip(again.edges(), g.edges(), strict=True))
    assert again.num_nodes() == g.num_nodes()
    assert all(value.equal(g.ndata[name]) for name, value in again.ndata.items())
    assert all(value.equal(g.edata[name]) for name, value in again.edata.items())


def test_networkx_undirected_and_labelled() -> None:
    nx = networkx.Graph([("b", "a"), ("c", "c")])
    networkx.set_node_attributes(nx, {"a": 1.0, "b": 2.0, "c": 3.0}, "h")
    g = graphweave.from_networkx(nx, node_attrs=["h"])
    assert sorted(zip(*(end.tolist() for end in g.edges()), strict=True)) == [(0, 1), (1, 0), (2, 2)]
    assert g.ndata["h"].tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(DataError, match="edge 0 has no attribute 'w'"):
        graphweave.from_networkx(nx, edge_attrs=["w"])
    with pytest.raises(DataError, match="one node type"):
        typed().to_networkx()


@pytest.mark.parametrize("make", [lambda: homogeneous(SQUARE[-1]), typed, lambda: graphweave.batch([typed(), typed()])])
def test_dgl(make: object) -> None:
    dgl = pytest.importorskip("dgl", reason="dgl is not installed")
    g = make()
    there = g.to_dgl()
    assert isinstance(there, dgl.DGLGraph)
    assert_same(graphweave.from_dgl(there), g)


class FakeFrame(dict):
    pass


class FakeDgl:
    """The part of a DGLGraph that `from_dgl` reads."""

    is_block = False
    batch_size = 2
    ntypes = ("a", "b")
    canonical_etypes = (("a", "r", "b"),)
    nodes = {"a": FakeFrame(), "b": FakeFrame()}  # noqa: RUF012

    def __init__(self) -> None:
        self.nodes = {t: type("Rows", (), {"data": {"x": torch.ones(n)}}) for t, n in (("a", 3), ("b", 4))}
        self._edges = torch.tensor([0, 2, 1]), torch.tensor([1, 0, 3])
        rows = type("Rows", (), {"data": {"w": torch.ones(3)}})
        self.edges = type(
            "EdgeList", (), {"__call__": lambda s, etype: self._edges, "__getitem__": lambda s, k: rows}
        )()

    def num_nodes(self, ntype: str) -> int:
        return {"a": 3, "b": 4}[ntype]

    def batch_num_nodes(self, ntype: str) -> torch.Tensor:
        return torch.tensor({"a": [1, 2], "b": [2, 2]}[ntype])

    def batch_num_edges(self, etype: object) -> torch.Tensor:
        return torch.tensor([1, 2])


def test_from_dgl_without_dgl() -> None:
    g = graphweave.from_dgl(FakeDgl())
    assert g.canonical_etypes == [("a", "r", "b")] and g.num_nodes("b") == 4
    assert g.edges()[1].tolist() == [1, 0, 3] and g.dstdata["x"].shape == (4,) and g.edata["w"].shape == (3,)
    assert g.batch_num_nodes("a").tolist() == [1, 2] and g.batch_num_edges().tolist() == [1, 2]
    block = FakeDgl()
    block.is_block = True
    with pytest.raises(DataError, match="block"):
        graphweave.from_dgl(block)
