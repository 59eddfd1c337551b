"""Folders of DGL's `CSVDataset`, read without DGL. The expected graphs are those that DGL 2.1 made of these tables."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graphweave import data
from graphweave.cli.named_data import load, load_for, load_relational
from graphweave.core.errors import DataError
from graphweave.data import GraphSet, KnowledgeGraph, NodeData, TypedNodeData
from graphweave.data.dgl_csv import read_dgl_csv

PLAIN = "dataset_name: small\nnode_data: [{file_name: nodes.csv}]\nedge_data: [{file_name: edges.csv}]\n"

TYPED = """
version: 1.0.0
dataset_name: shop
separator: ';'
node_data:
- {file_name: users.csv, ntype: user, node_id_field: name}
- {file_name: items.csv, ntype: item}
edge_data:
- {file_name: buys.csv, etype: [user, buys, item], src_id_field: user, dst_id_field: item}
- {file_name: likes.csv, etype: [user, likes, user]}
"""


def written(folder: Path, meta: str, **tables: str) -> Path:
    """The folder of a data set; a table's lines are separated by "|"."""
    (folder / "meta.yaml").write_text(meta)
    for name, lines in tables.items():
        (folder / f"{name}.csv").write_text(lines.replace("|", "\n") + "\n")
    return folder


def one_graph(folder: Path) -> Path:
    return written(
        folder,
        PLAIN,
        nodes='node_id,label,train_mask,val_mask,test_mask,feat|7,1,True,False,False,"0.5, 1"'
        '|3,0,False,True,False,"2, 3.5"|5,1,False,False,True,"4, 5"|9,2,True,False,False,"6, 7"',
        edges="src_id,dst_id,w,|3,7,0.5,1|7,5,1.5,1|9,3,2.5,1",
    )


def several_graphs(folder: Path) -> Path:
    return written(
        folder,
        f"{PLAIN}graph_data: {{file_name: graphs.csv}}\n",
        nodes="graph_id,node_id,feat|4,0,0|2,1,11|4,1,1|2,0,10|1,5,50|2,2,12",
        edges="graph_id,src_id,dst_id|2,0,1|4,1,0|2,2,1",
        graphs="graph_id,label,train_mask,val_mask,test_mask|4,1,1,0,0|1,0,0,1,0|2,1,0,0,1",
    )


def typed_graph(folder: Path) -> Path:
    return written(
        folder,
        TYPED,
        users="name;age|zoe;30|ann;20|bob;25",
        items="node_id;label|10;1|4;0",
        buys="user;item|zoe;4|ann;10",
        likes="src_id;dst_id|bob;ann|ann;zoe",
    )


def test_one_graph_is_classification_of_nodes(tmp_path: Path) -> None:
    """Nodes are numbered in the order of their identifiers."""
    one = data.dgl(one_graph(tmp_path))
    assert isinstance(one, NodeData) and one.edge_index.tolist() == [[0, 2, 3], [2, 1, 0]]
    assert one.x.tolist() == [[2, 3.5], [4, 5], [0.5, 1], [6, 7]] and one.y.tolist() == [0, 1, 1, 2]
    masks = (one.train_mask, one.val_mask, one.test_mask)
    assert [mask.nonzero().flatten().tolist() for mask in masks] == [[2, 3], [0], [1]]
    assert isinstance(load(str(tmp_path), symmetric=False, seed=0), NodeData)
    (graph,), labels = read_dgl_csv(tmp_path / "meta.yaml")
    (fields,) = graph.edge_fields.values()
    assert fields.keys() == {"w"} and fields["w"].tolist() == [0.5, 1.5, 2.5] and fields["w"].dtype == torch.float32
    assert labels == {}


def test_several_graphs_are_a_set(tmp_path: Path) -> None:
    """Graphs are in the order of their table; one of them has no edges."""
    several = data.dgl(several_graphs(tmp_path))
    assert isinstance(several, GraphSet) and several.graph_ptr.tolist() == [0, 2, 3, 6]
    assert several.edge_index.tolist() == [[1, 3, 5], [0, 4, 4]] and several.y.tolist() == [1, 0, 1]
    assert several.x.flatten().tolist() == [0, 1, 50, 10, 11, 12]
    assert [mask.tolist().index(True) for mask in (several.train_mask, several.val_mask, several.test_mask)] == [
        0,
        1,
        2,
    ]
    assert isinstance(load_for("graph", str(tmp_path), seed=0), GraphSet)


