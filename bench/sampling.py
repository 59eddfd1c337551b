"""Sampled batches: how fast they are drawn, against DGL 2.1, and training steps on them, against eager PyG.

    python -m bench.sampling [--nodes 1000000] [--edges 15000000] [--repeats 5] [--threads 2] [--dgl-python PYTHON]
                             [--cases NAME ...] [--out FILE] [--resume]

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

from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader

import graphweave
from bench.batches import SeedLoss, step_by_step
from bench.case import Bench, Case, Check, Numbers, Peers
from bench.common import ratio_table
from bench.runner import run
from bench.seeds import FANOUTS, drawn
from bench.steps import Result, Step
from bench.workloads import Layers
from graphweave.data import rmat
from graphweave.sampling import BlockSampler, NeighborSampler

FEATURES, HIDDEN, CLASSES = 64, 64, 16
STEPS = (((15, 10, 5), 1024), ((10, 10), 512))
"""Fanouts, and seeds of a batch."""

CONVS = {"sage": pyg.SAGEConv, "gat": pyg.GATConv}


def model_of(kind: str, hops: int) -> nn.Module:
    """A layer for each hop, and the loss of the seeds."""
    widths = [FEATURES, *[HIDDEN] * (hops - 1), CLASSES]
    return SeedLoss(Layers(*(CONVS[kind](a, b) for a, b in pairwise(widths))))


def batches_of(loader: Iterable[Any]) -> Iterator[tuple[Tensor, ...]]:
    """Labels of the seeds, features and edges of one batch of a loader after the other, without end."""
    while True:
        for batch in loader:
            yield batch.y[: getattr(batch, "batch_size", None)], batch.x, batch.edge_index


def links_of(loader: Iterable[Any]) -> Iterator[tuple[Tensor, ...]]:
    """Another destination for each edge, features and edges of one batch of a loader after the other, without end."""
    generator = torch.Generator().manual_seed(0)
    while True:
        for batch in loader:
            drawn = torch.randint(batch.x.size(0), (batch.edge_index.size(1),), generator=generator)
            yield drawn, batch.x, batch.edge_index


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


def graph_of(nodes: int, edges: int) -> Tensor:
    """An R-MAT graph with shuffled numbers, [2, edges]."""
    torch.manual_seed(0)
    return torch.randperm(nodes)[rmat(nodes, edges)]


def build(nodes: int, edges: int) -> Peers:
    index = graph_of(nodes, edges)

    def ours() -> Step:
        graph, seeds = graphweave.graph((index[0], index[1]), num_nodes=nodes), drawn(nodes)
        sampler = BlockSampler(graph, list(FANOUTS))
        return lambda: torch.tensor([sum(block.num_edges() for block in sampler.sample(next(seeds))[2])])

    def by_torch() -> Step:
        order, seeds = torch.argsort(index[1], stable=True), drawn(nodes)
        sources, indptr = index[0][order].int(), torch.zeros(nodes + 1, dtype=torch.int64)
        indptr[1:] = torch.bincount(index[1], minlength=nodes).cumsum(0)
        return lambda: torch.tensor([sum(e.shape[1] for _, e in torch_blocks(indptr, sources, next(seeds), FANOUTS))])

    def memory() -> Step:
        count = int(ours()())
        sources, numbers = index[0].int(), torch.zeros(nodes, dtype=torch.int64)
        at, node = torch.randint(edges, (count,)), torch.randint(nodes, (count,))

        def step() -> Tensor:
            sources.index_select(0, at), numbers.index_select(0, node)
            return torch.tensor([count])

        return step

    return {"graphweave": ours, "torch": by_torch, "memory": memory}


def inputs(nodes: int, edges: int) -> Mapping[str, Tensor]:
    return {"edge_index": graph_of(nodes, edges)}


def drawn_edges(peer: str, step: Step) -> dict[str, float]:
    """The mean number of edges of a batch."""
    return {"edges": sum(int(step()) for _ in range(4)) / 4}


def same_count(got: Result, want: Result) -> tuple[float, str]:
    """How much the numbers of edges of one batch differ."""
    one, other = float(got.outputs[0]), float(want.outputs[0])
    return abs(one - other) / other, "the number of edges"


def trained(kind: str, fanouts: Sequence[int], seeds: int, nodes: int, edges: int, batches: int, threads: int) -> Any:
    """Median seconds of a step of both systems, with the batch, and compilations after the first batch."""
    torch.set_num_threads(threads)
    index = graph_of(nodes, edges)
    data = Data(x=torch.randn(nodes, FEATURES), edge_index=index, y=torch.randint(CLASSES, (nodes,)))
    torch.manual_seed(0)
    loader = NodeLoader(data, NeighborSampler(data, list(fanouts)), batch_size=min(seeds, nodes), shuffle=True)
    found = step_by_step(model_of(kind, len(fanouts)), batches_of(loader), batches)
    return found if "status" in found else {**found, **{k: median(found[k]) for k in ("batch", "eager", "graphweave")}}


def show(results: Mapping[str, Any], options: Namespace) -> None:
    rows = [
        [name, *(f"{1e3 * one[k]:.1f}" for k in ("batch", "eager", "graphweave")),
         f"{(one['batch'] + one['eager']) / (one['batch'] + one['graphweave']):.2f}x", str(one["compilations"])]
        for name, one in results.items() if "batch" in one
    ]  # fmt: skip
    headings = ["", "batch ms", "eager ms", "graphweave ms", "with the batch, eager / graphweave", "compilations"]
    ratio_table("training steps on sampled batches", headings, rows)


def cases(options: Namespace) -> Iterator[Case | Numbers]:
    sizes, small = {"nodes": options.nodes, "edges": options.edges}, {"nodes": 3000, "edges": 40_000}
    check = Check(0.1, "graphweave", error=same_count, others={name: name for name in ("torch", "memory")})
    peers = ("graphweave", "dgl", "torch", "memory")
    yield Case("blocks", build, peers, check, sizes, small, inputs, drawn_edges)
    for fanouts, seeds in STEPS:
        for kind in CONVS:
            given = {"kind": kind, "fanouts": fanouts, "seeds": seeds, "batches": 20, "threads": options.threads}
            yield Numbers(f"{kind} {list(fanouts)} {seeds}", trained, {**sizes, **given}, {**small, "batches": 1})


BENCH = Bench(
    "bench.sampling", __doc__, cases, {"nodes": 1_000_000, "edges": 15_000_000}, dgl="bench.sampling_dgl", repeats=5,
    columns={"ns an edge": lambda found, one: f"{1e9 * one['median'] / one['edges']:.0f}"}, show=show,
)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
