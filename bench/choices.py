"""Choice at run time: graphs that prefer different forms of one function, each in both forms and in the one it chose.

    python -m bench.choices [--cases NAME ...] [--repeats 20] [--threads 1] [--out FILE]

Training steps in float32, of three functions on two graphs each. `compact` is a product with the matrix of each edge's
relation, where few nodes are sources or few are destinations of equally many edges; `directions` is a network of the
lengths of edges, of which each stands there in one direction or in both; `order` adds up over edges before or behind a
product with a matrix, with few nodes or many. `first` is the form that the compiler chooses for the first graph alone
(`options={"forms": False}`), `second` that for the second graph, and `chosen` a function that was called on both graphs
before, the first one first. `time / best` compares each with the better of the two. Results are compared with eager
PyTorch's in float64.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import graphweave
from bench.case import EXACT, Bench, Case, Check, Peers
from bench.runner import run
from bench.steps import Step

MAX_ERROR = 1e-3
"""Largest error of a value, relative to the largest of its tensor: few nodes have sums of thousands of terms."""

PEERS = ("first", "second", "chosen")
ALONE = {"GRAPHWEAVE_STORE_COMPILATIONS": "0"}
"""A compilation that is kept on disk has the form of the graph for which it was made."""

Args = tuple[Tensor, ...]


def compact(x: Tensor, w: Tensor, src: Tensor, rel: Tensor, dst: Tensor, scale: Tensor) -> Tensor:
    messages = torch.bmm(x[src].unsqueeze(1), w[rel]).squeeze(1) * scale[:, None]
    return torch.zeros_like(x).index_add(0, dst, messages)


def directions(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    length = (x[dst] - x[src]).square().sum(1, keepdim=True)
    hidden = torch.tanh(torch.exp(-length * torch.linspace(0, 1, w.shape[0], dtype=x.dtype)) @ w)
    return torch.zeros(x.shape[0], w.shape[1], dtype=x.dtype).index_add(0, dst, hidden)


def order(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    messages = torch.relu(torch.cat([x[src], x[dst]], 1) @ w)
    return torch.zeros_like(x).index_add(0, dst, messages)


def few_ends(at: int, nodes: int, edges: int, width: int) -> Args:
    """Few nodes are sources (`at` 0), or few are destinations."""
    generator = torch.Generator().manual_seed(at)
    ends = [torch.randint(nodes, (edges,), generator=generator) for _ in range(2)]
    ends[at] %= max(1, nodes // 80)
    x, w = torch.randn(nodes, width, generator=generator), torch.randn(16, width, width, generator=generator)
    rel = torch.randint(16, (edges,), generator=generator)
    return x, w / width**0.5, ends[0], rel, ends[1], torch.randn(edges, generator=generator)


def one_or_both(at: int, nodes: int, edges: int, width: int) -> Args:
    """Each edge in one direction (`at` 0) or in both."""
    generator = torch.Generator().manual_seed(at)
    half = torch.randint(nodes, (2, edges // 2), generator=generator)
    other = torch.randint(nodes, (2, edges // 2), generator=generator)
    src, dst = torch.cat([half, half.flip(0) if at else other], 1)
    x, w = torch.randn(nodes, 3, generator=generator), torch.randn(width, width, generator=generator)
    return x, w / width**0.5, src, dst


def few_nodes(at: int, nodes: int, edges: int, width: int) -> Args:
    """Fewer nodes than edges (`at` 0), or more."""
    generator = torch.Generator().manual_seed(at)
    nodes, edges = (nodes // 8, edges) if at == 0 else (nodes, nodes // 8)
    src, dst = torch.randint(nodes, (2, edges), generator=generator)
    w = torch.randn(2 * width, width, generator=generator) / width**0.5
    return torch.randn(nodes, width, generator=generator), w, src, dst


@dataclass(frozen=True, slots=True)
class Crossover:
    """A function, and its arguments for two graphs, of which the first two are trained."""

    function: Callable[..., Tensor]
    made: Callable[[int, int, int, int], Args]


CROSSOVERS = {
    "compact": Crossover(compact, few_ends),
    "directions": Crossover(directions, one_or_both),
    "order": Crossover(order, few_nodes),
}


def build(name: str, at: int, nodes: int, edges: int, width: int) -> Peers:
    crossover = CROSSOVERS[name]
    graphs = [crossover.made(i, nodes, edges, width) for i in range(2)]

    def step(function: Callable[..., Tensor], graph: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        x, w, *rest = (t.to(dtype) if t.is_floating_point() else t for t in graphs[graph])
        trained = x.requires_grad_(), w.requires_grad_()
        out = function(*trained, *rest)
        return [t.detach().float() for t in (out, *torch.autograd.grad(out.square().mean(), trained))]

    def prepare(seen: tuple[int, ...], options: Mapping[str, Any]) -> Step:
        compiled = graphweave.compile(crossover.function, options=options)
        for graph in seen:
            step(compiled, graph)
        return partial(step, compiled, at)

    return {
        "first": partial(prepare, (0,), {"forms": False}),
        "second": partial(prepare, (1,), {"forms": False}),
        "chosen": partial(prepare, (0, 1, 0, 1), {}),
        EXACT: lambda: partial(step, crossover.function, at, torch.float64),
    }


def cases(options: Namespace) -> Iterator[Case]:
    for name in CROSSOVERS:
        for at, graph in enumerate(("first", "second")):
            sizes = {"name": name, "at": at, "nodes": options.nodes, "edges": options.edges, "width": options.width}
            yield Case(
                f"{name} {graph}", build, PEERS, Check(MAX_ERROR, EXACT), sizes,
                {"nodes": 80, "edges": 400, "width": 8},
            )  # fmt: skip


def _against_best(found: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    fixed = [found[name]["median"] for name in ("first", "second") if "median" in found.get(name, {})]
    return f"{one['median'] / min(fixed):.2f}" if fixed else ""


BENCH = Bench(
    "bench.choices", __doc__, cases, {"nodes": 40_000, "edges": 200_000, "width": 32}, base="first", repeats=20,
    columns={"time / best": _against_best}, apart=True, environment=dict.fromkeys(PEERS, ALONE),
)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
