"""Sampled batches: how fast they are drawn, against DGL 2.1, and training steps on them, against eager PyG.

    python -m bench.sampling [--nodes 1000000] [--edges 15000000] [--rounds 5] [--batches 4] [--threads 2]
                             [--dgl-python PYTHON] [--out FILE]

The graph is an R-MAT graph with shuffled numbers. `blocks` are those of 1,024 seeds and fanouts 15, 10, 5, from
`BlockSampler` and from DGL's `NeighborSampler`, in turn, without features; the numbers of edges that both draw are
compared. PyG's samplers raise ImportError without pyg-lib and torch-sparse, so `torch` stands for them: the same hops
by PyTorch's operations on a CSC, as one writes them in their place. It draws with replacement, which is the cheaper
way. `memory` is what memory allows: as many numbers as edges are drawn, read at random from arrays of the size of the
graph's edges and of its nodes by `index_select`. `steps` are whole training steps of GraphSAGE and GAT (64 features, 64
hidden, 16 classes, a layer for each hop): batches of PyG's `NodeLoader` with `NeighborSampler`, then forward, loss of
the seeds and backward. Eager PyG and graphweave get the same batches, in turn, and the time to draw a batch and to
gather its features counts for both. The losses are compared. `compilations` counts those after the first batch.
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
from bench.common import ratio_table, save
from bench.options import Among, options_from
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


def torch_blocks(indptr: Tensor, sources: Tensor, seeds: Tensor, fanouts: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """(nodes, edges [2, drawn]) of each hop, drawn with replacement by PyTorch's operations; nodes are sorted."""
    nodes, hops = seeds, []
    for fanout in reversed(fanouts):
        begin, degree = indptr[nodes], indptr[nodes + 1] - indptr[nodes]
        has = degree > 0
        offsets = torch.rand(int(has.sum()), fanout) * degree[has, None]
        drawn = sources[(begin[has, None] + offsets.long()).view(-1)].long()
        rows = nodes[has].repeat_interleave(fanout)
        nodes = torch.cat([nodes, drawn]).unique()
        hops.append((nodes, torch.stack([torch.searchsorted(nodes, drawn), torch.searchsorted(nodes, rows)])))
    return hops


def without_us(index: Tensor, nodes: int, edges: float, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds a batch of PyTorch's operations, and of what memory allows for `edges` edges; medians."""
    order = torch.argsort(index[1], stable=True)
    sources = index[0][order].int()
    indptr = torch.zeros(nodes + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(index[1], minlength=nodes).cumsum(0)
    numbers = torch.zeros(nodes, dtype=torch.int64)
    taken: dict[str, list[float]] = {"torch": [], "memory": []}
    drawn = []
    for _ in range(options.rounds + 1):
        seeds = torch.randperm(nodes)[:SEEDS]
        at, node = torch.randint(sources.numel(), (int(edges),)), torch.randint(nodes, (int(edges),))
        start = time.perf_counter()
        hops = torch_blocks(indptr, sources, seeds, FANOUTS)
        middle = time.perf_counter()
        sources.index_select(0, at), numbers.index_select(0, node)
        taken["memory"].append(time.perf_counter() - middle)
        taken["torch"].append(middle - start)
        drawn.append(sum(edge.shape[1] for _, edge in hops))
    counts = {"torch": sum(drawn) / len(drawn), "memory": edges}
    return {name: {"seconds": median(found[1:]), "edges": counts[name]} for name, found in taken.items()}


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
    options = options_from(
        argv, __doc__, nodes=1_000_000, edges=15_000_000, rounds=5, batches=4, dgl_python=str,
        part=Among(("blocks", "steps", "all"), "all"),
    )  # fmt: skip
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    index = torch.randperm(options.nodes)[rmat(options.nodes, options.edges)]
    record: dict[str, Any] = {"benchmark": "sampling", "threads": options.threads}
    if options.part != "steps":
        record["blocks"] = _measure_blocks(index, options)
    if options.part != "blocks":
        record["steps"] = _measure_steps(index, options)
    save(options.out, record)
    return 0


def _measure_blocks(index: Tensor, options: argparse.Namespace) -> dict[str, Any]:
    blocks = drawn(index, options.nodes, options)
    ours = blocks["graphweave"]
    blocks |= without_us(index, options.nodes, ours["edges"], options)
    rows = [
        [name, f"{1e3 * one['seconds']:.1f}", f"{1e9 * one['seconds'] / one['edges']:.0f}",
         f"{1e6 * one['seconds'] / min(SEEDS, options.nodes):.1f}", f"{one['seconds'] / ours['seconds']:.2f}x"]
        for name, one in blocks.items()
    ]  # fmt: skip
    ratio_table("blocks of 1,024 seeds", ["", "ms a batch", "ns an edge", "us a seed", "/ graphweave"], rows)
    return blocks


def _measure_steps(index: Tensor, options: argparse.Namespace) -> dict[str, Any]:
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
    return steps


if __name__ == "__main__":
    raise SystemExit(main())
