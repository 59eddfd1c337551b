"""What the loaders and the generator of relational data return, and which inputs they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.graphs import data_dir
from graphweave.core.errors import DataError
from graphweave.data import FAMILY_RELATIONS, NO_LABEL, KnowledgeGraph, TypedNodeData, families, relational

KG: dict[str, Any] = {
    "num_nodes": np.int64(4), "num_relations": np.int64(2),
    "train_head": np.array([0, 1, 3], np.int32), "train_rel": np.array([0, 1, 1], np.int32),
    "train_tail": np.array([1, 2, 3], np.int32),
    "valid_head": np.array([2]), "valid_rel": np.array([0]), "valid_tail": np.array([0]),
    "test_head": np.array([], int), "test_rel": np.array([], int), "test_tail": np.array([], int),
}  # fmt: skip
RDF: dict[str, Any] = {
    "num_nodes": np.int64(4), "num_relations": np.int64(2), "head": np.array([0, 1, 3]), "rel": np.array([0, 1, 1]),
    "tail": np.array([1, 2, 3]), "y": np.array([0, -1, 1, 0]), "num_classes": np.int64(2),
    "train_idx": np.array([0, 2]), "test_idx": np.array([3]), "rel_names": np.array(["a", "b"]),
}  # fmt: skip
HET: dict[str, Any] = {
    "node_type_names": np.array(["film", "actor"]), "node_counts": np.array([3, 2]),
    "edge_type_names": np.array(["film|has|actor", "actor|knows|actor"]), "target": np.array("actor"),
    "edge_has_src": np.array([0, 2, 2], np.int32), "edge_has_dst": np.array([1, 0, 1], np.int32),
    "edge_knows_src": np.array([0]), "edge_knows_dst": np.array([1]),
    "feat_film": np.arange(6, dtype=np.float32).reshape(3, 2) - 3, "y": np.array([1, 0]),
    "train_20_idx": np.array([1]), "val_20_idx": np.array([], int), "test_20_idx": np.array([0]),
    "train_9_idx": np.array([0]), "val_9_idx": np.array([1]), "test_9_idx": np.array([0]),
}  # fmt: skip
KINDS = {"kg": KG, "rdf": RDF, "het": HET}


def saved(path: Path, arrays: dict[str, Any]) -> Path:
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return path


def test_a_knowledge_graph(tmp_path: Path) -> None:
    kg = relational(saved(tmp_path / "kg.npz", KG))
    assert isinstance(kg, KnowledgeGraph)
    assert (kg.num_nodes, kg.num_rels, kg.name) == (4, 2, "kg.npz")
    assert kg.train.tolist() == [[0, 0, 1], [1, 1, 2], [3, 1, 3]]
    assert kg.valid.tolist() == [[2, 0, 0]] and kg.test.shape == (0, 3)


def test_rdf(tmp_path: Path) -> None:
    data = relational(saved(tmp_path / "rdf.npz", RDF))
    assert isinstance(data, TypedNodeData)
    assert data.edge_index.tolist() == [[0, 1, 3, 1, 2, 3], [1, 2, 3, 0, 1, 3]]
    assert data.etype.tolist() == [0, 1, 1, 2, 3, 3] and data.num_rels == 4
    assert (data.node_counts, data.features, data.num_classes) == ((4,), (None,), 2)
    assert data.ntype.tolist() == [0, 0, 0, 0]
    masks = [mask.nonzero().flatten().tolist() for mask in (data.train_mask, data.val_mask, data.test_mask)]
    assert masks == [[0, 2], [], [3]]


def test_a_typed_graph(tmp_path: Path) -> None:
    """Nodes are grouped by type, reverse edges are own relations, and the largest of several splits is used."""
    data = relational(saved(tmp_path / "het.npz", HET))
    assert isinstance(data, TypedNodeData)
    assert data.edge_index.tolist() == [[0, 2, 2, 4, 3, 4, 3, 4], [4, 3, 4, 0, 2, 2, 4, 3]]
    assert data.etype.tolist() == [0, 0, 0, 1, 1, 1, 2, 3] and data.num_rels == 4
    assert data.ntype.tolist() == [0, 0, 0, 1, 1]
    assert data.y.tolist() == [NO_LABEL] * 3 + [1, 0]
    assert data.features[0] is not None and data.features[0][2].tolist() == [1, 2] and data.features[1] is None
    masks = [mask.nonzero().flatten().tolist() for mask in (data.train_mask, data.val_mask, data.test_mask)]
    assert masks == [[4], [], [3]]


def test_sparse_features_of_a_type(tmp_path: Path) -> None:
    sparse = {
        "feat_film": None, "feat_film_indptr": np.array([0, 0, 2, 3]), "feat_film_indices": np.array([1, 3, 0]),
        "feat_film_data": np.array([-2.0, 0.5, 1.0], np.float32), "feat_film_shape": np.array([3, 4]),
    }  # fmt: skip
    data = relational(saved(tmp_path / "het.npz", HET | sparse))
    assert isinstance(data, TypedNodeData) and data.features[0] is not None
    assert data.features[0].tolist() == [[0, 0, 0, 0], [0, -2, 0, 0.5], [1, 0, 0, 0]]


def test_a_split_is_drawn_where_there_is_none(tmp_path: Path) -> None:
    many = {"num_nodes": np.int64(50), "y": np.arange(50) % 3 - 1, "num_classes": None}
    file = saved(tmp_path / "rdf.npz", RDF | many | {"train_idx": None, "test_idx": None})
    first, again, other = relational(file, seed=1), relational(file, seed=1), relational(file, seed=2)
    assert all(isinstance(data, TypedNodeData) for data in (first, again, other))
    assert torch.equal(first.train_mask, again.train_mask) and not torch.equal(first.train_mask, other.train_mask)
    assert [int(m.sum()) for m in (first.train_mask, first.val_mask, first.test_mask)] == [20, 6, 7]


BAD = [
    ("kg", {"num_nodes": None}, "'num_nodes' is missing"),
    ("kg", {"num_relations": np.float32(2)}, "'num_relations' must be one non-negative integer"),
    ("kg", {"valid_rel": None}, "'valid_rel' is missing"),
    ("kg", {"test_head": None, "test_rel": None, "test_tail": None}, "'test_head' is missing"),
    ("kg", {"train_tail": np.array([1, 2])}, r"'train_tail' must have one length \(got 3, 3 and 2\)"),
    ("kg", {"train_tail": np.array([1.0, 2, 3])}, "one-dimensional integer"),
    ("kg", {"train_tail": np.array([1, 4, 3])}, r"train: node 4 of triple 1 \(tail\) is out of range: there are 4"),
    ("kg", {"train_rel": np.array([0, 1, -1])}, r"relation -1 of triple 2 \(rel\) is out of range: there are 2"),
    ("kg", {"valid_rel": np.array([2])}, "valid: relation 2 of triple 0"),
    ("rdf", {"y": None}, "'y' is missing"),
    ("rdf", {"y": np.array([0, -1, 2, 0])}, "label 2 of node 2 is out of range"),
    ("rdf", {"head": np.array([0, 1, 4])}, "node 4 of triple 2"),
    ("rdf", {"train_idx": np.array([0, 1])}, "node 1 is in the train split but has no label"),
    ("rdf", {"test_idx": None}, "'test_idx' is missing"),
    ("rdf", {"test_idx": np.array([4])}, "node 4 in 'test_idx' is out of range: the labelled type has 4 nodes"),
    ("het", {"node_counts": np.array([3])}, "'node_counts' must be 2 numbers"),
    ("het", {"target": np.array("director")}, r"'target' must be one of film, actor \(got 'director'\)"),
    ("het", {"target": None}, "'target' is missing"),
    ("het", {"edge_type_names": np.array(["film|has"])}, "must be source|relation|target"),
    ("het", {"edge_type_names": np.array(["film|has|director"])}, "of types film, actor"),
    ("het", {"edge_type_names": np.array([3])}, "must be one string or several"),
    ("het", {"edge_has_dst": None}, "'edge_has_dst' is missing"),
    ("het", {"edge_has_dst": np.array([0, 1])}, r"must have one length \(got 3 and 2\)"),
    ("het", {"edge_has_dst": np.array([0, 2, 1])}, "node 2 in 'edge_has_dst' is out of range: type actor has 2"),
    ("het", {"y": np.array([1, 0, 1])}, r"shape \[2\]"),
    ("het", {"feat_film": np.zeros((2, 2))}, r"shape \[3, features\]"),
    ("het", {"feat_film": np.full((3, 2), np.nan)}, "must be finite"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "changes", "message"), BAD, ids=[f"{kind}: {message}" for kind, _, message in BAD])
def test_bad_files_are_refused(tmp_path: Path, kind: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        relational(saved(tmp_path / "bad.npz", KINDS[kind] | changes))
    assert str(caught.value).startswith("bad.npz: ") and "\n" not in str(caught.value)


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    ring = {"src": np.arange(3), "dst": np.array([1, 2, 0]), "num_nodes": np.int64(3)}
    with pytest.raises(DataError, match=r"a graph without relations \(expected \{train,valid,test\}"):
        relational(saved(tmp_path / "ring.npz", ring))
    with pytest.raises(DataError, match=r"no relational graph \(expected"):
        relational(saved(tmp_path / "x.npz", {"x": np.zeros(3)}))
    with pytest.raises(DataError, match=r"nowhere\.npz: no such file"):
        relational(tmp_path / "nowhere.npz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": ()}, "features, or None, for each of 2 node types"),
        ({"features": (torch.zeros(3, 2), torch.zeros(3, 2))}, "features of 3 nodes for a type of 2"),
        ({"etype": torch.zeros(8)}, r"relations must be int64 \[8\]"),
        ({"etype": torch.tensor([0, 0, 4, 0, 0, 0, 0, 0])}, "relation 4 of edge 2 is out of range: there are 4"),
        ({"edge_index": torch.zeros(8, 2)}, r"\[2, edges\]"),
        ({"y": torch.zeros(4, dtype=torch.int64)}, r"shape \[5\]"),
    ],
)
def test_typed_node_data_refuses(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    good = relational(saved(tmp_path / "het.npz", HET))
    fields = {name: getattr(good, name) for name in TypedNodeData.__dataclass_fields__}
    with pytest.raises(DataError, match=message):
        TypedNodeData(**(fields | changes))


def test_families_follow_their_rules() -> None:
    """Over all splits, each derived relation is what its rule gives for each person."""
    kg = families(count=3, seed=5)
    of: dict[str, set[tuple[int, int]]] = {name: set() for name in FAMILY_RELATIONS}
    for head, rel, tail in torch.cat([kg.train, kg.valid, kg.test]).tolist():
        of[FAMILY_RELATIONS[rel]].add((head, tail))
    people = range(kg.num_nodes)
    parents = {x: {h for h, t in of["parent_of"] if t == x} for x in people}
    assert all(len(parents[x]) in (0, 2) for x in people)
    assert of["married_to"] == {(b, a) for a, b in of["married_to"]}
    siblings = {(x, y) for x in people for y in people if x != y and parents[x] & parents[y]}
    aunts = {(x, y) for y in people for p in parents[y] for x in people if (x, p) in siblings}
    assert of["sibling_of"] == siblings
    assert of["grandparent_of"] == {(g, y) for y in people for p in parents[y] for g in parents[p]}
    assert of["aunt_or_uncle_of"] == aunts
    assert of["cousin_of"] == {(x, y) for a, y in aunts for x in people if a in parents[x]}


def test_families_are_split_once_and_depend_on_the_seed() -> None:
    kg = families(count=4, seed=1)
    triples = torch.cat([kg.train, kg.valid, kg.test])
    assert len(torch.unique(triples, dim=0)) == len(triples)
    assert not bool((torch.cat([kg.valid, kg.test])[:, 1] < 2).any())
    derived = int((triples[:, 1] >= 2).sum())
    assert abs(len(kg.test) - derived / 10) <= 1 and abs(len(kg.valid) - derived / 10) <= 1
    assert torch.equal(kg.train, families(count=4, seed=1).train)
    assert not torch.equal(kg.train[:50], families(count=4, seed=2).train[:50])
    with pytest.raises(DataError, match=r"one family at least \(got 0\)"):
        families(count=0)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "sizes"),
    [("fb15k_237", (14541, 237, 272115, 17535, 20466)), ("wn18rr", (40943, 11, 86835, 3034, 3134))],
)
def test_real_knowledge_graphs(name: str, sizes: tuple[int, ...]) -> None:
    file = data_dir() / f"{name}.npz"
    if not file.is_file():
        pytest.skip(f"{file} is absent (GRAPHWEAVE_DATA names its folder)")
    kg = relational(file)
    assert isinstance(kg, KnowledgeGraph)
    assert (kg.num_nodes, kg.num_rels, len(kg.train), len(kg.valid), len(kg.test)) == sizes


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("rdf_aifb", (8285, 58086, 90, 140, 0, 36, 4)),
        ("het_imdb", (11616, 34212, 4, 400, 400, 3478, 3)),
        ("het_acm", (11246, 34852, 4, 180, 1000, 1000, 3)),
    ],
)
def test_real_typed_graphs(name: str, sizes: tuple[int, ...]) -> None:
    file = data_dir() / f"{name}.npz"
    if not file.is_file():
        pytest.skip(f"{file} is absent (GRAPHWEAVE_DATA names its folder)")
    data = relational(file)
    assert isinstance(data, TypedNodeData)
    split = [int(mask.sum()) for mask in (data.train_mask, data.val_mask, data.test_mask)]
    assert (data.num_nodes, data.num_edges, data.num_rels, *split, data.num_classes) == sizes
