"""How long `graphweave partition` takes, from file to parts on disk, against METIS's own time for the same graph.

    python -m bench.ranks partition [--nodes 1000000] [--edges 15000000] [--parts 4] [--repeats 3] [--features 0]
                                    [--methods metis random ldg] [--out FILE]

The graph is an R-MAT graph with shuffled numbers, in an uncompressed file. `metis alone` is `pymetis.part_graph` on
arrays that are ready, with the weights and the seed that the command gives it. Each run of the command is a process of
its own, and counts all that it does: reading, METIS, sorting, writing, digests. Command and METIS take turns, and
METIS's parts must be those of the command. `start` is the command with `--help`, which only loads PyTorch and
graphweave. `ratio` is the command's median over METIS's, with its start.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from bench.case import Bench, Numbers
from bench.common import ratio_table
from bench.turns import ROOT
from graphweave.data import rmat
from graphweave.distributed.load import load_part
from graphweave.distributed.manifest import read_manifest
from graphweave.distributed.methods import weights_of
from graphweave.distributed.parts import NODES
from graphweave.sampling.partition import metis
from graphweave.sampling.undirected import undirected_of

QUALITY = ("edges cut", "most of mean edges", "replication")
"""Columns that say how good a partition is."""


def metis_alone(index: torch.Tensor, nodes: int, parts: int) -> tuple[float, torch.Tensor]:
    """Seconds of METIS, and its parts."""
    graph = undirected_of(index[0], index[1], nodes, weights_of(torch.bincount(index[1], minlength=nodes)))
    begin = time.perf_counter()
    found = metis(graph, parts, 0)
    assert found is not None, "pymetis is not installed"
    return time.perf_counter() - begin, found


def command(*options: str) -> float:
    """Seconds of a run of the command."""
    argv = [sys.executable, "-m", "graphweave", "partition", *options]
    begin = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(torch.get_num_threads())}
    subprocess.run(argv, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def owners(folder: Path, nodes: int) -> torch.Tensor:
    found = torch.full((nodes,), -1)
    for rank in range(read_manifest(folder).num_parts):
        found[load_part(folder, rank).nodes[NODES].own] = rank
    return found


def described(folder: Path) -> dict[str, Any]:
    """Cut, balance, and rows in the parts for each row of the graph."""
    manifest = read_manifest(folder)
    edges, nodes = manifest.num_edges[0], manifest.node_types[NODES]
    return {
        "edges cut": manifest.cut_edges[0] / max(edges, 1),
        "most of mean edges": max(part.num_edges[0] for part in manifest.parts) * manifest.num_parts / max(edges, 1),
        "replication": sum(part.num_own[0] + part.num_halo[0] for part in manifest.parts) / nodes,
    }


def measured(nodes: int, edges: int, features: int, parts: int, methods: Sequence[str], repeats: int) -> dict[str, Any]:
    index = rmat(nodes, edges)
    times: dict[str, list[float]] = {"metis alone": [], "start": [], **{name: [] for name in methods}}
    quality: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rmat.npz"
        more: dict[str, Any] = {"feat": np.zeros((nodes, features), np.float32)} if features else {}
        np.savez(file, src=index[0], dst=index[1], num_nodes=nodes, **more)
        for _ in range(repeats):
            seconds, expected = metis_alone(index, nodes, parts)
            times["metis alone"].append(seconds)
            times["start"].append(command("--help"))
            for name in methods:
                out = Path(folder) / name
                times[name].append(command(str(file), "--parts", str(parts), "--method", name, "--out", str(out)))
                quality[name] = described(out)
                if name == "metis" and not torch.equal(owners(out, nodes), expected):
                    raise AssertionError("the command's parts are not METIS's")
    return {
        name: {"seconds": median(taken), "all": taken, "ratio": median(taken) / median(times["metis alone"]),
               **quality.get(name, {})}
        for name, taken in times.items()
    }  # fmt: skip


def show(results: Mapping[str, Any], options: Namespace) -> None:
    rows = [
        (name, f"{one['seconds']:.2f}", f"{one['ratio']:.2f}x", *(f"{one[k]:.3f}" if k in one else "" for k in QUALITY))
        for found in results.values() for name, one in found.items()
    ]  # fmt: skip
    title = f"R-MAT, {options.nodes:,} nodes, {options.edges:,} edges, {options.parts} parts"
    ratio_table(title, ["", "seconds", "of METIS", *QUALITY], rows)


def cases(options: Namespace) -> Iterator[Numbers]:
    sizes = {key: getattr(options, key) for key in ("nodes", "edges", "features", "parts", "methods", "repeats")}
    yield Numbers("rmat", measured, sizes, {"nodes": 3000, "edges": 20_000, "repeats": 1}, here=True)


BENCH = Bench(
    "bench.ranks_partition", __doc__, cases,
    {"nodes": 1_000_000, "edges": 15_000_000, "features": 0, "parts": 4, "methods": ("metis", "random", "ldg")},
    repeats=3, show=show,
)  # fmt: skip
