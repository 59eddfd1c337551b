"""Training steps of embedding tables of which a step reads few rows: large tables against small ones, and eager mode.

    python -m bench.large_tables [--cases NAME ...] [--repeats 20] [--threads 2] [--out FILE]

TransE of PyG over entities that are 64 wide, float32, with `sparse=True`: a step scores 4,096 triples and as many with
another tail, and `SparseAdam` (or Adagrad) updates the rows that were looked up. The step of the optimiser is part of
the time, and PyTorch's own. The table of 10,000,000 entities takes 2.6 GB, and SparseAdam's two averages as much each.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor

import graphweave
from bench.case import Bench, Numbers
from bench.common import ratio_table
from bench.runner import run

RELATIONS, WIDTH, TRIPLES = 100, 64, 4_096
OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SparseAdam": torch.optim.SparseAdam,
    "Adagrad": torch.optim.Adagrad,
}


def measure(entities: int, optimiser: str, repeats: int, threads: int) -> dict[str, Any]:
    """Median seconds of a step: the loss, its backward, and the update, with the update's share."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = pyg.TransE(entities, RELATIONS, WIDTH, sparse=True)
    update = OPTIMISERS[optimiser](model.parameters(), lr=0.01)
    compiled = graphweave.compile(model.loss)
    generator = torch.Generator().manual_seed(0)

    def step(loss_of: Callable[..., Tensor], *, updates: bool) -> tuple[float, float, Tensor]:
        head, tail = torch.randint(entities, (2, TRIPLES), generator=generator)
        kind = torch.randint(RELATIONS, (TRIPLES,), generator=generator)
        begun = time.perf_counter()
        update.zero_grad()
        loss = loss_of(head, kind, tail)
        loss.backward()
        computed = time.perf_counter()
        if updates:
            update.step()
        return time.perf_counter() - begun, time.perf_counter() - computed, loss.detach()

    step(compiled, updates=True)
    state = generator.get_state(), torch.get_rng_state()
    losses = []
    for way in (compiled, model.loss):  # the same triples and negatives, from the same weights
        generator.set_state(state[0])
        torch.set_rng_state(state[1])
        losses.append(step(way, updates=False)[2])
    if not torch.allclose(losses[0], losses[1], rtol=1e-4):
        return {"status": f"wrong: the loss is {losses[0]:.6f}, in eager mode {losses[1]:.6f}"}
    ways = {"eager": model.loss, "graphweave": compiled}
    found: dict[str, list[tuple[float, float, Tensor]]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            found[name].append(step(way, updates=True))
    medians = {name: median(seconds for seconds, _, _ in steps) for name, steps in found.items()}
    return {**medians, "update": median(seconds for _, seconds, _ in found["graphweave"])}


def show(results: Mapping[str, Any], options: Namespace) -> None:
    rows = [
        [name, f"{1e3 * one['eager']:.2f}", f"{1e3 * one['graphweave']:.2f}", f"{1e3 * one['update']:.2f}",
         f"{one['eager'] / one['graphweave']:.2f}x"]
        if "eager" in one else [name, one["status"]]
        for name, one in results.items()
    ]  # fmt: skip
    title = f"rows looked up in a table, {options.threads} threads, median"
    head = ["", "eager ms", "graphweave ms", "of which update ms", "eager / graphweave"]
    ratio_table(title, head, rows)


def cases(options: Namespace) -> Iterator[Numbers]:
    for optimiser in OPTIMISERS:
        for entities in (100_000, 10_000_000):
            sizes = {
                "entities": entities,
                "optimiser": optimiser,
                "repeats": options.repeats,
                "threads": options.threads,
            }
            yield Numbers(f"{optimiser} {entities}", measure, sizes, {"entities": 1_000, "repeats": 1})


BENCH = Bench("bench.large_tables", __doc__, cases, repeats=20, show=show)


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
