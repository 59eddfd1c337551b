"""Sampled batches: how fast they are drawn, against DGL 2.1, and training steps on them, against eager PyG.

    python -m bench.sampling [--nodes 1000000] [--edges 15000000] [--rounds 5] [--batches 4] [--threads 2]
                             [--dgl-python PYTHON] [--out FILE]

The graph is an R-MAT graph with shuffled numbers. `blocks` are those of 1,024 seeds and fanouts 15, 10, 5, from
`BlockSampler` and from DGL's `NeighborSampler`, in turn, without features; the numbers of edges that both draw are
compared. `steps` are whole training steps of GraphSAGE and GAT (64 features, 64 hidden, 16 classes, a layer for each
hop): batches of PyG's `NodeLoader` with `NeighborSampler`, then forward, loss of the seeds and backward. Eager PyG and
graphweave get the same batches, in turn, and the time to draw a batch and to gather its features counts for both. The
losses are compared. `compilations` counts those after the first batch.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader

import graphweave
from bench.common import arguments, ratio_table, save
from bench.turns import Player
from graphweave.data import rmat
from graphweave.sampling import BlockSampler, NeighborSampler

FANOUTS, SEEDS = (15, 10, 5), 1024
FEATURES, HIDDEN, CLASSES = 64, 64, 16
STEPS = (((15, 10, 5), 1024), ((10, 10), 512))
"""Fanouts, and seeds of a batch."""

CONVS = {"sage": pyg.SAGEConv, "gat": pyg.GATConv}


class Model(nn.Module):
    """A layer for each hop, and the loss of the seeds, which are the first nodes of a batch."""

    def __init__(self, kind: str, layers: int) -> None:
        super().__init__()
        widths = [FEATURES, *[HIDDEN] * (layers - 1), CLASSES]
        self.layers = nn.ModuleList(CONVS[kind](a, b) for a, b in pairwise(widths))

    def forward(self, x: Tensor, edge_index: Tensor, y: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x.relu() if i else x, edge_index)
        return F.cross_entropy(x[: y.shape[0]], y)


def drawn(index: Tensor, nodes: int, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds a batch of every system, median over the rounds, and edges a batch."""
    ours = BlockSampler(graphweave.graph((index[0], index[1]), num_nodes=nodes), list(FANOUTS))
    generator = torch.Generator().manual_seed(0)
    taken: dict[str, list[float]] = {"graphweave": []}
    edges: dict[str, list[float]] = {"graphweave": []}
    with tempfile.TemporaryDirectory() as folder:
        player = None
        if options.dgl_python is not None:
            np.savez(Path(folder) / "graph.npz", edge_index=index.numpy(), num_nodes=nodes)
            command = [options.dgl_python, "-m", "bench.sampling_dgl", f"{folder}/graph.npz", "--fanouts"]
            command += [*map(str, FANOUTS), "--threads", str(options.threads)]
            player = Player(command, {"OMP_NUM_THREADS": str(options.threads)}, timeout=300)
            taken["dgl"], edges["dgl"] = [], []
        for round_ in range(options.rounds + 1):
            seeds = [torch.randperm(nodes, generator=generator)[:SEEDS] for _ in range(options.batches)]
            start = time.perf_counter()
            found = [ours.sample(some)[2] for some in seeds]
            seconds = time.perf_counter() - start
            if round_:  # the first warms up
                taken["graphweave"].append(seconds / options.batches)
                edges["graphweave"].append(sum(b.num_edges() for blocks in found for b in blocks) / options.batches)
            if player is not None:
                answer = player.ask("batches", seeds=[some.tolist() for some in seeds])
                if round_:
                    taken["dgl"].append(answer["seconds"] / options.batches)
                    edges["dgl"].append(answer["edges"] / options.batches)
        if player is not None:
            player.close()
    means = {name: sum(found) / len(found) for name, found in edges.items()}
    if max(means.values()) > 1.02 * min(means.values()):
        raise AssertionError(f"systems draw different numbers of edges: {means}")
    return {name: {"seconds": median(found), "edges": means[name]} for name, found in taken.items()}


def trained(kind: str, fanouts: Sequence[int], seeds: int, data: Data, options: argparse.Namespace) -> dict[str, Any]:
    """Median seconds of a step of both systems, with the batch, and compilations after the first batch."""
    torch.manual_seed(0)
    model = Model(kind, len(fanouts))
    systems = {"eager": model, "graphweave": graphweave.compile(model)}
    loader = NodeLoader(data, NeighborSampler(data, list(fanouts)), batch_size=seeds, shuffle=True)
    taken: dict[str, list[float]] = {"batch": [], **{name: [] for name in systems}}
    batches = iter(loader)
    compiled = 0
    for number in range(options.rounds * options.batches + 4):
        start = time.perf_counter()
        batch = next(batches)
        given = batch.x, batch.edge_index, batch.y[: batch.batch_size]
        seconds, losses = {"batch": time.perf_counter() - start}, {}
        for name, system in systems.items():
            model.zero_grad(set_to_none=True)
            start = time.perf_counter()
            loss = system(*given)
            loss.backward()
            seconds[name], losses[name] = time.perf_counter() - start, float(loss.detach())
        if abs(losses["eager"] - losses["graphweave"]) > 1e-3 * abs(losses["eager"]):
            raise AssertionError(f"different losses: {losses}")
        if number == 0:
            compiled = graphweave.counters()["compilations"]
        if number >= 4:
            for name, value in seconds.items():
                taken[name].append(value)
    again = graphweave.counters()["compilations"] - compiled
    return {**{name: median(found) for name, found in taken.items()}, "compilations": again}


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=15_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=4, help="batches in a round")
    parser.add_argument("--dgl-python")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    index = torch.randperm(options.nodes)[rmat(options.nodes, options.edges)]
    blocks = drawn(index, options.nodes, options)
    base = blocks["graphweave"]["seconds"]
    rows = [
        [name, f"{1e3 * one['seconds']:.1f}", f"{1e9 * one['seconds'] / one['edges']:.0f}",
         f"{one['seconds'] / base:.2f}x"]
        for name, one in blocks.items()
    ]  # fmt: skip
    ratio_table("blocks of 1,024 seeds", ["", "ms a batch", "ns an edge", "/ graphweave"], rows)
    x, y = torch.randn(options.nodes, FEATURES), torch.randint(CLASSES, (options.nodes,))
    data = Data(x=x, edge_index=index, y=y)
    steps: dict[str, Any] = {}
    for fanouts, seeds in STEPS:
        for kind in CONVS:
            torch._dynamo.reset()
            steps[f"{kind} {list(fanouts)} {seeds}"] = trained(kind, fanouts, min(seeds, options.nodes), data, options)
    rows = [
        [name, *(f"{1e3 * one[k]:.1f}" for k in ("batch", "eager", "graphweave")),
         f"{(one['batch'] + one['eager']) / (one['batch'] + one['graphweave']):.2f}x", str(one["compilations"])]
        for name, one in steps.items()
    ]  # fmt: skip
    headings = ["", "batch ms", "eager ms", "graphweave ms", "with the batch, eager / graphweave", "compilations"]
    ratio_table("training steps on sampled batches", headings, rows)
    save(options.out, {"benchmark": "sampling", "threads": options.threads, "blocks": blocks, "steps": steps})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
