"""Training steps on graphs of which each has other relations, against eager PyG.

    python -m bench.varying_relations [--cases NAME ...] [--repeats 20] [--threads 2] [--out FILE]

A model of two layers for all relations, 32 wide, among 5 types of 1,000 nodes. Each step has some of the relations,
others than the step before, with 2,000 edges each, in tensors of its own: dictionaries with other keys, as PyG's
loaders give them. Each type of nodes sends and receives in each graph. The numbers of a case are the seconds of the
first call, the median seconds of a later step of both, in turns, and how many compilations all steps took.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
from bench.case import Bench, Numbers
from bench.common import ratio_table
from bench.runner import run

TYPES = tuple("abcde")
NODES, EDGES, WIDTH = 1_000, 2_000, 32
Relation = tuple[str, str, str]
Edges = dict[Relation, Tensor]


def relations(count: int) -> list[Relation]:
    """`count` relations among all pairs of types in turn."""
    return [(TYPES[r % 5], f"r{r}", TYPES[(r + 1 + r // 5) % 5]) for r in range(count)]


def graph(known: list[Relation], given: int, seed: int) -> Edges:
    """A graph with `given` of the relations, the first five of which reach all types."""
    generator = torch.Generator().manual_seed(seed)
    first = 5 * int(torch.randint(len(known) // 5, (), generator=generator))
    chosen = list(range(first, first + 5))
    others = [r for r in torch.randperm(len(known), generator=generator).tolist() if r not in chosen]
    chosen = sorted(chosen + others[: given - 5])
    return {known[r]: torch.randint(NODES, (2, EDGES), generator=generator) for r in chosen}


class Model(nn.Module):
    def __init__(self, layer: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = layer(), layer()

    def forward(self, x: dict[str, Tensor], edges: Edges) -> Tensor:
        x = {kind: rows.relu() for kind, rows in self.first(x, edges).items()}
        return self.second(x, edges)["a"].square().mean()


def layers(known: list[Relation]) -> dict[str, Callable[[], nn.Module]]:
    def gat() -> nn.Module:
        return pyg.GATConv((WIDTH, WIDTH), WIDTH // 4, heads=4, add_self_loops=False)

    return {
        "sage": lambda: pyg.HeteroConv({r: pyg.SAGEConv((WIDTH, WIDTH), WIDTH) for r in known}),
        "gat": lambda: pyg.HeteroConv({r: gat() for r in known}, aggr="mean"),
        "hgt": lambda: pyg.HGTConv(WIDTH, WIDTH, (list(TYPES), known), heads=4),
    }


def measure(layer: str, count: int, given: int, repeats: int, threads: int) -> dict[str, Any]:
    """Seconds of the first call and of steps, and the compilations. Losses and gradients must agree."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    known = relations(count)
    model = Model(layers(known)[layer])
    x = {kind: torch.randn(NODES, WIDTH) for kind in TYPES}
    compiled = graphweave.compile(model)

    def step(f: Callable[..., Tensor], seed: int) -> tuple[float, Tensor, list[Tensor | None]]:
        edges = graph(known, given, seed)
        model.zero_grad()
        begun = time.perf_counter()
        loss = f(x, edges)
        loss.backward()
        return time.perf_counter() - begun, loss.detach(), [p.grad for p in model.parameters()]

    graphweave.reset_counters()
    first, _, _ = step(compiled, 0)
    seconds: dict[str, list[float]] = {"eager": [], "graphweave": []}
    for seed in range(1, repeats + 1):
        ours, loss, grads = step(compiled, seed)
        theirs, wanted, expected = step(model, seed)
        seconds["graphweave"].append(ours)
        seconds["eager"].append(theirs)
        given_alike = all((a is None) == (b is None) for a, b in zip(grads, expected, strict=True))
        pairs = [(a, b) for a, b in zip(grads, expected, strict=True) if a is not None and b is not None]
        if not given_alike or not all(torch.allclose(a, b, 1e-3, 1e-5) for a, b in [(loss, wanted), *pairs]):
            return {"status": "wrong: a loss or gradient differs from eager mode's"}
    medians = {name: median(found) for name, found in seconds.items()}
    return {"first": first, **medians, "compilations": graphweave.counters()["compilations"], "steps": repeats + 1}


def show(results: Mapping[str, Any], options: Namespace) -> None:
    rows = [
        [name, f"{one['first']:.1f}", f"{1e3 * one['eager']:.2f}", f"{1e3 * one['graphweave']:.2f}",
         f"{one['eager'] / one['graphweave']:.2f}x", f"{one['compilations']} for {one['steps']} steps"]
        if "eager" in one else [name, one["status"]]
        for name, one in results.items()
    ]  # fmt: skip
    title = f"other relations in each step, {options.threads} threads, median"
    head = ["", "first call s", "eager ms", "graphweave ms", "eager / graphweave", "compilations"]
    ratio_table(title, head, rows)


def cases(options: Namespace) -> Iterator[Numbers]:
    for layer, count, given in (("sage", 140, 20), ("gat", 30, 10), ("hgt", 30, 10)):
        sizes = {"layer": layer, "count": count, "given": given, "repeats": options.repeats, "threads": options.threads}
        yield Numbers(f"{layer} {given} of {count}", measure, sizes, {"count": 10, "given": 6, "repeats": 1})


BENCH = Bench("bench.varying_relations", __doc__, cases, repeats=20, show=show)


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
