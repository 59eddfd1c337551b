"""Schedules and orders of nodes against the compiler's choice, and against MKL's CSR product.

    python -m bench.schedules [--graph rmat:100000:1000000] [--lengths 128] [--functions gcn dots edges step]
                              [--repeats 20] [--threads 2] [--cases NAME ...] [--out FILE] [--resume]

Functions of FeatGraph's evaluation in float32, forward: GCN aggregation (the sum of neighbours), a dot product of both
ends of each edge, and the sum of relu(u - v); and `step`, a training step of one GCN layer with its features' gradient.
Results are compared with eager PyTorch's in float64, on large graphs with those of the compiler's choice. A schedule
that a function cannot take is listed with the reason. MKL's product has the matrices of both directions made before.
`prepare` is what a first call takes longer than the choice's own (formats, orders), and `steps` how many steps pay for
it. `--graph` may be the name of a graph file; its nodes are shuffled.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import graphweave
from bench.case import EXACT, Bench, Case, Check, Peers
from bench.gpu_sparse import Product
from bench.graphs import csr_matrix, data_dir
from bench.named_graphs import absent, edges_of
from bench.options import Among
from bench.runner import run
from bench.steps import Step, result_of
from graphweave import Schedule
from graphweave.runtime import formats

Function = Callable[..., Tensor]

MAX_ERROR = 1e-3
"""Largest difference of an element from float64 or between two forms, relative to the largest element: hubs' sums have
100,000 terms."""

LARGE = 2 * 10**8
"""A graph with more numbers of messages is compared with the compiler's choice."""


def gcn(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, dst, x[src])


def dots(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return (x[src] * x[dst]).sum(1)


def edges(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, dst, torch.relu(x[src] - x[dst]))


def layer(x: Tensor, src: Tensor, dst: Tensor, weight: Tensor, norm: Tensor) -> Tensor:
    """A layer of GCN without self-loops; `norm` is 1 / sqrt(degree) of each node."""
    return (gcn((x @ weight) * norm, src, dst) * norm).relu()


FUNCTIONS: dict[str, Function] = {"gcn": gcn, "dots": dots, "edges": edges, "step": layer}


def candidates(features: int) -> dict[str, dict[str, Any]]:
    """Options by what they change. The first is the compiler's choice."""
    half, quarter = max(1, features // 2), max(1, features // 4)
    schedules = {
        "rows by degree": Schedule(row_order="degree"),
        "rows and edges by locality": Schedule(row_order="locality", edge_order="locality"),
        "edges by source": Schedule(edge_order="source"),
        "edges along a Hilbert curve": Schedule(edge_order="hilbert"),
        "4 partitions": Schedule(source_partitions=4),
        "8 partitions": Schedule(source_partitions=8),
        "4 partitions, 2 tiles": Schedule(source_partitions=4, feature_tile=half),
        "2 tiles": Schedule(feature_tile=half),
        "4 tiles within a row": Schedule(register_tile=quarter),
        "vectors of 32 bytes": Schedule(vector_bytes=32),
        "unrolled by 4": Schedule(unroll=4),
        "no prefetch": Schedule(prefetch=0),
        "equal rows": Schedule(walk="rows"),
    }
    relabelled = {f"relabel {how}": {"relabel": how} for how in ("auto", "degree", "locality")}
    return {"auto": {}, **{name: {"schedule": one} for name, one in schedules.items()}, **relabelled}


def step_of(function: str, made: Function, x: Tensor, index: Tensor) -> Step:
    """A call of `made`, which computes the function, or a training step of it. It returns what is computed."""
    src, dst = index
    if function != "step":
        return partial(made, x, src, dst)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(x.shape[1], x.shape[1], generator=generator) / x.shape[1] ** 0.5
    weight = drawn.to(x.dtype).requires_grad_()
    norm = torch.bincount(dst, minlength=x.shape[0]).clamp(min=1).to(x.dtype).rsqrt().unsqueeze(1)
    trained = x.detach().requires_grad_()

    def step() -> list[Tensor]:
        out = made(trained, src, dst, weight, norm)
        return [out.detach(), *torch.autograd.grad(out.square().mean(), (trained, weight))]

    return step


def build(function: str, graph: str, length: int, folder: Path) -> Peers:
    index, nodes = edges_of(graph, folder)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(nodes, length, generator=generator)
    if ":" not in graph:
        index = torch.randperm(nodes, generator=generator)[index]

    def prepare(options: Mapping[str, Any]) -> Step:
        formats.clear()  # the first call counts those of this form
        return step_of(function, graphweave.compile(FUNCTIONS[function], options=options), x, index)

    def mkl() -> Step:
        ones = torch.ones(index.shape[1])
        matrix, transposed = (csr_matrix(edges, ones, (nodes, nodes)) for edges in (index, index.flip(0)))

        def product(h: Tensor, src: Tensor, dst: Tensor, weight: Tensor, norm: Tensor) -> Tensor:
            return (Product.apply(matrix, transposed, (h @ weight) * norm) * norm).relu()

        return step_of(function, product if function == "step" else lambda h, src, dst: matrix @ h, x, index)

    def exact() -> Step:
        step = step_of(function, FUNCTIONS[function], x.double(), index)
        return lambda: [out.float() for out in result_of(step()).outputs]

    return {**{name: partial(prepare, one) for name, one in candidates(length).items()}, "MKL": mkl, EXACT: exact}


def cases(options: Namespace) -> Iterator[Case]:
    kind, *numbers = options.graph.split(":")
    for name in options.functions:
        for length in options.lengths:
            large = kind == "rmat" and len(numbers) == 2 and int(numbers[1]) * length > LARGE
            peers = (*candidates(length), "MKL") if name in ("gcn", "step") else tuple(candidates(length))
            sizes = {"function": name, "graph": options.graph, "length": length, "folder": options.data_dir}
            yield Case(
                f"{name} {length}", build, peers, Check(MAX_ERROR, "auto" if large and not options.quick else EXACT),
                sizes, {"graph": "rmat:200:1000", "length": 16}, missing=absent(options.graph, options.data_dir),
            )  # fmt: skip


def _prepare(found: Mapping[str, Any], one: Mapping[str, Any]) -> float | None:
    auto = found.get("auto", {})
    if "median" not in auto:
        return None
    return max(0.0, float(one["first"] - one["median"] - (auto["first"] - auto["median"])))


def _steps(found: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    prepare, gain = _prepare(found, one), found.get("auto", one)["median"] - one["median"]
    return f"{prepare / gain:.0f}" if prepare is not None and gain > 0 else ""


BENCH = Bench(
    "bench.schedules", __doc__, cases,
    {"graph": "rmat:100000:1000000", "lengths": (128,), "functions": Among(FUNCTIONS), "data_dir": data_dir()},
    base="auto", repeats=20,
    columns={
        "prepare, s": lambda found, one: "" if (taken := _prepare(found, one)) is None else f"{taken:.1f}",
        "steps": _steps,
    },
)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
