"""The benchmarks of ranks run on small graphs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench import ranks
from tests.programs.graphs import zoo


@pytest.mark.slow
def test_partitioning_is_timed(tmp_path: Path) -> None:
    sizes = ["--nodes", "3000", "--edges", "20000", "--rounds", "1", "--methods", "metis"]
    assert ranks.main(["partition", *sizes, "--out", str(tmp_path / "out.json")]) == 0
    found = json.loads((tmp_path / "out.json").read_text())["results"]
    assert found["metis"]["ratio"] == found["metis"]["seconds"] / found["metis alone"]["seconds"]
    assert 0 < found["metis"]["edges cut"] < 0.75


def test_halos_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = zoo()[-1]
    np.savez(tmp_path / "g.npz", src=graph.src, dst=graph.dst, num_nodes=30)
    monkeypatch.setenv("GRAPHWEAVE_DATA", str(tmp_path))
    options = ["--graphs", "g", "--parts", "1", "3", "--methods", "metis", "random"]
    assert ranks.main(["halo", *options, "--out", str(tmp_path / "out.json")]) == 0
    rows = json.loads((tmp_path / "out.json").read_text())["results"]
    assert [(row["parts"], row["method"]) for row in rows] == [(k, m) for k in (1, 3) for m in ("metis", "random")]
    assert rows[0]["halo"] == rows[0]["expected"] == 0 and rows[3]["halo"] > 0
