"""Times of schedules against the compiler's choice.

    python -m bench.schedules [--nodes 100000] [--edges 1000000] [--features 128] [--repeats 20] [--out FILE]

Functions of FeatGraph's evaluation on an R-MAT graph, forward, float32: GCN aggregation, a dot product of both ends of
each edge, and the sum of relu(u - v). Before anything is measured, each schedule's result is compared with eager
PyTorch's in float64. A schedule that a function cannot take is listed with the reason. Calls of all schedules are
interleaved; the first call, with compilation and formats, is a column of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

import graphweave
from bench.common import arguments, interleaved, ratio_table, save
from graphweave import Schedule
from graphweave.core.errors import ScheduleError
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


def checked(
    function: Function, schedule: Schedule | None, args: tuple[Tensor, ...], exact: Tensor
) -> tuple[Function, float]:
    """`function` compiled with `schedule`, and the seconds of its first call; AssertionError if its result is wrong,
    ScheduleError if it cannot take the schedule."""
    made: Function = graphweave.compile(function, options={"schedule": schedule})
    start = time.perf_counter()
    got = made(*args)
    first = time.perf_counter() - start
    error = (got.double() - exact).abs().max() / exact.abs().max()
    assert error < MAX_ERROR, f"{function.__name__} with {schedule!r} is wrong by {error:.1e}"
    return made, first


def measure(name: str, args: tuple[Tensor, ...], repeats: int) -> dict[str, Any]:
    """The fields of each schedule, and its times or the reason why the function cannot take it."""
    function, record = FUNCTIONS[name], dict[str, Any]()
    x, src, dst = args
    exact = function(x.double(), src, dst)
    calls: dict[str, Callable[[], Any]] = {}
    first: dict[str, float] = {}
    for label, schedule in candidates(x.shape[1]).items():
        record[label] = {"schedule": {} if schedule is None else schedule.to_dict()}
        try:
            made, first[label] = checked(function, schedule, args, exact)
        except ScheduleError as error:
            record[label]["refused"] = str(error)
            continue
        calls[label] = lambda made=made: made(*args)
    for label, timing in interleaved(calls, repeats=repeats, first=first).items():
        record[label]["seconds"] = asdict(timing)
    return record


def show(name: str, record: dict[str, Any]) -> None:
    auto = record["auto"]["seconds"]["median"]
    rows = []
    for label, entry in record.items():
        if "refused" in entry:
            rows.append([label, "refused", "", "", entry["refused"].partition(": ")[2]])
            continue
        t = entry["seconds"]
        spread = f"{1e3 * t['q1']:.2f} .. {1e3 * t['q3']:.2f}"
        rows.append([label, f"{1e3 * t['median']:.2f}", f"{t['median'] / auto:.2f}", f"{t['first']:.1f}", spread])
    ratio_table(name, ["schedule", "ms", "of auto", "first call, s", "quartiles, or why it is refused"], rows)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=20)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    src, dst = rmat(given.nodes, given.edges, 0)
    x = torch.randn(given.nodes, given.features, generator=torch.Generator().manual_seed(0))
    results = {name: measure(name, (x, src, dst), given.repeats) for name in FUNCTIONS}
    for name, record in results.items():
        show(name, record)
    sizes = {"nodes": given.nodes, "edges": given.edges, "features": given.features, "threads": given.threads}
    save(given.out, {"benchmark": "schedules", **sizes, "results": results})


if __name__ == "__main__":
    main()
