"""The native code of points neither reads nor writes beyond its arrays."""

from __future__ import annotations

import pytest

from tests.sanitizer_support import run_sanitized

PROGRAM = """
import torch
from graphweave.points import NeighbourList, fps, grid, knn, knn_graph, nearest, neighbours, radius, radius_graph

generator = torch.Generator().manual_seed(0)
for dims in (1, 2, 3, 8):
    for counts in ((0,), (1,), (15, 0, 17), (16, 16), (1, 33, 2100)):
        batch = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        for x in (torch.rand(len(batch), dims, generator=generator), torch.zeros(len(batch), dims)):
            for k in (1, 3, 40):
                knn_graph(x, k, batch)
                radius_graph(x, 0.1, batch, max_num_neighbors=k)
            radius_graph(x[:200], 0.2, batch[:200])
            knn(x[::2], x[1::2], 3, batch[::2], batch[1::2])
            radius(x[::2], x[1::2], 0.1, batch[::2], batch[1::2], max_num_neighbors=5)
            fps(x, batch, 0.3)
            grid(x, 0.1)
cell = torch.tensor([[1.0, 0, 0], [0.4, 0.9, 0], [0.2, -0.3, 1.1]], dtype=torch.float64)
for count in (0, 1, 1500):
    pos = torch.rand(count, 3, dtype=torch.float64, generator=generator) @ cell
    for periodic in (True, (True, False, True), False):
        near = NeighbourList(0.1, 0.02)
        near(pos, cell, periodic)
        near(pos + 0.001, cell, periodic)
        neighbours(pos[:20], 1.5, cell, periodic)
"""


@pytest.mark.slow
@pytest.mark.sanitize
def test_native_code_is_clean_under_sanitizers() -> None:
    run_sanitized(PROGRAM)
