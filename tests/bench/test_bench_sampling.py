"""The benchmark of sampled batches runs on a small graph."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench.runner import run
from bench.sampling import BENCH, build


def test_blocks_are_counted() -> None:
    found = {peer: int(make()()) for peer, make in build(2_000, 30_000).items()}
    assert min(found.values()) > 1_000 and found["memory"] == found["graphweave"]


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path: Path) -> None:
    out, threads = tmp_path / "sampling.json", str(torch.get_num_threads())
    assert run(BENCH, ["--quick", "--repeats", "1", "--threads", threads, "--out", str(out)]) == 0
    results = json.loads(out.read_text())["results"]
    blocks = results.pop("blocks")
    assert blocks["graphweave"]["edges"] > 0 and "needs DGL" in blocks["dgl"]["status"]
    assert len(results) == 4 and all(one["compilations"] <= 3 for one in results.values())
