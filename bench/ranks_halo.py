"""Rows that parts of real graphs read of each other: METIS and greedy against random parts, and the formula for these.

    python -m bench.ranks halo [--graphs ogbn_arxiv_structure web_cnr2000 coauthor_physics] [--parts 2 4 8 16 32 64]
                               [--methods metis ldg random] [--out FILE]

`halo` is the mean number of halo rows of a part over the nodes of the whole graph, `expected` that of random parts by
`random_halo` of graphweave/distributed/cost.py, from the degrees alone. The graphs, made symmetric, are those of
GRAPHWEAVE_DATA.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.common import ratio_table, save
from bench.graphs import data_dir
from bench.options import options_from
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


def measured(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    graph = structure(data_dir() / f"{name}.npz")
    degrees = out_degrees(graph.edges[EDGES])
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for parts in options.parts:
            expected = random_halo(degrees, np.ones(degrees.size), parts) / degrees.size
            for method in options.methods:
                manifest = write_partition(graph, parts, Path(folder) / "parts", method=method)
                halo = sum(part.num_halo[0] for part in manifest.parts) / parts / manifest.node_types[NODES]
                cut = manifest.cut_edges[0] / manifest.num_edges[0]
                found.append({"graph": name, "nodes": degrees.size, "edges": manifest.num_edges[0], "parts": parts,
                              "method": method, "cut": cut, "halo": halo, "expected": expected})  # fmt: skip
    return found


def main(argv: Sequence[str] | None = None) -> int:
    options = options_from(
        argv, __doc__, graphs=GRAPHS, parts=(2, 4, 8, 16, 32, 64), methods=("metis", "ldg", "random")
    )
    results = [row for name in options.graphs for row in measured(name, options)]
    shown = [
        (
            row["graph"],
            str(row["parts"]),
            row["method"],
            f"{row['cut']:.3f}",
            f"{row['halo']:.4f}",
            f"{row['expected']:.4f}",
        )
        for row in results
    ]
    ratio_table(
        "halo rows of a part / nodes", ["graph", "parts", "method", "edges cut", "halo", "random, expected"], shown
    )
    save(options.out, {"benchmark": "ranks_halo", "results": results})
    return 0
