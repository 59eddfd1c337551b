"""The benchmark of sampled batches runs on a small graph."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch

from bench import sampling


def test_blocks_are_counted() -> None:
    options = argparse.Namespace(rounds=2, batches=1, threads=1, dgl_python=None)
    found = sampling.drawn(torch.randint(2_000, (2, 30_000)), 2_000, options)
    assert list(found) == ["graphweave"] and found["graphweave"]["edges"] > 1_000


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path: Path) -> None:
    out = tmp_path / "sampling.json"
    assert (
        sampling.main(["--nodes", "3000", "--edges", "40000", "--rounds", "1", "--batches", "1", "--out", str(out)])
        == 0
    )
    steps = json.loads(out.read_text())["steps"]
    assert len(steps) == 4 and all(one["compilations"] <= 3 for one in steps.values())
