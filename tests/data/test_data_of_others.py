"""Data sets of PyG as they lie on disk, and graphs of NetworkX, igraph and GraphML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from graphweave.cli.main import main
from graphweave.cli.named_data import load, load_relational
from graphweave.core.errors import DataError
from graphweave.data import GraphSet, NodeData, TypedNodeData, graphml, igraph, networkx, pyg

nx = pytest.importorskip("networkx")


def karate() -> Any:
    g = nx.karate_club_graph()
    for number, node in enumerate(g):
        g.nodes[node].update(size=float(number % 7), split=("train", "val", "test")[number % 3])
    return g


def test_networkx_and_graphml(tmp_path: Path) -> None:
    g = karate()
    data = networkx(g, label="club")
    assert data.num_nodes == 34 and data.num_edges == 2 * 78 and data.num_classes == 2
    assert data.x.flatten().tolist() == [float(i % 7) for i in range(34)]
    assert data.train_mask.sum() == 12 and data.y[0] == 0 and data.y[33] == 1  # Mr. Hi, Officer
    nx.write_graphml(g, tmp_path / "k.graphml")
    again = graphml(tmp_path / "k.graphml", label="club")
    assert again.x.equal(data.x) and again.y.equal(data.y)
    assert again.edge_index.unique(dim=1).equal(data.edge_index.unique(dim=1))
    assert isinstance(load(str(tmp_path / "k.graphml"), symmetric=False, seed=0), NodeData)


def test_networkx_directed_with_loops_and_missing_labels() -> None:
    g = nx.DiGraph([("a", "b"), ("b", "b"), ("c", "a")])
    g.nodes["a"].update(y=1, f=[1.0, 2.0])
    g.nodes["b"].update(y=0, f=[3.0, 4.0])
    g.nodes["c"].update(f=[5.0, 6.0])
    data = networkx(g)
    assert data.edge_index.tolist() == [[0, 1, 2], [1, 1, 0]] and data.y.tolist() == [1, 0, -1]
    assert data.x.tolist() == [[1, 2], [3, 4], [5, 6]]
    del g.nodes["c"]["f"]
    with pytest.raises(DataError, match="f must be numbers of one length"):
        networkx(g, features=["f"])
    assert networkx(nx.Graph()).num_nodes == 0
    g.nodes["c"]["split"] = "later"
    with pytest.raises(DataError, match="split must be train, val or test"):
        networkx(g)


def test_each_of_several_edges_counts() -> None:
    g = nx.MultiDiGraph([("a", "b"), ("a", "b"), ("b", "b")])
    assert networkx(g).edge_index.tolist() == [[0, 0, 1], [1, 1, 1]]
    both = networkx(nx.MultiGraph([(0, 1), (0, 1), (1, 1)])).edge_index
    assert sorted(both.T.tolist()) == [[0, 1], [0, 1], [1, 0], [1, 0], [1, 1]]


def test_igraph_is_networkx() -> None:
    ig = pytest.importorskip("igraph")
    for g in (karate(), nx.DiGraph([(0, 1), (1, 1), (2, 0)])):
        one, other = networkx(g, label="club"), igraph(ig.Graph.from_networkx(g), label="club")
        assert other.y.equal(one.y) and other.train_mask.equal(one.train_mask)
        assert other.edge_index.unique(dim=1).equal(one.edge_index.unique(dim=1))


@pytest.mark.parametrize("content", ["", "<a/>", "no xml"])
def test_bad_graphml_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "g.graphml").write_text(content)
    with pytest.raises(DataError, match="not readable GraphML"):
        graphml(tmp_path / "g.graphml")


def pyg_data() -> Any:
    from torch_geometric.data import Data

    mask = torch.arange(5) < 3
    return Data(
        x=torch.randn(5, 2), edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]), y=torch.tensor([0, 1, 0, 1, 1]),
        train_mask=mask, val_mask=torch.stack([~mask, mask], 1), test_mask=~mask, note="left out",
    )  # fmt: skip


def test_pyg_of_one_graph(tmp_path: Path) -> None:
    from torch_geometric.data import InMemoryDataset

    one = pyg_data()
    (tmp_path / "set/processed").mkdir(parents=True)
    InMemoryDataset.save([one], str(tmp_path / "set/processed/data.pt"))
    torch.save(one, tmp_path / "one.pt")
    torch.save("nothing", tmp_path / "set/processed/pre_filter.pt")
    for path in (tmp_path / "set", tmp_path / "set/processed/data.pt", tmp_path / "one.pt"):
        data = pyg(path)
        assert isinstance(data, NodeData) and data.x.equal(one.x) and data.edge_index.equal(one.edge_index)
        assert data.y.equal(one.y) and data.train_mask.equal(one.train_mask) and data.val_mask.equal(~one.train_mask)


def test_pyg_of_many_graphs(tmp_path: Path) -> None:
    from torch_geometric.data import Data, InMemoryDataset

    edges = torch.tensor([[0], [1]])
    graphs = [Data(x=torch.full((n, 1), n), edge_index=edges, y=torch.tensor([n % 2])) for n in (2, 3, 4, 5, 6)]
    InMemoryDataset.save([g.update({"x": g.x.float()}) for g in graphs], str(tmp_path / "data.pt"))
    data = pyg(tmp_path)
    assert isinstance(data, GraphSet) and data.graph_ptr.tolist() == [0, 2, 5, 9, 14, 20]
    assert data.edge_index.tolist() == [[0, 2, 5, 9, 14], [1, 3, 6, 10, 15]] and data.y.tolist() == [0, 1, 0, 1, 0]
    InMemoryDataset.save(
        [Data(edge_index=edges, y=g.y, num_nodes=g.num_nodes) for g in graphs], str(tmp_path / "data.pt")
    )
    again = pyg(tmp_path)
    assert isinstance(again, GraphSet) and again.graph_ptr.equal(data.graph_ptr)


def test_pyg_with_types(tmp_path: Path) -> None:
    from torch_geometric.data import HeteroData

    typed = HeteroData()
    typed["author"].x, typed["paper"].num_nodes = torch.randn(2, 3), 3
    typed["paper"].y = torch.tensor([0, 1, 0])
    for part, row in (("train", 0), ("val", 1), ("test", 2)):
        typed["paper"][f"{part}_mask"] = torch.arange(3) == row
    typed["author", "to", "paper"].edge_index = torch.tensor([[0, 1], [2, 0]])
    typed["paper", "to", "paper"].edge_index = torch.tensor([[0], [1]])
    torch.save(typed, tmp_path / "typed.pt")
    data = pyg(tmp_path / "typed.pt")
    assert isinstance(data, TypedNodeData) and data.node_counts == (2, 3) and data.num_rels == 4
    assert data.y.tolist() == [-1, -1, 0, 1, 0] and data.train_mask.tolist() == [False, False, True, False, False]
    assert sorted(data.edge_index.T.tolist()) == [[0, 4], [1, 2], [2, 1], [2, 3], [3, 2], [4, 0]]
    assert isinstance(load_relational(str(tmp_path / "typed.pt"), seed=0), TypedNodeData)


def test_bad_pyg_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match=r"expected one file .pt in processed/ \(got none"):
        pyg(tmp_path)
    torch.save({"x": 1}, tmp_path / "a.pt")
    with pytest.raises(DataError, match="array 'dst' is missing"):
        pyg(tmp_path)
    (tmp_path / "b.pt").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"got a\.pt, b\.pt"):
        pyg(tmp_path)
    with pytest.raises(DataError, match="not a file that PyG wrote"):
        pyg(tmp_path / "b.pt")
    torch.save(Path, tmp_path / "c.pt")  # a pickle that names what is not data
    assert main(["train", "--data", str(tmp_path / "c.pt")]) == 2
    said = capsys.readouterr().err
    assert "not a file that PyG wrote" in said and said.count("\n") == 1
    (tmp_path / "d.pt").write_text(json.dumps({}))
    with pytest.raises(DataError, match="not a file that PyG wrote"):
        pyg(tmp_path / "d.pt")
