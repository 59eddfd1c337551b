"""Building a graph from unsorted indices, formats of both directions included, against one torch.sort of an index.

    python -m bench.udf_build [--nodes 200000] [--edges 5000000] [--kinds rmat uniform] [--repeats 9] [--threads 2]

`graph` makes a `graphweave.Graph` from int64 indices, and the formats that message passing over node features and its
backward read: edges grouped by destination and by source, and for each grouping the rows at the other end, with all
indices checked. `with-perm` also makes the permutations of both groupings, which features of edges need. `sort` is
`torch.sort` of the destinations: values and permutation. All run in one process in turn, on fresh copies of the
indices, so that no cache holds anything from the previous round. Target: at most 1.5 times the sort.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import graphweave
from bench.common import ratio_table, save, seconds_of
from bench.options import Among, options_from
from bench.turns import summary
from graphweave.data import rmat
from graphweave.runtime import formats
from graphweave.runtime.index import Index

TARGET = 1.5
SYSTEMS = ("graph", "with-perm", "sort")
KINDS = ("rmat", "uniform")
"""rmat: ends of R-MAT edges, with hubs. uniform: random numbers."""


def indices(kind: str, num_nodes: int, num_edges: int) -> Tensor:
    """[2, E] int64, in the order in which they were drawn."""
    if kind == "rmat":
        return rmat(num_nodes, num_edges)
    return torch.randint(num_nodes, (2, num_edges), generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True, slots=True)
class Grouping:
    """Formats of one direction."""

    csr: formats.CsrFormat
    column: Tensor
    perm: Tensor | None


def build(src: Tensor, dst: Tensor, num_nodes: int, *, perm: bool) -> list[Grouping]:
    """The groupings by destination and by source."""
    graph = graphweave.graph((src, dst), num_nodes=num_nodes)
    src, dst = graph.edges()
    ends = Index(dst, num_nodes), Index(src, num_nodes)
    return [
        Grouping(formats.csr(row), formats.column(row, other), formats.perm(row) if perm else None)
        for row, other in (ends, ends[::-1])
    ]


def check(found: Sequence[Grouping], src: Tensor, dst: Tensor) -> None:
    """Compares the groupings with torch.sort."""
    for one, (row, other) in zip(found, ((dst, src), (src, dst)), strict=True):
        order = torch.sort(row, stable=True).indices
        assert one.perm is not None
        assert torch.equal(one.perm.long(), order)
        assert torch.equal(one.column.long(), other[order])
        assert torch.equal(one.csr.indptr.long().diff(), torch.bincount(row, minlength=one.csr.num_rows))


def measure(kind: str, num_nodes: int, num_edges: int, repeats: int) -> dict[str, Any]:
    """Seconds of all systems, and ratios to the sort. The first round is not counted."""
    index = indices(kind, num_nodes, num_edges)
    check(build(index[0], index[1], num_nodes, perm=True), index[0], index[1])

    def seconds(system: str) -> float:
        src, dst = index[0].clone(), index[1].clone()
        formats.clear()
        gc.collect()
        if system == "sort":
            return seconds_of(lambda: torch.sort(dst))
        return seconds_of(lambda: build(src, dst, num_nodes, perm=system == "with-perm"))

    rounds = [{system: seconds(system) for system in SYSTEMS} for _ in range(repeats + 1)][1:]
    answer: dict[str, Any] = {system: summary([one[system] for one in rounds]) for system in SYSTEMS}
    ratios = {system: answer[system]["median"] / answer["sort"]["median"] for system in SYSTEMS[:-1]}
    return {**answer, "ratios": ratios}


def measure_all(
    kinds: Sequence[str] = KINDS, nodes: int = 200_000, edges: int = 5_000_000, repeats: int = 9, threads: int = 2
) -> dict[str, Any]:
    """The record of a run."""
    torch.set_num_threads(threads)
    results = {kind: measure(kind, nodes, edges, repeats) for kind in kinds}
    return {"benchmark": "udf_build", "nodes": nodes, "edges": edges, "target": TARGET, "results": results}


def main(argv: Sequence[str] | None = None) -> int:
    options = options_from(argv, __doc__, nodes=200_000, edges=5_000_000, kinds=Among(KINDS), repeats=9)
    record = measure_all(options.kinds, options.nodes, options.edges, options.repeats, options.threads)
    save(options.out, record)
    print_table(record)
    return 0


def print_table(record: Mapping[str, Any]) -> None:
    def cell(one: Mapping[str, float]) -> str:
        return f"{1e3 * one['median']:.0f} ±{500 * (one['q3'] - one['q1']):.0f}"

    rows = [
        [kind, *(cell(one[name]) for name in SYSTEMS), *(f"{ratio:.2f}x" for ratio in one["ratios"].values())]
        for kind, one in record["results"].items()
    ]
    title = f"building a graph of {record['nodes']} nodes and {record['edges']} edges, ms, median ± half the IQR"
    ratio_table(
        title, ["indices", *SYSTEMS, *(f"{name} / sort (<= {record['target']:g}x)" for name in SYSTEMS[:-1])], rows
    )


if __name__ == "__main__":
    raise SystemExit(main())