def test_types_and_text_as_identifiers(tmp_path: Path) -> None:
    typed = data.dgl(typed_graph(tmp_path))
    assert isinstance(typed, TypedNodeData) and typed.node_counts == (3, 2) and typed.y.tolist() == [-1, -1, -1, 0, 1]
    one_way = [[2, 3], [0, 4], [1, 0], [0, 2]]
    assert sorted(typed.edge_index.T.tolist()) == sorted(one_way + [[d, s] for s, d in one_way])
    assert isinstance(load_relational(str(tmp_path), seed=0), TypedNodeData)
    (graph,), _ = read_dgl_csv(tmp_path / "meta.yaml")
    assert graph.ends["user", "buys", "item"].tolist() == [[2, 0], [0, 1]]
    assert graph.node_fields["user"]["age"].tolist() == [20, 25, 30]


def test_a_knowledge_graph(tmp_path: Path) -> None:
    triples = data.dgl(
        written(
            tmp_path,
            PLAIN,
            nodes="node_id|0|1|2",
            edges="src_id,dst_id,etype,train_edge_mask,valid_edge_mask,test_edge_mask|0,1,0,1,0,0|1,2,1,0,1,0|2,0,1,0,0,1",
        )
    )
    assert isinstance(triples, KnowledgeGraph) and (triples.num_nodes, triples.num_rels) == (3, 2)
    assert [part.tolist() for _, part in triples.parts()] == [[[0, 0, 1]], [[1, 1, 2]], [[2, 1, 0]]]


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ("dataset_name: [", "not readable YAML"),
        ("- 1", r"expected dataset_name, .* needs dataset_name, edge_data, node_data \(got list\)"),
        (PLAIN.replace("dataset_name: small\n", ""), r"needs dataset_name, .* \(got node_data, edge_data\)"),
        (PLAIN.replace("file_name: nodes", "file: nodes"), r"in node_data, of which it needs file_name \(got file\)"),
        (f"{PLAIN}version: 2.0.0\n", r"expected the version 1\.0\.0 \(got 2\.0\.0\)"),
        ("dataset_name: a\nnode_data: 3\nedge_data: []\n", r"node_data must be a list \(got str\)"),
        (PLAIN.replace("nodes.csv}", "nodes.csv}, {file_name: edges.csv}"), "one entry of node_data for each ntype"),
        (
            PLAIN.replace("edges.csv", "edges.csv, etype: [a, b, _V]"),
            r"with types of node_data \(got \['a', 'b', '_V'\]\)",
        ),
        (PLAIN.replace("edges.csv", "none.csv"), r"none\.csv: not a readable table"),
        (f"{PLAIN}graph_data: {{file_name: edges.csv}}\n", "expected a column graph_id"),
    ],
)
def test_descriptions_that_are_refused(meta: str, expected: str, tmp_path: Path) -> None:
    one_graph(tmp_path)
    (tmp_path / "meta.yaml").write_text(meta)
    with pytest.raises(DataError, match=expected):
        data.dgl(tmp_path)


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ({"edges": "src_id,dst_id|3,8"}, r"expected the node 8, which dst_id in row 1 .* \(got none\)"),
        ({"edges": "src_id,dst_id|x,3"}, "expected the node x, which src_id"),
        ({"edges": "src_id,dst_id|3,"}, "expected values everywhere in src_id, dst_id"),
        ({"edges": "src_id|3"}, r"expected a column dst_id \(got src_id\)"),
        ({"edges": "graph_id,src_id,dst_id|1,3,3"}, r"or 0 without one \(got 1 in graph_id\)"),
        ({"nodes": "node_id,label|3,0|3,1"}, r"each node of a graph once \(got 3 twice\)"),
        ({"nodes": "node_id,label|3,red|4,blue"}, r"in the column label \(got 'red' first\)"),
        ({"nodes": 'node_id,feat|3,"1, 2"|4,"1"'}, "lists of one length, in the column feat"),
        ({"nodes": ""}, r"nodes\.csv: not a readable table"),
    ],
)
def test_tables_that_are_refused(tables: dict[str, str], expected: str, tmp_path: Path) -> None:
    written(one_graph(tmp_path), PLAIN, **tables)
    with pytest.raises(DataError, match=expected):
        data.dgl(tmp_path)


def test_graphs_that_are_refused(tmp_path: Path) -> None:
    """A node of another graph is no end of an edge, and each graph stands once in its table."""
    several_graphs(tmp_path)
    (tmp_path / "edges.csv").write_text("graph_id,src_id,dst_id\n1,5,1\n")
    with pytest.raises(DataError, match="expected the node 1, which dst_id"):
        data.dgl(tmp_path)
    (tmp_path / "graphs.csv").write_text("graph_id,label\n1,0\n1,1\n")
    with pytest.raises(DataError, match=r"expected each graph once \(got 1 twice\)"):
        data.dgl(tmp_path)
