"""Rows that parts of real graphs read of each other: METIS and greedy against random parts, and the formula for these.

    python -m bench.ranks halo [--graphs ogbn_arxiv_structure web_cnr2000 coauthor_physics] [--parts 2 4 8 16 32 64]
                               [--methods metis ldg random] [--out FILE]

`halo` is the mean number of halo rows of a part over the nodes of the whole graph, `expected` that of random parts by
`random_halo` of graphweave/distributed/cost.py, from the degrees alone. The graphs, made symmetric, are those of
GRAPHWEAVE_DATA.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.case import Bench, Numbers
from bench.common import ratio_table
from bench.graphs import data_dir
from graphweave.distributed.cost import random_halo
from graphweave.distributed.graph_file import EdgeStream, GraphFile, graph_file
from graphweave.distributed.parts import EDGES, NODES
from graphweave.distributed.write import write_partition

GRAPHS = ("ogbn_arxiv_structure", "web_cnr2000", "coauthor_physics")


def structure(path: Path) -> GraphFile:
    """The graph without data, in both directions."""
    graph = graph_file(path, symmetric=True)
    return GraphFile(graph.name, graph.num_nodes, graph.edges, {})


def out_degrees(stream: EdgeStream) -> np.ndarray:
    total = np.zeros(stream.num_src, np.int64)
    for src, _ in stream.pieces(1 << 22):
        total += np.bincount(src.numpy(), minlength=stream.num_src)
    return total


def measured(name: str, parts: Sequence[int], methods: Sequence[str]) -> dict[str, Any]:
    graph = structure(data_dir() / f"{name}.npz")
    degrees = out_degrees(graph.edges[EDGES])
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for count in parts:
            expected = random_halo(degrees, np.ones(degrees.size), count) / degrees.size
            for method in methods:
                manifest = write_partition(graph, count, Path(folder) / "parts", method=method)
                halo = sum(part.num_halo[0] for part in manifest.parts) / count / manifest.node_types[NODES]
                cut = manifest.cut_edges[0] / manifest.num_edges[0]
                found.append({"graph": name, "nodes": degrees.size, "edges": manifest.num_edges[0], "parts": count,
                              "method": method, "cut": cut, "halo": halo, "expected": expected})  # fmt: skip
    return {"rows": found}


def show(results: Mapping[str, Any], options: Namespace) -> None:
    rows = [
        [row["graph"], str(row["parts"]), row["method"], *(f"{row[k]:.4f}" for k in ("cut", "halo", "expected"))]
        for one in results.values() for row in one["rows"]
    ]  # fmt: skip
    headings = ["graph", "parts", "method", "edges cut", "halo", "random, expected"]
    ratio_table("halo rows of a part / nodes", headings, rows)


def cases(options: Namespace) -> Iterator[Numbers]:
    for name in options.graphs:
        sizes = {"name": name, "parts": options.parts, "methods": options.methods}
        yield Numbers(name, measured, sizes, {"parts": (2,)}, here=True)


BENCH = Bench(
    "bench.ranks_halo", __doc__, cases,
    {"graphs": GRAPHS, "parts": (2, 4, 8, 16, 32, 64), "methods": ("metis", "ldg", "random")}, show=show,
)  # fmt: skip
