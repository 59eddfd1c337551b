"""Loaders and generators: what they give, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.graphs import data_dir
from graphweave.core.errors import DataError
from graphweave.data import NO_LABEL, NodeData, digits, karate, npz, planetoid, random_split, rmat, symmetrise


def small_file(path: Path, **changes: Any) -> Path:
    """Five nodes in a directed ring with labels and a split; `changes` replaces arrays, None removes them."""
    arrays: dict[str, Any] = {
        "src": np.array([0, 1, 2, 3, 4], np.int32),
        "dst": np.array([1, 2, 3, 4, 0], np.int32),
        "num_nodes": np.int64(5),
        "feat": np.arange(15, dtype=np.float32).reshape(5, 3) - 7,
        "y": np.array([0, 1, 0, 1, -1], np.int32),
        "num_classes": np.int64(2),
        "train_idx": np.array([0, 1], np.int32),
        "val_idx": np.array([2], np.int32),
        "test_idx": np.array([3], np.int32),
    }
    arrays.update(changes)
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return path


def test_digits_is_symmetric_and_split() -> None:
    data = digits(k=8, seed=3)
    assert (data.num_nodes, data.x.size(1), data.num_classes) == (1797, 64, 10)
    src, dst = data.edge_index
    assert set(zip(src.tolist(), dst.tolist(), strict=True)) == set(zip(dst.tolist(), src.tolist(), strict=True))
    assert int(src.bincount(minlength=1797).min()) >= 8
    assert torch.equal(data.train_mask.int() + data.val_mask.int() + data.test_mask.int(), torch.ones(1797).int())
    assert torch.equal(data.train_mask, digits(k=8, seed=3).train_mask)
    assert not torch.equal(data.train_mask, digits(k=8, seed=4).train_mask)


@pytest.mark.parametrize("k", [0, 1797])
def test_digits_refuses_k(k: int) -> None:
    with pytest.raises(DataError, match=rf"between 1 and 1796 \(got {k}\)"):
        digits(k=k)


def test_karate_has_zacharys_counts() -> None:
    data = karate()
    assert (data.num_nodes, data.num_edges, data.num_classes) == (34, 156, 2)
    assert data.edge_index[1].bincount().max() == 17
    assert data.y.bincount().tolist() == [17, 17]


def test_npz_reads_edges_features_labels_and_split(tmp_path: Path) -> None:
    data = npz(small_file(tmp_path / "a.npz"))
    assert data.edge_index.tolist() == [[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]]
    assert data.x[4].tolist() == [5, 6, 7]
    assert data.y.tolist() == [0, 1, 0, 1, NO_LABEL]
    masks = torch.stack([data.train_mask, data.val_mask, data.test_mask]).int()
    assert masks.tolist() == [[1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0]]


def test_npz_reads_grouped_edges(tmp_path: Path) -> None:
    file = small_file(tmp_path / "a.npz", src=None, indptr=np.array([0, 2, 2, 5, 5, 5]))
    assert npz(file).edge_index.tolist() == [[0, 0, 2, 2, 2], [1, 2, 3, 4, 0]]


@pytest.mark.parametrize("values", [[2.5], [1.0, -2.0, 3.0]])
def test_npz_reads_sparse_features(tmp_path: Path, values: list[float]) -> None:
    file = small_file(
        tmp_path / "a.npz",
        feat=None,
        feat_indptr=np.array([0, 1, 1, 1, 3, 3]),
        feat_indices=np.array([2, 0, 3]),
        feat_data=np.array(values, np.float32),
        feat_shape=np.array([5, 4]),
    )
    dense = torch.zeros(5, 4)
    dense[torch.tensor([0, 3, 3]), torch.tensor([2, 0, 3])] = torch.tensor(values)
    assert torch.equal(npz(file).x, dense)


def test_npz_draws_what_is_absent(tmp_path: Path) -> None:
    file = small_file(tmp_path / "a.npz", feat=None, train_idx=None, val_idx=None, test_idx=None, num_classes=None)
    data = npz(file, seed=1)
    assert data.x.shape == (5, 64)
    assert data.num_classes == 2
    assert torch.equal(data.x, npz(file, seed=1).x)
    assert not torch.equal(data.x, npz(file, seed=2).x)
    assert int((data.train_mask | data.val_mask | data.test_mask).sum()) == 4


def test_npz_without_labels_has_no_classes(tmp_path: Path) -> None:
    data = npz(small_file(tmp_path / "a.npz", y=None, num_classes=None))
    assert data.num_classes == 0
    assert not data.train_mask.any()


def test_npz_symmetric_adds_the_reverse(tmp_path: Path) -> None:
    data = npz(small_file(tmp_path / "a.npz", dst=np.array([1, 2, 3, 4, 4])), symmetric=True)
    assert data.edge_index.tolist() == [[0, 1, 1, 2, 2, 3, 3, 4], [1, 0, 2, 1, 3, 2, 4, 3]]


def test_npz_without_edges(tmp_path: Path) -> None:
    none = np.empty(0, np.int32)
    file = small_file(tmp_path / "a.npz", src=none, dst=none)
    assert npz(file).edge_index.shape == (2, 0)
    assert npz(file, symmetric=True).edge_index.shape == (2, 0)


BAD = [
    ({"num_nodes": None, "feat": None, "y": None}, "'num_nodes' is missing .*; got 'dst', 'num_classes', 'src', 'te"),
    ({"num_nodes": np.int64(-1)}, "'num_nodes' must be one non-negative integer"),
    ({"num_nodes": np.float32(5)}, "'num_nodes' must be one non-negative integer"),
    ({"dst": None}, "'dst' is missing"),
    ({"dst": np.array([1, 2, 3])}, "one length"),
    ({"dst": np.array([[1, 2, 3, 4, 0]])}, "one-dimensional integer"),
    ({"dst": np.array([1.0, 2, 3, 4, 0])}, "one-dimensional integer"),
    ({"dst": np.array([1, 2, 3, 4, 5])}, r"node 5 at edge 4 \(dst\) is out of range: the graph has 5 nodes"),
    ({"src": np.array([0, -1, 2, 3, 4])}, r"node -1 at edge 1 \(src\) is out of range"),
    ({"src": None, "indptr": np.array([0, 2, 5])}, "length 6"),
    ({"src": None, "indptr": np.array([0, 3, 2, 5, 5, 5])}, "without a step back"),
    ({"src": None, "indptr": np.array([0, 1, 2, 3, 4, 4])}, "rise from 0 to 5"),
    ({"feat": np.ones((4, 3), np.float32)}, r"shape \[5, features\] \(got \[4, 3\]\)"),
    ({"feat": np.ones(5, np.float32)}, r"shape \[5, features\] \(got \[5\]\)"),
    ({"feat": np.full((5, 3), np.nan)}, "row 0 has NaN or infinity"),
    ({"feat": np.array([["a"]] * 5)}, "must be numeric"),
    ({"y": np.zeros((5, 2), np.int64)}, r"shape \[5\]"),
    ({"y": np.array([0, 1, np.nan, 1, 0])}, r"whole numbers \(got nan\)"),
    ({"y": np.array([0, 1, 0.5, 1, 0])}, r"whole numbers \(got 0.5\)"),
    ({"y": np.array(["a"] * 5)}, "must be integers"),
    ({"y": np.array([0, 1, 2, 1, -1])}, "label 2 of node 2 is out of range: there are 2 classes"),
    ({"y": np.array([0, 1, -2, 1, -1])}, "label -2 of node 2"),
    ({"y": np.array([0, -1, 1, 1, 0])}, "node 1 is in the train split but has no label"),
    ({"test_idx": None}, "got only train_idx, val_idx"),
    ({"test_idx": np.array([7])}, "node 7 in 'test_idx' is out of range"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[message for _, message in BAD])
def test_npz_refuses(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    file = small_file(tmp_path / "bad.npz", **changes)
    with pytest.raises(DataError, match=message) as caught:
        npz(file)
    assert str(caught.value).startswith("bad.npz: ")
    assert "\n" not in str(caught.value)


BAD_SPARSE = [
    ({"feat_shape": np.array([4, 4])}, "'feat_shape' must be"),
    ({"feat_indices": np.array([2, 0, 4])}, "feature column 4 is out of range: there are 4 features"),
    ({"feat_indptr": np.array([0, 1, 1, 1, 2, 2])}, "'feat_indptr' must rise from 0 to 3"),
    ({"feat_data": np.ones(2, np.float32)}, "'feat_data' must have length 3 or 1"),
    ({"feat_data": np.full(3, np.inf, np.float32)}, "row 0 has NaN or infinity"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_SPARSE, ids=[message for _, message in BAD_SPARSE])
def test_npz_refuses_sparse_features(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    sparse = {
        "feat": None,
        "feat_indptr": np.array([0, 1, 1, 1, 3, 3]),
        "feat_indices": np.array([2, 0, 3]),
        "feat_data": np.ones(3, np.float32),
        "feat_shape": np.array([5, 4]),
    }
    with pytest.raises(DataError, match=message):
        npz(small_file(tmp_path / "bad.npz", **(sparse | changes)))


def test_npz_refuses_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.npz: no such file"):
        npz(tmp_path / "nowhere.npz")
    text = tmp_path / "text.npz"
    text.write_text("src dst\n0 1\n")
    with pytest.raises(DataError, match=r"not a readable \.npz"):
        npz(text)
    single = tmp_path / "single.npz"
    with single.open("wb") as file:
        np.save(file, np.arange(3))
    with pytest.raises(DataError, match="single array"):
        npz(single)


@pytest.mark.parametrize("keep", [0, 10, 200, -30])
def test_npz_refuses_a_truncated_file(tmp_path: Path, keep: int) -> None:
    file = small_file(tmp_path / "a.npz")
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"not a readable \.npz"):
        npz(file)


def test_npz_refuses_a_pickle(tmp_path: Path) -> None:
    file = small_file(tmp_path / "a.npz", y=np.array([0, None, 1, 1, 0], dtype=object))
    with pytest.raises(DataError, match=r"not a readable \.npz"):
        npz(file)


def test_node_data_refuses_tensors_of_other_types() -> None:
    good = karate()
    fields = {name: getattr(good, name) for name in NodeData.__dataclass_fields__}
    for name, value, message in (
        ("x", good.x.long(), "floating-point"),
        ("x", good.x[0], r"\[nodes, features\]"),
        ("edge_index", good.edge_index.int(), "must be int64"),
        ("edge_index", good.edge_index.t(), r"\[2, edges\]"),
        ("y", good.y.float(), "labels must be int64"),
        ("val_mask", good.val_mask.long(), "val_mask must be bool"),
        ("test_mask", good.test_mask[1:], "test_mask must be bool"),
    ):
        with pytest.raises(DataError, match=message):
            NodeData(**(fields | {name: value}))


def test_planetoid_refuses_an_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="unknown graph 'corra'"):
        planetoid("corra", root=tmp_path)
    assert not list(tmp_path.iterdir())


def test_planetoid_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch_geometric.datasets

    def refuse(*_: object) -> None:
        raise ConnectionError("no route to host\nsecond line")

    monkeypatch.setattr(torch_geometric.datasets, "Planetoid", refuse)
    with pytest.raises(DataError, match=r"download cora to .*: no route to host second line\. Check"):
        planetoid("cora", root=tmp_path)


@pytest.mark.parametrize(("nodes", "edges"), [(1, 0), (1, 7), (2, 3), (1000, 5000), (1025, 20000)])
def test_rmat_has_exact_counts(nodes: int, edges: int) -> None:
    edge_index = rmat(nodes, edges, seed=5)
    assert edge_index.shape == (2, edges)
    assert edge_index.dtype == torch.int64
    assert edges == 0 or (int(edge_index.min()) >= 0 and int(edge_index.max()) < nodes)
    assert torch.equal(edge_index, rmat(nodes, edges, seed=5))


def test_rmat_has_hubs_and_depends_on_the_seed() -> None:
    edge_index = rmat(4096, 40960, seed=0)
    in_degree = edge_index[1].bincount(minlength=4096)
    assert int(in_degree.max()) > 20 * 10  # uniform: mean 10, maximum about 25
    assert int((in_degree == 0).sum()) > 400  # uniform: none
    assert not torch.equal(edge_index, rmat(4096, 40960, seed=1))


@pytest.mark.parametrize(("nodes", "edges"), [(0, 1), (3, -1)])
def test_rmat_refuses_counts(nodes: int, edges: int) -> None:
    with pytest.raises(DataError, match="rmat"):
        rmat(nodes, edges)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.tuples(*[st.integers(0, n - 1)] * 2)))))
def test_symmetrise_is_the_symmetric_closure(graph: tuple[int, list[tuple[int, int]]]) -> None:
    num_nodes, pairs = graph
    ends = torch.tensor(pairs, dtype=torch.int32).reshape(-1, 2)
    both = symmetrise(ends[:, 0], ends[:, 1], num_nodes)
    wanted = sorted({(u, v) for u, v in pairs if u != v} | {(v, u) for u, v in pairs if u != v})
    assert [tuple(pair) for pair in both.t().tolist()] == wanted


def test_random_split_covers_the_labelled_nodes_once() -> None:
    y = torch.tensor([0, 1, -1, 2, 0, 1, -1, 2, 0, 1, 2, 0])
    train, val, test = random_split(y, seed=9)
    assert torch.equal(train.int() + val.int() + test.int(), (y >= 0).int())
    assert [int(mask.sum()) for mask in (train, val, test)] == [6, 2, 2]


@pytest.mark.data
def test_real_files_load() -> None:
    cora_file, arxiv_file = data_dir() / "cora.npz", data_dir() / "ogbn_arxiv_structure.npz"
    if not (cora_file.is_file() and arxiv_file.is_file()):
        pytest.skip(f"{data_dir()} holds no graph files (GRAPHWEAVE_DATA names their folder)")
    cora = npz(cora_file)
    assert (cora.num_nodes, cora.num_edges, cora.x.size(1), cora.num_classes) == (2708, 10556, 1433, 7)
    assert [int(mask.sum()) for mask in (cora.train_mask, cora.val_mask, cora.test_mask)] == [140, 500, 1000]
    arxiv = npz(arxiv_file, symmetric=True)
    assert (arxiv.num_nodes, arxiv.num_edges) == (169343, 2315598)
