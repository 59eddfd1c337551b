"""Times of schedules against the compiler's choice.

    python -m bench.schedules [--nodes 100000] [--edges 1000000] [--features 128] [--repeats 20] [--out FILE] [--resume]

Functions of FeatGraph's evaluation on an R-MAT graph, forward, float32: GCN aggregation, a dot product of both ends of
each edge, and the sum of relu(u - v). Results are compared with eager PyTorch's in float64. A schedule that a function
cannot take is listed with the reason.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

import graphweave
from bench.case import EXACT, Bench, Case, Check, Peers
from bench.runner import run
from bench.steps import Step
from graphweave import Schedule
from graphweave.data import rmat

Function = Callable[[Tensor, Tensor, Tensor], Tensor]

MAX_ERROR = 1e-4
"""Largest difference of an element in float32 from float64, relative to the largest element."""


def gcn(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, dst, x[src])


def dots(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return (x[src] * x[dst]).sum(1)


def edges(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, dst, torch.relu(x[src] - x[dst]))


FUNCTIONS: dict[str, Function] = {"gcn": gcn, "dots": dots, "edges": edges}


def candidates(features: int) -> dict[str, Schedule | None]:
    """Schedules by what they change; None is the compiler's choice."""
    half, quarter = max(1, features // 2), max(1, features // 4)
    return {
        "auto": None,
        "rows by degree": Schedule(row_order="degree"),
        "rows and edges by locality": Schedule(row_order="locality", edge_order="locality"),
        "edges by source": Schedule(edge_order="source"),
        "edges along a Hilbert curve": Schedule(edge_order="hilbert"),
        "4 partitions": Schedule(source_partitions=4),
        "4 partitions, 2 tiles": Schedule(source_partitions=4, feature_tile=half),
        "2 tiles": Schedule(feature_tile=half),
        "4 tiles within a row": Schedule(register_tile=quarter),
        "vectors of 32 bytes": Schedule(vector_bytes=32),
        "unrolled by 4": Schedule(unroll=4),
        "no prefetch": Schedule(prefetch=0),
        "equal rows": Schedule(walk="rows"),
    }


def build(function: str, nodes: int, edges: int, features: int) -> Peers:
    src, dst = rmat(nodes, edges, 0)
    x = torch.randn(nodes, features, generator=torch.Generator().manual_seed(0))

    def prepare(schedule: Schedule | None) -> Step:
        return partial(graphweave.compile(FUNCTIONS[function], options={"schedule": schedule}), x, src, dst)

    made: dict[str, Callable[[], Step]] = {n: partial(prepare, one) for n, one in candidates(features).items()}
    return {**made, EXACT: lambda: lambda: FUNCTIONS[function](x.double(), src, dst).float()}


def cases(options: Namespace) -> Iterator[Case]:
    check = Check(MAX_ERROR, EXACT)
    for name in FUNCTIONS:
        sizes = {"function": name, "nodes": options.nodes, "edges": options.edges, "features": options.features}
        small = {"nodes": 200, "edges": 1000, "features": 16}
        yield Case(name, build, tuple(candidates(options.features)), check, sizes, small)


SIZES = {"nodes": 100_000, "edges": 1_000_000, "features": 128}
BENCH = Bench("bench.schedules", __doc__, cases, SIZES, base="auto", repeats=20)


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
