"""User-defined message passing: graphweave and DGL 2.1 running the same functions, in turn; and building a graph.

    python -m bench.udf [--layers gcn gat cgat sage gin] [--graphs rmat-ppi rmat ppi arxiv] [--modes infer train]
                        [--systems graphweave udf-eager builtin pyg dgl-udf dgl] [--repeats 20]
                        [--threads 2] [--timeout 600] [--cases NAME ...] [--out FILE] [--resume]

Two layers, 64 wide, of each kind, and R-MAT graphs of PPI's and ogbn-arxiv's sizes unless others are named. `infer` is
a forward pass without gradients, `train` forward, loss and backward. Systems:

    graphweave the layers of bench/udf_layers.py (user-defined functions), model and loss compiled by graphweave
    udf-eager  the same lines outside graphweave.compile, where each update_all runs its own compiled kernels
    builtin    the layers with built-in functions, compiled by graphweave (bench/udf_variants.py)
    pyg        the layers as PyG has them, compiled by graphweave
    dgl-udf    DGL running the very lines of graphweave (gcn, gat, cgat), which it does in buckets of equal degree
    dgl        DGL's own layers (all but cgat)

All get the same inputs and weights, and outputs, loss and gradients are compared with eager PyG first. Formats and work
on the graph alone are warm on both sides. A system that takes seconds a step, as dgl-udf does, has three rounds.

The cases `build rmat` and `build uniform` make a `graphweave.Graph` of 5M edges from unsorted int64 indices, and the
formats that message passing over node features and its backward read: edges grouped by destination and by source, and
for each grouping the rows at the other end, with all indices checked. `with-perm` also makes the permutations of both
groupings, which features of edges need. `sort` is `torch.sort` of the destinations: values and permutation. They take
turns on fresh copies of the indices, so that no cache holds anything from the round before.
"""

from __future__ import annotations

import gc
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import graphweave
from bench.case import Bench, Case, Numbers
from bench.common import ratio_table, seconds_of
from bench.graphs import GRAPHS, data_dir, missing
from bench.options import Among
from bench.runner import run
from bench.spec_peers import case_of
from bench.specs import USER_DEFINED, Spec
from bench.steps import MODES
from bench.turns import summary
from bench.udf_layers import LAYERS
from graphweave.data import rmat
from graphweave.runtime import formats
from graphweave.runtime.index import Index

PEERS = ("graphweave", "udf-eager", "builtin", "pyg")
DGL = {"gcn": ("dgl-udf", "dgl"), "gat": ("dgl-udf", "dgl"), "cgat": ("dgl-udf",), "sage": ("dgl",), "gin": ("dgl",)}
"""Layer -> the peers of DGL: those that it runs as functions, and those that it has itself."""

BUILDS = ("graph", "with-perm", "sort")
KINDS = ("rmat", "uniform")
"""rmat: ends of R-MAT edges, with hubs. uniform: random numbers."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """Formats of one direction."""

    csr: formats.CsrFormat
    column: Tensor
    perm: Tensor | None


def groupings(src: Tensor, dst: Tensor, num_nodes: int, *, perm: bool) -> list[Grouping]:
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


def building(kind: str, nodes: int, edges: int, repeats: int, threads: int) -> dict[str, Any]:
    """Seconds of all systems, and ratios to the sort. The first round is not counted."""
    torch.set_num_threads(threads)
    drawn = torch.randint(nodes, (2, edges), generator=torch.Generator().manual_seed(0))
    index = rmat(nodes, edges) if kind == "rmat" else drawn
    check(groupings(index[0], index[1], nodes, perm=True), index[0], index[1])

    def seconds(system: str) -> float:
        src, dst = index[0].clone(), index[1].clone()
        formats.clear()
        gc.collect()
        if system == "sort":
            return seconds_of(lambda: torch.sort(dst))
        return seconds_of(lambda: groupings(src, dst, nodes, perm=system == "with-perm"))

    rounds = [{system: seconds(system) for system in BUILDS} for _ in range(repeats + 1)][1:]
    answer: dict[str, Any] = {system: summary([one[system] for one in rounds]) for system in BUILDS}
    ratios = {system: answer[system]["median"] / answer["sort"]["median"] for system in BUILDS[:-1]}
    return {**answer, "ratios": ratios}


def show(results: Mapping[str, Any], options: Namespace) -> None:
    rows = [
        [name, *(f"{1e3 * one[b]['median']:.0f} ±{500 * (one[b]['q3'] - one[b]['q1']):.0f}" for b in BUILDS),
         *(f"{ratio:.2f}x" for ratio in one["ratios"].values())]
        for name, one in results.items() if name.startswith("build ") and "ratios" in one
    ]  # fmt: skip
    if rows:
        headings = ["", *BUILDS, "graph / sort", "with-perm / sort"]
        ratio_table("building a graph, ms, median ± half the IQR", headings, rows)


def cases(options: Namespace) -> Iterator[Case | Numbers]:
    for graph in options.graphs:
        for layer in options.layers:
            for mode in options.modes:
                yield case_of(
                    f"{layer} {graph} {mode}", Spec(USER_DEFINED + layer, graph), mode, options.data_dir,
                    (*PEERS, *DGL[layer]),
                    missing=None if options.quick else missing(graph, options.data_dir),
                )  # fmt: skip
    for kind in KINDS:
        sizes = {"kind": kind, "nodes": 200_000, "edges": 5_000_000, "repeats": 9, "threads": options.threads}
        yield Numbers(f"build {kind}", building, sizes, {"nodes": 200, "edges": 5000, "repeats": 1})


BENCH = Bench(
    "bench.udf", __doc__, cases,
    {"layers": Among(LAYERS), "graphs": Among(GRAPHS, ("rmat-ppi", "rmat")), "modes": Among(MODES),
     "data_dir": data_dir()},
    apart=True, repeats=20, timeout=600.0, dgl="bench.dgl_specs", slow=1.0, show=show,
)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
