"""Bytes of peak memory for each edge in training: the slope of a line over graphs with equal nodes and more edges.

    python -m bench.memory_growth [--models gcn sage gin gat gatv2 transformer edgeconv monet]
                                  [--systems graphweave eager inductor] [--nodes 20000] [--no-compile-loss]
                                  [--edges 500000 1000000 2000000 4000000] [--peer-share 0.25] [--out FILE]

Each point is training steps of 2 layers, 64 features, on uniformly random edges; edgeconv has a linear message and max.
Each point has a fresh process. The process first compiles and runs on two small graphs and on one of the measured size,
because the cost model may choose another form for more edges, and compiling takes memory, too. It drops all that is
kept for these graphs, reads the resident size, resets the high-water mark, and runs two steps on another graph. So
formats and everything else that is kept for a graph is counted; edge_index (16 bytes an edge) and MoNet's
pseudo-coordinates (8 bytes), made before, are not. malloc returns larger blocks to the system at once in these
processes, so that the high-water mark is the memory in use.

A line is fitted by least squares: its slope is bytes an edge (both directions together), its intercept the bytes of the
nodes, and the worst residual says how straight the line is. eager and inductor keep tensors of edges x features, so
they get only --peer-share of graphweave's edges. A point that fails, or takes more than --memory-gb, is recorded and
left out of the fit.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

import graphweave
from bench.case import Bench, Numbers
from bench.common import in_fresh_process, ratio_table
from bench.forget import forget_graphs
from bench.graphs import FEATURES, HIDDEN, Workload, pseudo_coordinates
from bench.options import Among
from bench.runner import run
from bench.specs import Spec
from bench.turns import MALLOC, peak_extra_bytes
from bench.workloads import MODELS, Model, layers_of, training_step

TARGET = 24.0
"""Upper limit on bytes an edge: the bytes of indices for both directions."""


GROWING: dict[str, Model] = {
    **{name: MODELS[name] for name in ("gcn", "sage", "gin", "gat", "gatv2", "transformer")},
    "edgeconv": Model(partial(layers_of, Spec("edgeconv"))),
    "monet": MODELS["monet"],
}
"""2-layer models, on any graph."""


def random_graph(nodes: int, edges: int, *, pseudo: bool, seed: int = 0) -> Workload:
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(nodes, (2, edges), generator=generator)
    x = torch.randn(nodes, FEATURES, generator=generator)
    y = torch.randint(HIDDEN, (nodes,), generator=generator)
    return Workload(x, index, y, pseudo_coordinates(index, nodes) if pseudo else None)


def peak(model: str, system: str, nodes: int, edges: int, compile_loss: bool, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    chosen = GROWING[model]
    torch.manual_seed(0)
    step = training_step(system, chosen.make(FEATURES), compile_loss=compile_loss)
    for few in (500, 600):  # two sizes, for a compiler that makes sizes dynamic at the second one
        step(random_graph(few, 6 * few, pseudo=chosen.pseudo))
    step(random_graph(nodes, edges, pseudo=chosen.pseudo, seed=2))
    forget_graphs()
    work = random_graph(nodes, edges, pseudo=chosen.pseudo, seed=1)

    def steps() -> None:
        step(work)
        step(work)

    answer: dict[str, Any] = {"status": "ok", "peak_extra_bytes": peak_extra_bytes(steps)}
    return {**answer, "counters": graphweave.counters()} if system == "graphweave" else answer


def fit(points: Sequence[tuple[int, int]]) -> dict[str, float] | None:
    """The least-squares line through points (edges, bytes); None for fewer than three points."""
    if len(points) < 3:
        return None
    edges, peaks = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    slope, intercept = np.polyfit(edges, peaks, 1)
    residual = np.abs(peaks - (slope * edges + intercept)).max()
    return {"bytes_per_edge": slope, "intercept_bytes": intercept, "worst_residual_bytes": residual}


def measure(
    model: str, system: str, nodes: int, edges: Sequence[int], compile_loss: bool, threads: int, timeout: float,
    memory_gb: float,
) -> dict[str, Any]:  # fmt: skip
    """Peaks by the number of edges, and the line through them."""
    given = {"nodes": nodes, "compile_loss": compile_loss, "threads": threads, "model": model, "system": system}
    environment = {"OMP_NUM_THREADS": str(threads), **MALLOC}
    memory = int(memory_gb * 2**30)
    points = {
        count: in_fresh_process(peak, environment, timeout=timeout, memory=memory, edges=count, **given)
        for count in edges
    }
    line = fit([(count, one["peak_extra_bytes"]) for count, one in points.items() if one["status"] == "ok"])
    return {"points": points, "line": line}


def table_row(name: str, answer: dict[str, Any]) -> list[str]:
    points = [one.get("peak_extra_bytes") for one in answer["points"].values()]
    peaks = ", ".join(f"{peak / 2**20:.0f}" if peak else "failed" for peak in points)
    line = answer["line"]
    if line is None:
        return [name, peaks, "-", "-", "-", next((p["status"] for p in answer["points"].values()), "")]
    slope = line["bytes_per_edge"]
    verdict = "yes" if slope <= TARGET else "no"
    mib = (f"{line[key] / 2**20:.1f}" for key in ("intercept_bytes", "worst_residual_bytes"))
    return [name, peaks, f"{slope:.1f}", *mib, verdict]


def show(results: Mapping[str, Any], options: Namespace) -> None:
    loss = "compiled" if options.compile_loss else "eager"
    headings = ["model system", "peak MiB", "bytes an edge", "nodes MiB", "residual MiB", f"at most {TARGET:.0f}"]
    rows = [table_row(name, answer) for name, answer in results.items()]
    ratio_table(f"peak memory of training against edges, {options.nodes} nodes, {loss} loss", headings, rows)


def cases(options: Namespace) -> Iterator[Numbers]:
    given = {key: getattr(options, key) for key in ("nodes", "compile_loss", "threads", "timeout", "memory_gb")}
    for model in options.models:
        for system in options.systems or ("graphweave", "eager", "inductor"):
            share = 1.0 if system == "graphweave" else options.peer_share
            sizes = {"model": model, "system": system, "edges": [int(count * share) for count in options.edges]}
            small = {"nodes": 100, "edges": [500, 1000, 2000]}
            yield Numbers(f"{model} {system}", measure, {**sizes, **given}, small, here=True)


BENCH = Bench(
    "bench.memory_growth", __doc__, cases,
    {"models": Among(GROWING), "nodes": 20_000, "edges": (500_000, 1_000_000, 2_000_000, 4_000_000),
     "peer_share": 0.25, "compile_loss": True, "memory_gb": 8.0},
    timeout=600.0, show=show,
)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
