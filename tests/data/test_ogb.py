"""Data sets in OGB's folders: tables and arrays, of nodes, graphs, links, types and triples."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graphweave.cli.main import main
from graphweave.cli.named_data import load, load_for, load_relational
from graphweave.core.errors import DataError
from graphweave.data import GraphSet, KnowledgeGraph, LinkData, NodeData, TypedNodeData, ogb


def write(file: Path, rows: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(file, "wt") as stream:
        stream.writelines(",".join(map(str, np.atleast_1d(row))) + "\n" for row in rows)


def ogb_nodes(folder: Path) -> Path:
    write(folder / "raw/edge.csv.gz", [(0, 1), (1, 2), (3, 0)])
    write(folder / "raw/num-node-list.csv.gz", [4])
    write(folder / "raw/num-edge-list.csv.gz", [3])
    write(folder / "raw/node-feat.csv.gz", [(0.5, 1.5), (1, 2), (3, 4), (5, 6)])
    write(folder / "raw/node-label.csv.gz", [0, 2, "nan", 1])
    for part, rows in (("train", [0]), ("valid", [3]), ("test", [1])):
        write(folder / f"split/time/{part}.csv.gz", rows)
    return folder


def ogb_graphs(folder: Path) -> Path:
    write(folder / "raw/edge.csv.gz", [(0, 1), (0, 1), (1, 2)])
    write(folder / "raw/num-node-list.csv.gz", [2, 3])
    write(folder / "raw/num-edge-list.csv.gz", [1, 2])
    write(folder / "raw/node-feat.csv.gz", [(5, 0), (6, 1), (5, 1), (8, 0), (5, 0)])
    write(folder / "raw/graph-label.csv.gz", [(1, ""), (0, 1)])
    for part, rows in (("train", [0]), ("valid", [1]), ("test", [1])):
        write(folder / f"split/scaffold/{part}.csv.gz", rows)
    return folder


def test_ogb_of_nodes(tmp_path: Path) -> None:
    data = ogb(ogb_nodes(tmp_path))
    assert isinstance(data, NodeData)
    assert data.edge_index.tolist() == [[0, 1, 3], [1, 2, 0]] and data.y.tolist() == [0, 2, -1, 1]
    assert data.x[0].tolist() == [0.5, 1.5] and data.test_mask.tolist() == [False, True, False, False]
    both = ogb(tmp_path, symmetric=True)
    assert isinstance(both, NodeData) and both.num_edges == 6
    assert isinstance(load(str(tmp_path), symmetric=True, seed=0), NodeData)


def test_ogb_of_graphs(tmp_path: Path) -> None:
    data = ogb(ogb_graphs(tmp_path), symmetric=True)
    assert isinstance(data, GraphSet) and data.graph_ptr.tolist() == [0, 2, 5]
    assert sorted(data.edge_index.T.tolist()) == [[0, 1], [1, 0], [2, 3], [3, 2], [3, 4], [4, 3]]
    assert data.x.size(1) == 5 and data.y[0].isnan().tolist() == [False, True]  # 3 + 2 categories
    assert isinstance(load_for("graph", str(tmp_path), seed=0), GraphSet)


def test_other_layouts_of_ogb_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected OGB's layout"):
        ogb(tmp_path)
    ogb_nodes(tmp_path)
    (tmp_path / "raw/node-label.csv.gz").unlink()
    with pytest.raises(DataError, match="expected labels of nodes or graphs"):
        ogb(tmp_path)
    (tmp_path / "raw/edge.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(DataError, match="not a table of numbers"):
        ogb(tmp_path)


# ---------------------------------------------------------------- links, types and triples


def save_links(folder: Path, parts: dict[str, dict[str, Any]]) -> None:
    for part, found in parts.items():
        file = folder / f"split/time/{part}.pt"
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(found, file)


def test_ogb_of_links(tmp_path: Path) -> None:
    ogb_nodes(tmp_path)
    for file in tmp_path.glob("split/time/*"):
        file.unlink()
    (tmp_path / "raw/node-label.csv.gz").unlink()
    edge = {"edge": np.array([[0, 1], [1, 2]])}
    held = {"edge": torch.tensor([[3, 0]]), "edge_neg": torch.tensor([[3, 1], [2, 3]])}
    save_links(tmp_path, {"train": edge, "valid": held, "test": held})
    data = ogb(tmp_path)
    assert isinstance(data, LinkData) and data.joined["train"].tolist() == [[0, 1], [1, 2]]
    assert data.edge_index.tolist() == [[0, 1, 1, 2], [1, 2, 0, 1]] and data.x.shape == (4, 2)
    assert data.joined["val"].tolist() == [[3], [0]] and data.others["test"].tolist() == [[3, 2], [1, 3]]
    assert isinstance(load(str(tmp_path), symmetric=False, seed=0), LinkData)


def test_ogb_of_links_from_a_source(tmp_path: Path) -> None:
    ogb_nodes(tmp_path)
    for file in tmp_path.glob("split/time/*"):
        file.unlink()
    train = {"source_node": np.array([0, 1]), "target_node": np.array([1, 2])}
    held = train | {"target_node_neg": np.array([[3, 2], [0, 3]])}
    save_links(tmp_path, {"train": train, "valid": held, "test": held})
    data = ogb(tmp_path)
    assert isinstance(data, LinkData) and data.joined["test"].tolist() == [[0, 1], [1, 2]]
    assert data.others["val"].tolist() == [[0, 1], [3, 0]]


def ogb_typed(folder: Path) -> Path:
    write(folder / "raw/num-node-dict.csv.gz", [("paper", "author"), (3, 2)])
    write(folder / "raw/triplet-type-list.csv.gz", [("author", "writes", "paper"), ("paper", "cites", "paper")])
    for name, edges in (("author___writes___paper", [(0, 1), (1, 2)]), ("paper___cites___paper", [(0, 2)])):
        write(folder / f"raw/relations/{name}/edge.csv.gz", edges)
        write(folder / f"raw/relations/{name}/num-edge-list.csv.gz", [len(edges)])
    write(folder / "raw/node-feat/paper/node-feat.csv.gz", [(0.5, 1), (1, 2), (3, 4)])
    write(folder / "raw/node-label/paper/node-label.csv.gz", [1, 0, 1])
    for part, row in (("train", 0), ("valid", 1), ("test", 2)):
        write(folder / f"split/time/paper/{part}.csv.gz", [row])
    return folder


def check_typed(data: Any) -> None:
    assert isinstance(data, TypedNodeData) and data.node_counts == (2, 3) and data.num_rels == 4
    assert data.features[0] is None and data.features[1] is not None and data.features[1][0].tolist() == [0.5, 1]
    assert data.y.tolist() == [-1, -1, 1, 0, 1] and data.val_mask.tolist() == [False, False, False, True, False]
    assert sorted(data.edge_index.T.tolist()) == [[0, 3], [1, 4], [2, 4], [3, 0], [4, 1], [4, 2]]


def test_ogb_of_types(tmp_path: Path) -> None:
    check_typed(ogb(ogb_typed(tmp_path)))
    check_typed(load_relational(str(tmp_path), seed=0))
    write(tmp_path / "raw/node-label/book/node-label.csv.gz", [1])
    with pytest.raises(DataError, match=r"of the types author, paper \(got book"):
        ogb(tmp_path)
    write(tmp_path / "raw/num-node-dict.csv.gz", [("paper", "author"), (3,)])
    with pytest.raises(DataError, match="names of types, then their numbers"):
        ogb(tmp_path)


def test_ogb_of_triples(tmp_path: Path) -> None:
    ogb_typed(tmp_path)
    kinds = {"head_type": ["author", "paper"], "tail_type": ["paper", "paper"]}
    triples = {"head": np.array([1, 0]), "relation": np.array([0, 1]), "tail": np.array([2, 2])}
    save_links(tmp_path, dict.fromkeys(("train", "valid", "test"), kinds | triples))
    data = ogb(tmp_path)
    assert isinstance(data, KnowledgeGraph) and (data.num_nodes, data.num_rels) == (5, 2)
    assert data.train.tolist() == [[1, 0, 4], [2, 1, 4]]
    save_links(tmp_path, dict.fromkeys(("train", "valid", "test"), triples))
    (tmp_path / "raw/triplet-type-list.csv.gz").unlink()
    write(tmp_path / "raw/edge.csv.gz", [(1, 2), (0, 2)])
    write(tmp_path / "raw/num-node-list.csv.gz", [3])
    write(tmp_path / "raw/num-edge-list.csv.gz", [2])
    plain = load_relational(str(tmp_path), seed=0)
    assert isinstance(plain, KnowledgeGraph) and plain.test.tolist() == [[1, 0, 2], [0, 1, 2]]


# ---------------------------------------------------------------- what `DatasetSaver` writes


def save_split(folder: Path, split: dict[str, Any]) -> None:
    (folder / "split/random").mkdir(parents=True)
    torch.save(split, folder / "split/random/split_dict.pt")
    (folder / "raw").mkdir()


def test_arrays_of_nodes_and_graphs(tmp_path: Path) -> None:
    ends = {"edge_index": np.array([[0, 1, 0], [1, 0, 2]]), "num_edges_list": np.array([3])}
    features = np.arange(6.0).reshape(3, 2) / 2
    save_split(tmp_path / "a", {part: np.array([i]) for i, part in enumerate(("train", "valid", "test"))})
    np.savez(tmp_path / "a/raw/data.npz", **ends, num_nodes_list=np.array([3]), node_feat=features, edge_feat=ends)
    np.savez(tmp_path / "a/raw/node-label.npz", node_label=np.array([[1], [0], [1]]))
    one = ogb(tmp_path / "a")
    assert isinstance(one, NodeData) and one.y.tolist() == [1, 0, 1] and one.val_mask.tolist() == [False, True, False]
    assert one.x.tolist() == features.tolist()
    save_split(tmp_path / "b", {part: np.array([i % 2]) for i, part in enumerate(("train", "valid", "test"))})
    counts = {"num_nodes_list": np.array([2, 3]), "num_edges_list": np.array([2, 1])}
    np.savez(tmp_path / "b/raw/data.npz", edge_index=ends["edge_index"], **counts)
    np.savez(tmp_path / "b/raw/graph-label.npz", graph_label=np.array([[1], [0]]))
    many = ogb(tmp_path / "b")
    assert isinstance(many, GraphSet) and many.edge_index.tolist() == [[0, 1, 2], [1, 0, 4]]


def test_arrays_of_types(tmp_path: Path) -> None:
    rows = {part: {"paper": np.array([i])} for i, part in enumerate(("train", "valid", "test"))}
    save_split(tmp_path, rows)
    raw = tmp_path / "raw"
    edges = {"author___writes___paper": np.array([[0, 1], [1, 2]]), "paper___cites___paper": np.array([[0], [2]])}
    np.savez(raw / "edge_index_dict.npz", **edges)
    np.savez(raw / "num_edges_dict.npz", **{name: np.array([ends.shape[1]]) for name, ends in edges.items()})
    np.savez(raw / "num_nodes_dict.npz", paper=np.array([3]), author=np.array([2]))
    np.savez(raw / "node_feat.npz", paper=np.array([(0.5, 1), (1, 2), (3, 4)]))
    np.savez(raw / "node-label.npz", paper=np.array([[1], [0], [1]]))
    check_typed(ogb(tmp_path))
    np.savez(raw / "edge_index_dict.npz", **{"a-b": edges["paper___cites___paper"]})
    with pytest.raises(DataError, match="HEAD___RELATION___TAIL"):
        ogb(tmp_path)
    torch.save({"train": []}, tmp_path / "split/random/split_dict.pt")
    np.savez(raw / "edge_index_dict.npz", **edges)
    with pytest.raises(DataError, match="expected train, valid, test"):
        ogb(tmp_path)


def test_a_split_that_runs_something_is_refused(tmp_path: Path) -> None:
    ogb_nodes(tmp_path)
    for part in ("train", "valid", "test"):
        torch.save(Path, tmp_path / f"split/time/{part}.pt")
    with pytest.raises(DataError, match=r"not a split that torch\.save wrote"):
        ogb(tmp_path)


def test_links_are_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ogb_nodes(tmp_path)
    for file in tmp_path.glob("split/time/*"):
        file.unlink()
    held = {"edge": torch.tensor([[3, 0], [0, 2]]), "edge_neg": torch.tensor([[3, 1], [2, 3]])}
    save_links(tmp_path, {"train": {"edge": torch.tensor([[0, 1], [1, 2]])}, "valid": held, "test": held})
    assert main(["train", "--data", str(tmp_path)]) == 2 and "Pass --task link" in capsys.readouterr().err
    command = ["train", "--data", str(tmp_path), "--task", "link", "--epochs", "1", "--no-compile", "--hidden", "8"]
    assert main(command) == 0
    assert "4 nodes, 2 features, 2/2/2 pairs" in capsys.readouterr().out
