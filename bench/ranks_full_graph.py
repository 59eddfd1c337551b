"""Full-graph training over parts: two ranks against one process, time and peak memory of a rank.

    python -m bench.ranks full-graph [--graphs rmat-1.2m rmat-15m coauthor_physics] [--models gat sage] [--parts 2]
                                     [--method metis|random] [--repeats 7] [--halo float32|bfloat16] [--stale]
                                     [--threads 1] [--data-dir DIR] [--out FILE]

Two layers of 64 hidden features (GAT: 4 heads x 16) and a cross-entropy loss inside the model, Adam. Every process has
`--threads` threads, so that two ranks on two cores stand for two machines. The graph is divided beforehand, and each
process loads its part from files, as users do. Before timing, the losses of all steps are compared with those of one
process. `seconds` is the median step, of the slowest rank; `peak` is the most that a process has resident beyond what
it had before it loaded its data, of the largest rank. It counts data, formats, weights and all that a step takes.
`bytes sent` and `exchanges` are those of a step of rank 0. Ratios are to one process.
"""

from __future__ import annotations

import os
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch_geometric.nn import GATConv, SAGEConv

import graphweave as gw
from bench.case import Bench, Numbers
from bench.common import on_ranks, ratio_table
from bench.graphs import data_dir
from bench.options import Among
from bench.turns import peak_extra_bytes
from bench.workloads import Layers, WithLoss
from graphweave.data import rmat
from graphweave.distributed.full_graph import shard
from graphweave.distributed.graph_file import graph_file
from graphweave.distributed.load import load_part
from graphweave.distributed.part import GraphPart
from graphweave.distributed.parts import NODES, parts_of
from graphweave.distributed.write import write_partition

GRAPHS = {"rmat-1.2m": (100_000, 1_200_000), "rmat-15m": (1_000_000, 15_000_000), "rmat-60k": (6_000, 60_000)}
"""Nodes and edges of the R-MAT graphs; any other name is a file of the data folder."""
FEATURES, HIDDEN, CLASSES = 64, 64, 32
_WARM_UP = 3
"""Steps before the timed ones: the first compiles, and the third is the first whose features are already there."""


