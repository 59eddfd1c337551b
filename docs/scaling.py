"""Tables of docs/distributed.md: the model of cost (`graphweave/distributed/cost.py`) for graphs of 1e8 to 1e10 edges.

Nodes are given to ranks at random, whose halo is known from the degrees alone; `METIS` columns multiply it with the
share that METIS leaves of it on ogbn-arxiv with 64 parts, by bench/results/ranks_halo.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from graphweave.distributed.cost import Cluster, Model, RankLoad, StepCost, power_law, random_halo, step_cost

RESULTS = Path(__file__).parent.parent / "bench/results"
RANKS = (1, 4, 16, 64, 256, 1024)
CORES = 32
"""Cores of a rank."""
CLUSTER_BANDWIDTH = 12.5e9
"""Bytes a second of a rank, which are 100 Gbit/s."""
LATENCY = 20e-6
"""Seconds of a message."""


@dataclass(frozen=True)
class LargeGraph:
    """Sizes of a graph in both directions; degrees are taken to follow a power law of the given exponent."""

    name: str
    nodes: float
    edges: float
    widths: tuple[int, ...]
    exponent: float = 2.3
    max_degree: int = 100_000

    @property
    def model(self) -> Model:
        return Model(self.widths)


GRAPHS = (
    LargeGraph("ogbn-products", 2_449_029, 2 * 61_859_140, (100, 256, 256, 47)),
    LargeGraph("ogbn-papers100M", 111_059_956, 2 * 1_615_685_872, (128, 256, 256, 172)),
    LargeGraph("power law", 5e8, 1e10, (128, 256, 256, 64)),
)


@cache
def second_for_a_value() -> float:
    """Seconds that one core takes for each edge and exchanged value in a step: of two layers of GraphSAGE, 64 wide, on
    R-MAT edges, by bench/results/train_step_rmat.json, which was measured on two threads."""
    found = json.loads((RESULTS / "train_step_rmat.json").read_text())
    system = found["results"]["sage rmat"]["graphweave"]
    return float(system["median"]) / system["edges"] / (64 + 64) * found["machine"]["threads"]


def measured_halos() -> list[dict[str, Any]]:
    """The record of bench.ranks halo: a row for each graph, number of parts and method."""
    found = json.loads((RESULTS / "ranks_halo.json").read_text())["results"]
    return [row for one in found.values() for row in one["rows"]]


@cache
def metis_share(graph: str = "ogbn_arxiv_structure", parts: int = 64) -> float:
    """Halo rows of METIS's parts over those of random parts."""
    rows = measured_halos()
    of = {row["method"]: row for row in rows if (row["graph"], row["parts"]) == (graph, parts)}
    return float(of["metis"]["halo"]) / float(of["metis"]["expected"])


@cache
def halo_rows(graph: LargeGraph, ranks: int) -> float:
    """Halo rows of a rank, of random parts."""
    return random_halo(*power_law(graph.nodes, graph.edges / graph.nodes, graph.exponent, graph.max_degree), ranks)


def cost(
    graph: LargeGraph, ranks: int, share: float = 1.0, cores: int = CORES, bandwidth: float = CLUSTER_BANDWIDTH
) -> StepCost:
    """The cost of a step where every rank has the mean load, and `share` of the halo rows of random parts."""
    halo = round(share * halo_rows(graph, ranks))
    load = RankLoad(round(graph.nodes / ranks), halo, halo, round(graph.edges / ranks), ranks - 1)
    edge_seconds = second_for_a_value() * sum(graph.model.exchanged) / cores
    return step_cost([load] * ranks, graph.model, Cluster(bandwidth, LATENCY, edge_seconds))


def scaling() -> Iterator[str]:
    """For each graph and number of ranks: halo, bytes, memory, seconds and speed-up."""
    heads = (
        "graph",
        "ranks",
        "halo / own rows",
        "GB received a step",
        "memory a rank",
        "compute",
        "random parts",
        "METIS's share",
    )
    yield f"| {' | '.join(heads)} |"
    yield "|---|---|---|---|---|---|---|---|"
    for graph in GRAPHS:
        for ranks in RANKS:
            found, fewer = cost(graph, ranks), cost(graph, ranks, metis_share())
            one = found.ranks[0]
            own = graph.nodes / ranks
            cells = [
                graph.name, str(ranks), f"{halo_rows(graph, ranks) / own:.1f}",
                f"{(one.forward_bytes + one.backward_bytes) / 1e9:,.2f}", f"{one.memory / 2**30:,.1f} GiB",
                _seconds(found.compute), _step(found), _step(fewer),
            ]  # fmt: skip
            yield f"| {' | '.join(cells)} |"


def _step(found: StepCost) -> str:
    return f"{_seconds(found.hidden)} to {_seconds(found.in_turn)}, {found.speedup(found.hidden):.1f}x"


def _seconds(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds >= 10 else f"{seconds:.2f} s" if seconds >= 0.1 else f"{1e3 * seconds:.1f} ms"


def halos() -> Iterator[str]:
    """The record of bench.ranks halo: for each graph and number of parts, halo rows over own rows by method."""
    rows = measured_halos()
    methods = list(dict.fromkeys(row["method"] for row in rows))
    yield f"| graph | nodes, edges | parts | {' | '.join(methods)} | random by the formula |"
    yield f"|---|---|---|{'---|' * len(methods)}---|"
    for graph, parts in dict.fromkeys((row["graph"], row["parts"]) for row in rows):
        of = {row["method"]: row for row in rows if (row["graph"], row["parts"]) == (graph, parts)}
        one = of[methods[0]]
        shown = [f"{of[name]['halo'] * parts:.2f} ({100 * of[name]['cut']:.0f}%)" for name in methods]
        sizes = f"{one['nodes']:,}, {one['edges']:,}"
        yield f"| {graph} | {sizes} | {parts} | {' | '.join(shown)} | {one['expected'] * parts:.2f} |"


def _halos(name: str) -> dict[str, Any]:
    (one,) = json.loads((RESULTS / f"{name}.json").read_text())["results"].values()
    return dict(one["halos"])


def halves() -> Iterator[str]:
    """The record of bench.ranks halves: loss and test accuracy by epoch, for parts of two methods."""
    found = {m: _halos(f"ranks_halves_{m}") for m in ("metis", "random")}
    columns = {
        "exact": found["metis"]["exact"], "bfloat16, METIS": found["metis"]["bfloat16"],
        "stale, METIS": found["metis"]["one step old"], "bfloat16, random": found["random"]["bfloat16"],
        "stale, random": found["random"]["one step old"],
    }  # fmt: skip
    yield f"| epoch | {' | '.join(columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    for epoch in columns["exact"]["accuracy"]:
        cells = [f"{of['losses'][int(epoch) - 1]:.4f}, {of['accuracy'][epoch]:.3f}" for of in columns.values()]
        yield f"| {epoch} | {' | '.join(cells)} |"


def published() -> Iterator[str]:
    """The model beside what the authors of SAR report: 128 machines of 72 cores, 200 Gbit/s each."""
    graph, ranks = GRAPHS[1], 128
    yield "| ogbn-papers100M, GraphSAGE of 3 layers, 256 wide, 128 machines | seconds an epoch |"
    yield "|---|---|"
    yield "| SAR, reported | 3.8 |"
    for name, share in (("model, random parts", 1.0), ("model, METIS's share", metis_share())):
        found = cost(graph, ranks, share, cores=72, bandwidth=25e9)
        yield f"| {name}: communication hidden, in turn | {found.hidden:.2f}, {found.in_turn:.2f} |"
