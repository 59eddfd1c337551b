"""The benchmarks of ranks run on small graphs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench import ranks
from graphweave.data import rmat
from tests.programs.graphs import zoo


@pytest.mark.slow
def test_partitioning_is_timed(tmp_path: Path) -> None:
    sizes = ["--nodes", "3000", "--edges", "20000", "--repeats", "1", "--methods", "metis"]
    assert ranks.main(["partition", *sizes, "--out", str(tmp_path / "out.json")]) == 0
    found = json.loads((tmp_path / "out.json").read_text())["results"]["rmat"]
    assert found["metis"]["ratio"] == found["metis"]["seconds"] / found["metis alone"]["seconds"]
    assert 0 < found["metis"]["edges cut"] < 0.75


def test_halos_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = zoo()[-1]
    np.savez(tmp_path / "g.npz", src=graph.src, dst=graph.dst, num_nodes=30)
    monkeypatch.setenv("GRAPHWEAVE_DATA", str(tmp_path))
    options = ["--graphs", "g", "--parts", "1", "3", "--methods", "metis", "random"]
    assert ranks.main(["halo", *options, "--out", str(tmp_path / "out.json")]) == 0
    rows = json.loads((tmp_path / "out.json").read_text())["results"]["g"]["rows"]
    assert [(row["parts"], row["method"]) for row in rows] == [(k, m) for k in (1, 3) for m in ("metis", "random")]
    assert rows[0]["halo"] == rows[0]["expected"] == 0 and rows[3]["halo"] > 0


@pytest.mark.slow
def test_training_with_narrower_and_older_halos_is_compared(tmp_path: Path) -> None:
    graph = rmat(60, 400)
    draw = np.random.default_rng(0)
    np.savez(
        tmp_path / "g.npz", src=graph[0], dst=graph[1], num_nodes=60, feat=draw.standard_normal((60, 5)).astype("f"),
        y=draw.integers(0, 3, 60), train_idx=np.arange(40), val_idx=np.arange(40, 50), test_idx=np.arange(50, 60),
    )  # fmt: skip
    options = ["--graph", "g", "--epochs", "5", "--method", "random", "--data-dir", str(tmp_path)]
    assert ranks.main(["halves", *options, "--out", str(tmp_path / "out.json")]) == 0
    found = json.loads((tmp_path / "out.json").read_text())["results"]["gcn g random"]["halos"]
    exact, half, old = (found[name] for name in ("exact", "bfloat16", "one step old"))
    assert half["bytes sent"] * 2 == exact["bytes sent"] == old["bytes sent"] > 0
    assert exact["losses"][0] == pytest.approx(old["losses"][0]) and exact["losses"][1] != old["losses"][1]
    assert exact["losses"] == pytest.approx(half["losses"], rel=0.03) and exact["losses"][-1] < exact["losses"][0]
    assert set(exact["accuracy"]) == {"1", "2", "5"}
