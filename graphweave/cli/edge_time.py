"""Measures the time that this machine takes for an edge of a training step, for `graphweave partition --report`."""

from __future__ import annotations

import statistics
import time
from itertools import pairwise

import torch
from torch import Tensor

import graphweave
from graphweave.data import rmat

_EDGES = 1 << 19
_STEPS = 5


def measured_edge_seconds(widths: tuple[int, ...], mean_degree: float) -> float:
    """Seconds of a compiled training step for each edge: layers of these widths that add up neighbours' products, on an
    R-MAT graph of 524,288 edges and the given mean degree; the median of five steps, with the threads of PyTorch."""
    nodes = max(int(_EDGES / max(mean_degree, 0.5)), 2)
    src, dst = rmat(nodes, _EDGES)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(nodes, widths[0], generator=generator)
    weights = [(torch.randn(a, b, generator=generator) / a**0.5).requires_grad_() for a, b in pairwise(widths)]

    @graphweave.compile
    def loss(x: Tensor, src: Tensor, dst: Tensor, *weights: Tensor) -> Tensor:
        for weight in weights:
            z = x @ weight
            x = torch.zeros_like(z).index_add(0, dst, z[src]).relu()
        return x.square().mean()

    seconds = []
    for _ in range(_STEPS + 2):
        begin = time.perf_counter()
        loss(x, src, dst, *weights).backward()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[2:]) / _EDGES
