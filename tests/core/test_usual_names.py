"""Data files with the names of PyTorch Geometric and DGL: read like the same arrays under our own names, and what is
left over is told."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graphweave.core.errors import DataError
from graphweave.data import NodeData, TypedNodeData, graph_set, interactions, npz, point_set, relational
from graphweave.distributed.graph_file import GraphFile, graph_file
from graphweave.distributed.parts import EDGES, NODES

RANDOM = np.random.default_rng(0)
SRC, DST = np.array([0, 1, 2, 3, 4, 1]), np.array([1, 2, 3, 4, 0, 3])
FEAT, LABEL = RANDOM.normal(size=(6, 3)).astype(np.float32), np.array([0, 1, 0, 1, 2, 2])
OWN = {
    "src": SRC, "dst": DST, "num_nodes": np.int64(6), "feat": FEAT, "y": LABEL, "train_idx": np.array([0, 1, 4]),
    "val_idx": np.array([2]), "test_idx": np.array([3, 5]),
}  # fmt: skip
MASKS = {f"{part}_mask": np.isin(np.arange(6), OWN[f"{part}_idx"]) for part in ("train", "val", "test")}
PYG = {"x": FEAT, "edge_index": np.stack([SRC, DST]), "y": LABEL, **MASKS}
DGL = {"src": SRC, "dst": DST, "num_nodes": np.int64(6), "feat": FEAT, "label": LABEL} | {
    name: mask.astype(np.uint8) for name, mask in MASKS.items()
}


def saved(path: Path, arrays: dict[str, Any]) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What loaders have warned of since the last call."""

    def lines() -> list[str]:
        found = [r.getMessage() for r in caplog.records if r.name.startswith("graphweave.data")]
        caplog.clear()
        return found

    caplog.set_level(logging.WARNING)
    return lines


def same(a: Any, b: Any) -> bool:
    fields = [name for name in type(a).__dataclass_fields__ if name != "name"]
    values = [(getattr(a, name), getattr(b, name)) for name in fields]
    return all(torch.equal(v, w) if isinstance(v, torch.Tensor) else v == w for v, w in values)


