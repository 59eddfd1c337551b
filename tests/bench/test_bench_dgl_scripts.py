"""The benchmark of DGL's scripts: the line that it adds, the data that stands in for downloads, and its verdicts."""

from __future__ import annotations

import ast
import sys
import threading
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import graphweave.dgl as dgl
from bench import relational_graphs
from bench.dgl_scripts import means, verdict
from bench.dgl_scripts_data import nodes_data, relations_data
from bench.dgl_scripts_worker import Epochs, with_line

SCRIPT = """
def train(model):
    loss = 0
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return optimizer

if __name__ == "__main__":
    net = Net()
    opt = getattr(optim, "SGD")(net.parameters(), 0.1)
"""


def test_one_line_is_added_before_each_optimizer() -> None:
    lines = ast.unparse(with_line(SCRIPT, "script.py")).splitlines()
    before = ast.unparse(ast.parse(SCRIPT)).splitlines()
    added = [line.strip() for line in lines if line not in before]
    assert added == ["model = prepared_by_the_benchmark(model)", "net = prepared_by_the_benchmark(net)"]
    assert [line for line in lines if line.strip() not in added] == before
    for line, following in pairwise(lines):
        if line.strip() in added:
            assert ".parameters()" in following
    with pytest.raises(ValueError, match="no optimizer"):
        with_line("x = 1", "script.py")


def test_losses_decide() -> None:
    assert verdict([1.0, 0.9], None) == "ok"
    assert verdict([1.00001, 0.9009], [1.0, 0.9]) == "ok"
    assert "epoch 0" in verdict([1.001, 0.9], [1.0, 0.9])
    assert "epoch 1" in verdict([1.0, 0.91], [1.0, 0.9])
    assert verdict([float("nan"), 0.9], None).startswith("wrong")


def test_means_are_geometric_and_leave_out_what_did_not_run() -> None:
    results = {"a": {"ratios": {"compiled": 2.0}}, "b": {"ratios": {"compiled": 8.0}}, "c": {"ratios": {}}}
    assert means(results, ["dgl", "compiled", "door"]) == {"compiled": pytest.approx(4.0)}


def test_data_sets_answer_with_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dgl", dgl)
    arrays = {
        "edge_index": torch.tensor([[0, 1], [1, 2]]), "x": torch.randn(3, 2), "y": torch.tensor([0, 1, 4]),
        **{f"{part}_mask": torch.tensor([part == "train", False, True]) for part in ("train", "val", "test")},
    }  # fmt: skip
    data = nodes_data(arrays, dgl.AddSelfLoop())
    assert data.num_classes == 5 and data[0].num_edges() == 5 and torch.equal(data[0].ndata["feat"], arrays["x"])
    data[0].ndata.pop("feat")
    assert "feat" in nodes_data(arrays)[0].ndata, "each data set has a graph of its own"

    case = relational_graphs.make("tiny", Path())
    typed = relations_data({name: getattr(case, name) for name in relational_graphs.Case.__slots__})
    graph = typed[0]
    assert graph.num_edges() == len(case.src) and len(graph.canonical_etypes) == case.num_relations
    labels, train = (graph.nodes[typed.predict_category].data[name] for name in ("labels", "train_mask"))
    assert int(labels.max()) < typed.num_classes and 0 < int(train.sum()) < len(train)


def test_a_script_runs_as_many_epochs_as_it_is_asked() -> None:
    epochs, done = Epochs(), list[int]()

    def script() -> None:
        epochs.begin()
        for i in range(5):
            done.append(i)
            epochs.step(SimpleNamespace())
        epochs.end(RuntimeError("over"))

    threading.Thread(target=script, daemon=True).start()
    assert epochs.run(2) >= 0 and done == [0, 1]
    assert epochs.run(1) >= 0 and done == [0, 1, 2]
    with pytest.raises(RuntimeError, match="over"):
        epochs.run(9)
    with pytest.raises(RuntimeError, match="over"):
        epochs.run(1)
