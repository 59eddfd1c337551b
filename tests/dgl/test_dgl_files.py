"""Files of DGL's `save_graphs`, which DGL itself wrote (`tests/dgl_saved.py`), read without DGL."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import graphweave.dgl as dgl
from graphweave import data
from graphweave.cli.named_data import load, load_for, load_relational
from graphweave.core.errors import DataError
from graphweave.data import GraphSet, KnowledgeGraph, NodeData, TypedNodeData

FILES = Path(__file__).parents[1] / "golden/dgl"
ROOT = Path(__file__).parents[2]
DGL_PYTHON = ROOT / ".venv-dgl/bin/python"


def test_one_graph_is_classification_of_nodes() -> None:
    one = data.dgl(FILES / "one.bin")
    assert isinstance(one, NodeData) and one.edge_index.tolist() == [[2, 0, 1, 2], [0, 1, 2, 0]]
    assert one.x.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]] and one.y.tolist() == [0, 1, 0, 1, 1]
    masks = (one.train_mask, one.val_mask, one.test_mask)
    assert [mask.nonzero().flatten().tolist() for mask in masks] == [[0, 3], [1], [2, 4]]
    assert isinstance(load(str(FILES / "one.bin"), symmetric=False, seed=0), NodeData)


def test_a_graph_with_types() -> None:
    typed = data.dgl(FILES / "typed.bin")
    assert isinstance(typed, TypedNodeData) and typed.node_counts == (2, 3) and typed.num_rels == 6
    assert typed.y.tolist() == [-1, -1, 0, 1, 0] and typed.train_mask.tolist() == [False, False, True, False, False]
    assert typed.features[0] is not None and typed.features[0].tolist() == [[1], [2]] and typed.features[1] is None
    both = [[0, 3], [1, 2], [1, 4], [3, 0]]
    assert sorted(typed.edge_index.T.tolist()) == sorted(both + [[d, s] for s, d in both])
    assert isinstance(load_relational(str(FILES / "typed.bin"), seed=0), TypedNodeData)


def test_several_graphs_are_a_set(tmp_path: Path) -> None:
    shutil.copy(FILES / "small.bin", tmp_path)  # the folder of a data set
    small = data.dgl(tmp_path)
    assert isinstance(small, GraphSet) and small.graph_ptr.tolist() == [0, 2, 5, 9, 11, 14]
    assert small.y.tolist() == [0, 1, 2, 0, 1]
    assert small.x.flatten().tolist() == [0, 1, 0, 1, 2, 0, 1, 2, 3, 0, 1, 0, 1, 2]
    assert small.edge_index.tolist() == [[0, 2, 3, 5, 6, 7, 9, 11, 12], [1, 3, 4, 6, 7, 8, 10, 12, 13]]
    assert isinstance(load_for("graph", str(tmp_path), seed=0), GraphSet)
    shutil.copy(FILES / "one.bin", tmp_path)
    with pytest.raises(DataError, match=r"expected meta\.yaml, or one file \.bin \(got one\.bin, small\.bin"):
        data.dgl(tmp_path)


def test_a_knowledge_graph() -> None:
    triples = data.dgl(FILES / "triples.bin")
    assert isinstance(triples, KnowledgeGraph) and (triples.num_nodes, triples.num_rels) == (4, 2)
    assert [part.tolist() for _, part in triples.parts()] == [[[0, 0, 1], [1, 1, 2]], [[2, 0, 3]], [[3, 1, 0]]]
    assert isinstance(load_relational(str(FILES / "triples.bin"), seed=0), KnowledgeGraph)


def edges_of(g: Any, key: Any = None) -> list[list[int]]:
    return [end.tolist() for end in g.edges(etype=key)]


def test_load_graphs_reads_dgls_files() -> None:
    (one,), nothing = dgl.load_graphs(FILES / "one.bin")
    assert not nothing and edges_of(one) == [[2, 0, 1, 2], [0, 1, 2, 0]] and one.num_nodes() == 5
    assert one.edata["w"].tolist() == [0.5, 1, 1.5, 2] and one.edata["w"].dtype == torch.float16
    (typed,), _ = dgl.load_graphs(str(FILES / "typed.bin"))
    assert typed.canonical_etypes == [("author", "to", "paper"), ("paper", "cites", "paper"), ("paper", "to", "author")]
    assert typed.idtype == torch.int32 and edges_of(typed, ("author", "to", "paper")) == [[0, 1, 1], [1, 0, 2]]
    assert typed.num_edges("cites") == 0
    assert typed.edges["author", "to", "paper"].data["when"].tolist() == [[7], [8], [9]]


@pytest.mark.parametrize("file", ["by_column.bin", "by_both.bin"])
def test_edges_keep_their_numbers_in_every_format(file: str) -> None:
    """A matrix by rows or columns is sorted by them, and says where each edge was."""
    loaded = dgl.load_graphs(FILES / file)[0][0]
    assert edges_of(loaded) == [[2, 0, 1, 2], [0, 1, 2, 0]] and loaded.edata["w"].tolist() == [0.5, 1, 1.5, 2]


def test_some_graphs_and_labels() -> None:
    file = FILES / "by_column.bin"
    (typed,), labels = dgl.load_graphs(file, [1])
    assert typed.ntypes == ["author", "paper"] and labels["y"].tolist() == [3, 4]
    assert dgl.data.load_labels(file)["y"].tolist() == [3, 4]
    with pytest.raises(DataError, match=r"holds graphs 0\.\.2 \(asked for 2\)"):
        dgl.load_graphs(file, 2)
    tensors = dgl.data.load_tensors(FILES / "tensors.bin")
    assert tensors["a"].tolist() == [0, 1, 2] and tensors["b"].equal(torch.ones(2, 2, dtype=torch.bfloat16))


def test_what_is_no_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="sets of graphs with types are not read"):
        data.dgl(FILES / "by_column.bin")
    with pytest.raises(DataError, match="does not begin as such files do"):
        data.dgl(FILES / "tensors.bin")
    with pytest.raises(DataError, match="no such file"):
        data.dgl(tmp_path / "none.bin")
    with pytest.raises(DataError, match=r"expected meta\.yaml, or one file \.bin \(got none"):
        data.dgl(tmp_path)
    dgl.save_graphs(tmp_path / "ours.bin", dgl.rand_graph(3, 5))
    with pytest.raises(DataError, match="does not begin as such files do"):
        data.dgl(tmp_path / "ours.bin")


@pytest.mark.parametrize("file", ["typed.bin", "by_column.bin", "small.bin", "tensors.bin"])
def test_damaged_files_are_refused(file: str, tmp_path: Path) -> None:
    """Any bytes either are a graph or raise DataError: no crash, no memory that the file does not have."""
    whole = (FILES / file).read_bytes()
    draw = random.Random(0)
    places = [place for place in range(len(whole)) if not 32 <= place < 4096 or file == "tensors.bin"]
    for trial in range(60):
        broken = bytearray(whole)
        for place in draw.sample(places, 1 + trial % 3):
            broken[place] = draw.choice((0, 1, 127, 255, broken[place] ^ 1))
        damaged = tmp_path / "damaged.bin"
        damaged.write_bytes(broken[: draw.choice((len(broken), draw.randrange(len(broken))))])
        for read in (dgl.load_graphs, dgl.data.load_labels):
            try:
                read(damaged)
            except DataError as error:
                assert "\n" not in str(error)


@pytest.mark.slow
@pytest.mark.skipif(not DGL_PYTHON.exists(), reason="needs DGL's environment, which `make bench-peers` makes")
def test_dgl_still_writes_these_files(tmp_path: Path) -> None:
    subprocess.run([DGL_PYTHON, ROOT / "tests/dgl_saved.py", tmp_path], check=True)
    for file in sorted(FILES.iterdir()):
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name