@pytest.mark.parametrize("usual", [PYG, DGL, PYG | {"num_nodes": np.int64(6)}], ids=["pyg", "dgl", "pyg and a number"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_names_of_pyg_and_dgl(
    usual: dict[str, Any], symmetric: bool, tmp_path: Path, told: Callable[[], list[str]]
) -> None:
    data = npz(saved(tmp_path / "usual.npz", usual), symmetric=symmetric)
    assert same(data, npz(saved(tmp_path / "own.npz", OWN), symmetric=symmetric))
    assert told() == []
    assert data.x.tolist() == FEAT.tolist(), "not what is drawn where there are none"


@pytest.mark.parametrize("usual", [PYG, DGL], ids=["pyg", "dgl"])
def test_partitions_take_the_same_names(usual: dict[str, Any], tmp_path: Path, told: Callable[[], list[str]]) -> None:
    def read(arrays: dict[str, Any], name: str) -> tuple[Any, ...]:
        graph: GraphFile = graph_file(saved(tmp_path / name, arrays))
        ((src, dst),) = graph.edges[EDGES].pieces(100)
        rows = {key: source.rows(torch.arange(6)).tolist() for key, source in graph.node_data[NODES].items()}
        return graph.num_nodes, src.tolist(), dst.tolist(), rows, graph.num_classes

    assert read(usual, "usual.npz") == read(OWN, "own.npz")
    assert told() == []


def test_sets_of_graphs_take_the_names_of_batches(tmp_path: Path, told: Callable[[], list[str]]) -> None:
    src, dst = np.array([0, 1, 2, 3, 4, 5]), np.array([1, 0, 3, 4, 2, 6])
    y = np.array([0, 1, 0])
    batch = np.array([0, 0, 1, 1, 1, 2, 2])
    x = RANDOM.normal(size=(7, 2)).astype(np.float32)
    own = {"src": src, "dst": dst, "num_nodes": np.int64(7), "graph_ptr": np.array([0, 2, 5, 7]), "feat": x, "y": y}
    wanted = graph_set(saved(tmp_path / "own.npz", own))
    for name, more in (("batch", {"batch": batch}), ("ptr", {"ptr": own["graph_ptr"]})):
        usual = {"x": x, "edge_index": np.stack([src, dst]), "y": y, **more}
        assert same(graph_set(saved(tmp_path / f"{name}.npz", usual)), wanted), name
    assert told() == []
    mixed = {key: value for key, value in own.items() if key != "graph_ptr"} | {"batch": batch[::-1]}
    with pytest.raises(DataError, match=r"array 'graph_ptr' is missing .*; got 'batch', 'dst', "):
        graph_set(saved(tmp_path / "mixed.npz", mixed))


def test_features_of_types(tmp_path: Path, told: Callable[[], list[str]]) -> None:
    own = {
        "node_type_names": np.array(["a", "b"]), "node_counts": np.array([4, 2]),
        "edge_type_names": np.array(["a|r|b"]), "edge_r_src": np.array([0, 3]),
        "edge_r_dst": np.array([1, 1]), "target": np.array("a"),
        "y": np.array([0, 1, 1, 0]), "feat_a": FEAT[:4], "feat_b": FEAT[:2],
    }  # fmt: skip
    usual = own | {"x_a": FEAT[:4], "x_b": FEAT[:2], "label": own["y"]}
    for key in ("feat_a", "feat_b", "y"):
        del usual[key]
    wanted, found = (relational(saved(tmp_path / f"{i}.npz", one)) for i, one in enumerate((own, usual)))
    assert isinstance(wanted, TypedNodeData) and isinstance(found, TypedNodeData)
    assert [x is not None and x.tolist() for x in found.features] == [FEAT[:4].tolist(), FEAT[:2].tolist()]
    assert torch.equal(found.y, wanted.y)
    assert told() == []


def test_drawn_features_and_unused_arrays_are_told(tmp_path: Path, told: Callable[[], list[str]]) -> None:
    file = saved(tmp_path / "g.npz", {k: v for k, v in OWN.items() if k != "feat"} | {"feats": FEAT, "edge_attr": SRC})
    assert npz(file).x.shape == (6, 64)
    assert told() == [
        "g.npz: no features were found (looked for 'feat', 'x', 'features', and 'feat_indptr' of a CSR matrix), so 64 "
        "random numbers are drawn for each node.",
        "g.npz: 'feats', 'edge_attr' are not used. docs/data.md has the names that are read.",
    ]
    npz(saved(tmp_path / "both.npz", OWN | {"x": FEAT + 1, "class_names": np.array(["a", "b", "c"])}))
    assert told() == ["both.npz: 'x' is not used. docs/data.md has the names that are read."]
    npz(saved(tmp_path / "unlabelled.npz", {k: v for k, v in OWN.items() if k != "y"}))
    assert told() == [
        "unlabelled.npz: 'train_idx', 'val_idx', 'test_idx' are not used. docs/data.md has the names that are read."
    ]


@pytest.mark.parametrize(
    ("read", "arrays"),
    [
        (relational, {"head": SRC, "rel": SRC * 0, "tail": DST, "y": LABEL, "num_nodes": 6, "num_relations": 1}),
        (
            relational,
            {f"{part}_{column}": SRC * 0 for part in ("train", "valid", "test") for column in ("head", "rel", "tail")}
            | {"num_nodes": 6, "num_relations": 1},
        ),
        (point_set, {"points": RANDOM.normal(size=(6, 5, 3)), "y": LABEL}),
        (
            interactions,
            {"train_user": SRC, "train_item": DST, "test_user": SRC, "test_item": DST, "num_users": 6, "num_items": 6},
        ),
        (graph_set, OWN | {"graph_ptr": np.array([0, 6]), "y": np.array([1.0])}),
        (graph_file, OWN),
    ],
)
def test_every_loader_tells_what_it_does_not_use(
    read: Callable[[Path], Any], arrays: dict[str, Any], tmp_path: Path, told: Callable[[], list[str]]
) -> None:
    arrays = {k: v for k, v in arrays.items() if read is not graph_set or not k.endswith("_idx")}
    read(saved(tmp_path / "all.npz", arrays))
    assert told() == []
    read(saved(tmp_path / "more.npz", arrays | {"weight": np.ones(3), "relation_names": np.array(["r"])}))
    assert told() == ["more.npz: 'weight' is not used. docs/data.md has the names that are read."]


def test_splits_of_other_sizes_are_passed_over(tmp_path: Path, told: Callable[[], list[str]]) -> None:
    rdf = {"head": SRC, "rel": SRC * 0, "tail": DST, "y": LABEL, "num_nodes": 6, "num_relations": 1}
    splits = {f"{part}_{n}_idx": np.arange(n // 10) for part in ("train", "val", "test") for n in (20, 40)}
    data = relational(saved(tmp_path / "sizes.npz", rdf | splits))
    assert isinstance(data, TypedNodeData) and int(data.train_mask.sum()) == 4
    graph_file(tmp_path / "sizes.npz")
    assert told() == []


def test_partitions_name_the_arrays_of_the_file(tmp_path: Path) -> None:
    for changes, message in (
        ({"x": FEAT[:, 0]}, r"features 'x' must be numbers \[6, features\]"),
        ({"train_mask": np.ones(7, bool)}, "'train_mask' must have 6 entries"),
        ({"y": LABEL[:5]}, r"labels 'y' must have shape \[6\]"),
    ):
        with pytest.raises(DataError, match=message):
            graph_file(saved(tmp_path / "bad.npz", PYG | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"edge_index": np.stack([SRC, DST], 1)},
            r"'edge_index' must be integers \[2, edges\], .* \(got int64 \[6, 2\]",
        ),
        ({"edge_index": np.stack([SRC, DST]) / 1}, r"'edge_index' must be integers .* \(got float64 \[2, 6\]"),
        ({"edge_index": np.stack([SRC, DST + 2])}, "node 6 at edge 3"),
        ({"x": FEAT[:5]}, r"labels 'y' must have shape \[5\]"),
        ({"x": np.array([["a"]] * 6)}, "'x' must be numeric"),
        ({"train_mask": np.ones(7, bool)}, "'train_mask' must have 6 entries, one for each node .got 7"),
        (
            {"train_mask": np.ones((6, 10), bool)},
            "a split needs train_idx, val_idx and test_idx .got only val_idx, test",
        ),
        ({"train_mask": np.array([0, 1, 2, 0, 0, 0])}, "a split needs train_idx, val_idx and test_idx"),
        ({"train_mask": np.array([0, 1, -1, 0, 0, 0])}, "a split needs train_idx, val_idx and test_idx"),
        ({"x": None, "y": None}, "array 'num_nodes' is missing"),
        ({"edge_index": None}, "array 'dst' is missing"),
    ],
)
def test_errors_name_the_arrays_of_the_file(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    arrays = {key: value for key, value in (PYG | changes).items() if value is not None}
    with pytest.raises(DataError, match=message):
        npz(saved(tmp_path / "bad.npz", arrays))


def test_labels_tell_the_number_of_nodes_where_nothing_else_does(tmp_path: Path) -> None:
    data: NodeData = npz(saved(tmp_path / "g.npz", {"edge_index": np.stack([SRC, DST]), "label": LABEL}))
    assert (data.num_nodes, data.num_classes) == (6, 3)
