"""Training steps on one batch after the other, eager PyG and graphweave in turn, and the losses of such models."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

import graphweave
from bench.steps import drop_gradients

WARM = 4
"""Batches before the timed ones: compilation, and its second time when a size varies."""

TOLERANCE = 1e-3
"""Relative difference of losses above which a system is wrong."""


class SeedLoss(nn.Module):
    """The cross entropy of the seeds, which are the first nodes of a batch: as many as there are labels."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, y: Tensor, *inputs: Tensor) -> Tensor:
        return F.cross_entropy(self.model(*inputs)[: y.size(0)], y)


class LinkLoss(nn.Module):
    """The binary entropy of the links of a batch, and of one with another destination for each of them.

    A link is scored by the inner product of what `model` gives for both ends. `drawn` are the other destinations.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, drawn: Tensor, x: Tensor, edge_index: Tensor) -> Tensor:
        h, (src, dst) = self.model(x, edge_index), edge_index
        real, other = ((h[src] * h[ends]).sum(1) for ends in (dst, drawn))
        return (F.softplus(-real).sum() + F.softplus(other).sum()) / (2 * max(src.numel(), 1))


def step_by_step(loss: nn.Module, batches: Iterator[tuple[Tensor, ...]], count: int) -> dict[str, Any]:
    """The seconds of `count` steps by "eager" and "graphweave", and of drawing each "batch"; `compilations` after the
    first batch, and the counters of the timed steps. A `status` says that losses differ."""
    systems = {"eager": loss, "graphweave": graphweave.compile(loss)}
    taken: dict[str, list[float]] = {"batch": [], **{name: [] for name in systems}}
    compiled, counters = 0, graphweave.counters()
    for number in range(WARM + count):
        start = perf_counter()
        batch = next(batches)
        seconds, losses = {"batch": perf_counter() - start}, {}
        gc.collect()
        gc.disable()
        for name, system in systems.items():
            drop_gradients(loss)
            start = perf_counter()
            value = system(*batch)
            value.backward()
            seconds[name], losses[name] = perf_counter() - start, float(value.detach())
        gc.enable()
        if abs(losses["eager"] - losses["graphweave"]) > TOLERANCE * abs(losses["eager"]):
            return {"status": f"wrong: losses of batch {number} are {losses}"}
        if number == 0:
            compiled = graphweave.counters()["compilations"]
        if number == WARM - 1:
            counters = graphweave.counters()
        if number >= WARM:
            for name, value in seconds.items():
                taken[name].append(value)
    now = graphweave.counters()
    return {
        **taken, "compilations": now["compilations"] - compiled,
        "counters": {name: now[name] - counters[name] for name in now if now[name] != counters[name]},
    }  # fmt: skip
