"""The native code of greedy partitioning neither reads nor writes beyond its arrays."""

from __future__ import annotations

import pytest

from tests.sanitizer_support import run_sanitized

PROGRAM = """
import tempfile
from pathlib import Path

import numpy as np
import torch
from graphweave.distributed.graph_file import graph_file
from graphweave.distributed.methods import assigned
from tests.programs.graphs import zoo

src, dst = torch.randint(4_000, (2, 30_000), generator=torch.Generator().manual_seed(0))
graphs = [(src, dst, 4_000), *((g.src, g.dst, g.num_dst) for g in zoo() if g.square)]
with tempfile.TemporaryDirectory() as folder:
    for src, dst, nodes in graphs:
        np.savez(f"{folder}/g.npz", src=src, dst=dst, num_nodes=nodes)
        graph = graph_file(f"{folder}/g.npz")
        degrees = {"_N": torch.bincount(dst, minlength=nodes)}
        for parts in (1, 3, 70):
            for piece in (7_000 if nodes > 100 else 3, 1 << 20):
                assigned(graph, degrees, parts, "ldg", 0, piece, Path(folder))
"""


@pytest.mark.slow
@pytest.mark.sanitize
def test_greedy_partitioning_stays_within_its_arrays() -> None:
    run_sanitized(PROGRAM)
