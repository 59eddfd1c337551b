"""The seeds of the batches that `bench.sampling` draws, the same in DGL's process."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

FANOUTS, SEEDS = (15, 10, 5), 1024


def drawn(nodes: int) -> Iterator[Tensor]:
    """The seeds of one batch after the other, without end."""
    generator = torch.Generator().manual_seed(0)
    while True:
        yield torch.randperm(nodes, generator=generator)[:SEEDS]
