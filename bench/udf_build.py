"""Building a graph from unsorted indices, formats of both directions included, against one torch.sort of an index.

    python -m bench.udf_build [--nodes 200000] [--edges 5000000] [--kinds rmat uniform] [--repeats 9] [--threads 2]

`graph` makes a `graphweave.Graph` of int64 indices and asks for everything that message passing and its backward read:
edges grouped by destination and by source, and for each grouping the rows at the other end, all indices checked.
`sort` is `torch.sort` of the destinations, values and permutation. Both run in one process in turn, on fresh copies of
the indices, so that nothing is remembered from the round before. Target: at most 1.5 times the sort.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import graphweave
from bench.common import arguments, ratio_table, save, seconds_of
from bench.turns import summary
from graphweave.data import rmat
from graphweave.runtime import formats

TARGET = 1.5
SYSTEMS = ("graph", "sort")
KINDS = ("rmat", "uniform")
"""rmat: ends of R-MAT edges, with hubs. uniform: random numbers."""


def indices(kind: str, num_nodes: int, num_edges: int) -> Tensor:
    """[2, E] int64, in the order in which they were drawn."""
    if kind == "rmat":
        return rmat(num_nodes, num_edges)
    return torch.randint(num_nodes, (2, num_edges), generator=torch.Generator().manual_seed(0))


def build(src: Tensor, dst: Tensor, num_nodes: int) -> list[Any]:
    graph = graphweave.graph((src, dst), num_nodes=num_nodes)
    src, dst = graph.edges()
    found: list[Any] = []
    for row, other in ((dst, src), (src, dst)):
        found.append(formats.csr(row, num_nodes))
        found.append(formats.column(row, num_nodes, False, other, num_nodes, False))
    return found


def check(found: Sequence[Any], src: Tensor, dst: Tensor) -> None:
    """Against torch.sort."""
    for (csr, column), (row, other) in zip((found[:2], found[2:]), ((dst, src), (src, dst)), strict=True):
        order = torch.sort(row, stable=True).indices
        assert torch.equal(csr.perm.long(), order)
        assert torch.equal(column.long(), other[order])
        assert torch.equal(csr.indptr.long().diff(), torch.bincount(row, minlength=csr.num_rows))


def measure(kind: str, num_nodes: int, num_edges: int, repeats: int) -> dict[str, Any]:
    """Seconds of both, and their ratio; the first round is not counted."""
    index = indices(kind, num_nodes, num_edges)
    check(build(index[0], index[1], num_nodes), index[0], index[1])
    taken: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    for round_ in range(repeats + 1):
        src, dst = index[0].clone(), index[1].clone()
        formats.clear()
        gc.collect()
        graph = seconds_of(lambda src=src, dst=dst: build(src, dst, num_nodes))
        sort = seconds_of(lambda dst=dst: torch.sort(dst))
        if round_:
            taken["graph"].append(graph)
            taken["sort"].append(sort)
    answer: dict[str, Any] = {name: summary(seconds) for name, seconds in taken.items()}
    return {**answer, "ratio": answer["graph"]["median"] / answer["sort"]["median"]}


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--edges", type=int, default=5_000_000)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    results = {kind: measure(kind, options.nodes, options.edges, options.repeats) for kind in options.kinds}
    record = {"benchmark": "udf_build", "nodes": options.nodes, "edges": options.edges, "target": TARGET}
    record["results"] = results
    if options.worker is not None:
        save(options.worker, record)
        return 0
    save(options.out, record)
    print_table(record)
    return 0


def print_table(record: Mapping[str, Any]) -> None:
    def cell(one: Mapping[str, float]) -> str:
        return f"{1e3 * one['median']:.0f} ±{500 * (one['q3'] - one['q1']):.0f}"

    rows = [
        [kind, *(cell(one[name]) for name in SYSTEMS), f"{one['ratio']:.2f}x", f"<= {record['target']:g}x"]
        for kind, one in record["results"].items()
    ]
    title = f"building a graph of {record['nodes']} nodes and {record['edges']} edges, ms, median ± half the IQR"
    ratio_table(title, ["indices", *SYSTEMS, "graph / sort", "target"], rows)


if __name__ == "__main__":
    raise SystemExit(main())