def model_of(kind: str, features: int, classes: int) -> nn.Module:
    """Two layers and the loss."""
    torch.manual_seed(0)
    if kind == "gat":
        return WithLoss(Layers(GATConv(features, HIDDEN // 4, heads=4), GATConv(HIDDEN, classes)))
    return WithLoss(Layers(SAGEConv(features, HIDDEN), SAGEConv(HIDDEN, classes)))


def loaded(name: str, folder: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Features, edges and labels."""
    draw = torch.Generator().manual_seed(0)
    if name in GRAPHS:
        nodes, edges = GRAPHS[name]
        x = torch.randn(nodes, FEATURES, generator=draw)
        return x, rmat(nodes, edges), torch.randint(CLASSES, (nodes,), generator=draw)
    found = np.load(folder / f"{name}.npz")
    index = torch.from_numpy(np.stack([found["src"], found["dst"]]).astype(np.int64))
    nodes = int(index.max()) + 1
    y = torch.from_numpy(found["y"]).long() if "y" in found else torch.randint(CLASSES, (nodes,), generator=draw)
    return torch.randn(len(y), FEATURES, generator=draw), index, y


def step_of(model: nn.Module) -> Any:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(*args: Tensor) -> float:
        optimizer.zero_grad()
        loss = model(*args)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def of_rank(
    kind: str, halo: str, stale: bool, rounds: int, store: str, parts: str, classes: int, features: int
) -> dict[str, Any]:
    """One rank: warms the compiler up on a small graph, loads its data, and makes the steps."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)  # type: ignore[attr-defined]
    rows = None if halo == "float32" else getattr(torch, halo)

    def prepared(part: GraphPart) -> Any:
        model = model_of(kind, part.nodes[NODES].data["feat"].shape[1], classes)
        step = step_of(shard(model, part, halo_dtype=rows, stale=stale) if size > 1 else gw.compile(model))
        data = part.nodes[NODES].data
        return lambda: step(data["y"], data["feat"], part.edge_index)

    x, y = torch.randn(200, features), torch.randint(classes, (200,))
    warm = prepared(parts_of(rmat(200, 2000), 200, torch.arange(200) % size, size, node_data={"feat": x, "y": y})[rank])
    for _ in range(2):
        warm()
    losses: list[float] = []
    times: list[float] = []

    def run() -> None:
        step = prepared(load_part(parts, rank, size))
        for i in range(_WARM_UP + rounds):
            if i == _WARM_UP:
                gw.reset_counters()
            dist.barrier()
            begin = time.perf_counter()
            losses.append(step())
            times.append(time.perf_counter() - begin)

    peak = peak_extra_bytes(run)
    counts = gw.counters()
    found = {
        "seconds": times[_WARM_UP:], "first": times[0], "peak": peak, "losses": losses,
        "bytes sent": counts["halo_bytes"] / rounds, "exchanges": counts["exchanges"] / rounds,
    }  # fmt: skip
    dist.destroy_process_group()
    return found


def measured(
    graph: str, kind: str, parts: int, *, method: str, halo: str, stale: bool, repeats: int, threads: int,
    timeout: float, folder: str,
) -> dict[str, Any]:  # fmt: skip
    """The results of `parts` ranks, the slowest and the largest."""
    x, index, y = loaded(graph, Path(folder))
    with tempfile.TemporaryDirectory() as at:
        np.savez(f"{at}/graph.npz", src=index[0], dst=index[1], num_nodes=len(x), feat=x, y=y)
        chosen = method if parts > 1 else "random"
        manifest = write_partition(graph_file(Path(at) / "graph.npz"), parts, f"{at}/parts", method=chosen)
        rows = [part.num_halo[0] for part in manifest.parts]
        classes, features = int(y.max()) + 1, x.shape[1]
        del x, index, y
        found = on_ranks(
            of_rank, parts, threads=threads, timeout=timeout, kind=kind, halo=halo, stale=stale, rounds=repeats,
            store=f"{at}/store", parts=f"{at}/parts", classes=classes, features=features,
        )  # fmt: skip
    slowest = [max(each) for each in zip(*(f["seconds"] for f in found), strict=True)]
    return {
        "seconds": median(slowest), "all": slowest, "peak": max(f["peak"] for f in found), "halo rows": rows,
        "losses": found[0]["losses"], "bytes sent": found[0]["bytes sent"], "exchanges": found[0]["exchanges"],
        "first": max(f["first"] for f in found),
    }  # fmt: skip


def compared(graph: str, kind: str, parts: int, **given: Any) -> dict[str, Any]:
    one, many = (measured(graph, kind, count, **given) for count in (1, parts))
    error = max(abs(a - b) / abs(a) for a, b in zip(one["losses"], many["losses"], strict=True))
    exact = given["halo"] == "float32" and not given["stale"]
    if exact and error > 1e-3:  # float32, some steps of Adam; tests compare in float64
        return {"status": f"wrong: losses of {parts} ranks differ by {error:.2g} of them"}
    return {
        "one": one, "ranks": many, "loss error": error, "time": many["seconds"] / one["seconds"],
        "memory": many["peak"] / one["peak"],
    }  # fmt: skip


def show(results: Mapping[str, Any], options: Namespace) -> None:
    rows = [
        (
            name, f"{r['one']['seconds']:.3f}", f"{r['ranks']['seconds']:.3f}", f"{r['time']:.2f}x",
            f"{r['one']['peak'] / 1e6:.0f}", f"{r['ranks']['peak'] / 1e6:.0f}", f"{r['memory']:.2f}x",
            f"{r['ranks']['bytes sent'] / 1e6:.2f}", f"{r['ranks']['exchanges']:.0f}", f"{r['loss error']:.1g}",
        ) if "one" in r else (name, r["status"])
        for name, r in results.items()
    ]  # fmt: skip
    head = ["", "one, s", "ranks, s", "time", "one, MB", "a rank, MB", "memory", "MB sent", "exchanges", "loss error"]
    ratio_table(f"{options.parts} ranks of {options.threads} threads, halo rows in {options.halo}", head, rows)


def cases(options: Namespace) -> Iterator[Numbers]:
    keys = ("parts", "method", "halo", "stale", "repeats", "threads", "timeout")
    given = {key: getattr(options, key) for key in keys}
    for graph in options.graphs:
        for kind in options.models:
            sizes = {"graph": graph, "kind": kind, "folder": str(options.data_dir), **given}
            yield Numbers(f"{graph} {kind}", compared, sizes, {"graph": "rmat-60k", "repeats": 1}, here=True)


BENCH = Bench(
    "bench.ranks_full_graph", __doc__, cases,
    {"graphs": ("rmat-1.2m", "rmat-15m", "coauthor_physics"), "models": Among(("gat", "sage")), "parts": 2,
     "method": Among(("metis", "random"), "metis"), "halo": Among(("float32", "bfloat16"), "float32"), "stale": False,
     "data_dir": data_dir()},
    threads=1, repeats=7, timeout=1800.0, show=show,
)  # fmt: skip
