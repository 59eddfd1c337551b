"""DGL's table 4 and figure 3: training on batches of sampled neighbours and of clusters, and small graphs.

Batches are drawn by `graphweave.sampling` for all systems, since PyG's samplers need libraries that have no wheels on
the ordinary index. Eager PyG and graphweave take steps on the same batches, in turn; the time to draw a batch and to
gather its features counts for both.
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader

import graphweave
from bench.named_graphs import edges_of
from bench.papers.cells import OURS, Panel
from bench.papers.models import EAGER, GRAPHWEAVE, PYG, Measurement, dgl_of
from bench.papers.session import Session
from bench.specs import Spec
from graphweave.sampling import ClusterSampler, DataLoader, NeighborSampler

_TURNS = 8
"""Batches of a measurement, after two that compile and warm up."""
_ROOM = 1e-3
"""Losses of both systems differ by this share at most."""


@dataclass(frozen=True, slots=True)
class Batches:
    """A graph of bench.papers.graphs with random features, a model, and the batches of an epoch: of `seeds` training
    nodes, `size` at a time, with `fanouts`; or of `size` of `clusters` clusters."""

    graph: str
    inputs: int
    classes: int
    kind: str
    hidden: int
    layers: int
    heads: int
    size: int
    seeds: int = 0
    fanouts: tuple[int, ...] = ()
    clusters: int = 0

    @property
    def per_epoch(self) -> int:
        return -(-(self.clusters or self.seeds) // self.size)


REDDIT, PRODUCTS = "reddit", "rmat:244903:12371844"

PRINTED: dict[tuple[str, str], tuple[float, float]] = {
    ("SAGE w/ NS", "reddit"): (19.90, 20.45),
    ("GAT w/ NS", "reddit"): (21.07, 21.89),
    ("SAGE w/ NS", "ogbn-product"): (33.34, 35.00),
    ("GAT w/ NS", "ogbn-product"): (67.0, 187.0),
    ("SAGE w/ CS", "ogbn-product"): (8.887, 8.614),
    ("GAT w/ CS", "ogbn-product"): (14.50, 58.36),
}
"""Model and dataset -> seconds of an epoch of DGL and PyG, on a GPU."""

RUNS = {
    ("SAGE w/ NS", "reddit"): Batches(REDDIT, 602, 41, "sage", 16, 2, 1, 1024, 15_343, (25, 10)),
    ("GAT w/ NS", "reddit"): Batches(REDDIT, 602, 41, "gat", 16, 2, 8, 1024, 15_343, (25, 10)),
    ("SAGE w/ NS", "ogbn-product"): Batches(PRODUCTS, 100, 47, "sage", 256, 3, 1, 1024, 19_662, (15, 10, 5)),
    ("GAT w/ NS", "ogbn-product"): Batches(PRODUCTS, 100, 47, "gat", 256, 3, 8, 128, 19_662, (10, 10, 10)),
    ("SAGE w/ CS", "ogbn-product"): Batches(PRODUCTS, 100, 47, "sage", 256, 3, 1, 32, clusters=1500),
    ("GAT w/ CS", "ogbn-product"): Batches(PRODUCTS, 100, 47, "gat", 256, 3, 8, 32, clusters=1500),
}
"""The models of the appendix D.2, with a tenth of the nodes, edges, training nodes and clusters."""

SMALL = {
    ("SAGE w/ NS", "small"): Batches("rmat:300:2000", 8, 5, "sage", 16, 2, 1, 40, 100, (5, 3)),
    ("GAT w/ CS", "small"): Batches("rmat:300:2000", 8, 5, "gat", 16, 2, 2, 3, clusters=12),
}

CHAINS = (100, 1_000, 10_000, 100_000, 1_000_000)


class BatchModel(nn.Module):
    """A layer for each hop, ReLU between them, and the loss of the first nodes of a batch."""

    def __init__(self, run: Batches) -> None:
        super().__init__()
        widths = [run.inputs, *[run.hidden] * (run.layers - 1), run.classes]
        made: dict[str, Callable[[int, int, bool], nn.Module]] = {
            "sage": lambda i, o, last: pyg.SAGEConv(i, o),
            "gat": lambda i, o, last: pyg.GATConv(i, o, 1) if last else pyg.GATConv(i, o // run.heads, run.heads),
        }
        ends = list(pairwise(widths))
        self.layers = nn.ModuleList(made[run.kind](i, o, n == len(ends) - 1) for n, (i, o) in enumerate(ends))

    def forward(self, x: Tensor, edge_index: Tensor, y: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x.relu() if number else x, edge_index)
        return F.cross_entropy(x[: y.size(0)], y)


def table_4(session: Session) -> list[Panel]:
    about = (
        "One epoch of training on batches: the median step times the number of batches. Graphs are R-MAT with a tenth "
        "of the nodes, edges, training nodes and clusters of reddit and ogbn-product; features and labels are random. "
        "Two layers on reddit, for which the paper names two fanouts. All batches are drawn by graphweave (DGL's "
        "samplers run in another environment: bench.sampling compares them). No optimiser. The paper had a GPU."
    )
    panel = session.panel("Table 4", "an epoch on sampled batches", "s", about, rows="model", columns="dataset")
    for (model, graph), (theirs, theirs_pyg) in PRINTED.items():
        panel.printed("DGL, GPU", model, {graph: theirs})
        panel.printed("PyG, GPU", model, {graph: theirs_pyg})
    for (model, graph), run in (SMALL if session.options.quick else RUNS).items():
        if session.wants(model, graph, panel):
            for system, answer in epoch(run, session.options.data_dir).items():
                panel.measured(system, model, graph, answer, run.per_epoch)
            session.measured(panel)
    return [panel]


def figure_3(session: Session) -> list[Panel]:
    about = (
        "Forward and backward of one GCN layer, 64 wide, on a chain of nodes. The paper drew the ratio of epoch times "
        "of PyG and DGL on a GPU: 0.83 on the smallest chain, 1 on large ones."
    )
    panel = session.panel("Figure 3", "small graphs: a chain of nodes", "ms", about, "lines", rows="model",
                          columns="nodes")  # fmt: skip
    for nodes in (100,) if session.options.quick else CHAINS:
        if session.wants("GCN", str(nodes), panel):
            spec = Spec("gcn", f"chain:{nodes}", 64, (64,))
            answers = Measurement(session.options, spec, "train").times([GRAPHWEAVE, EAGER, dgl_of(spec)])
            for system, answer in answers.items():
                panel.measured(system, "GCN", str(nodes), answer, 1e3)
            session.measured(panel)
    return [panel]


def epoch(run: Batches, folder: Path) -> dict[str, dict[str, Any]]:
    """System -> quartiles of the seconds of a step with its batch. RuntimeError if the losses differ."""
    index, nodes = edges_of(run.graph, folder)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(nodes, run.inputs, generator=generator)
    data = Data(x=x, edge_index=index, y=torch.randint(run.classes, (nodes,), generator=generator))
    torch.manual_seed(0)
    eager = BatchModel(run)
    ours = graphweave.compile(copy.deepcopy(eager))
    taken: dict[str, list[float]] = {PYG: [], OURS: []}
    batches = _drawn(run, data)
    for number in range(2 + _TURNS):
        start = time.perf_counter()
        batch = next(batches)
        drawn, losses = time.perf_counter() - start, []
        for name, model in ((PYG, eager), (OURS, ours)):
            model.zero_grad()
            start = time.perf_counter()
            loss = model(batch.x, batch.edge_index, batch.y[: getattr(batch, "batch_size", None)])
            loss.backward()
            if number > 1:
                taken[name].append(time.perf_counter() - start + drawn)
            losses.append(loss.item())
        if abs(losses[0] - losses[1]) > _ROOM * abs(losses[0]):
            raise RuntimeError(f"losses of {PYG} and {OURS} differ: {losses}. Compare the gradients of the layers.")
    found = {}
    for name, times in taken.items():
        q1, middle, q3 = quantiles(times, n=4)
        found[name] = {"status": "ok", "median": middle, "q1": q1, "q3": q3}
    return found


def _drawn(run: Batches, data: Data) -> Iterator[Data]:
    """Batches without end."""
    if not run.clusters:
        seeds = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(1))[: run.seeds]
        sampler = NeighborSampler(data, list(run.fanouts), seed=0)
        while True:
            yield from NodeLoader(data, sampler, input_nodes=seeds, batch_size=run.size, shuffle=True)
    kept = Path(tempfile.gettempdir()) / f"graphweave-clusters-{data.num_nodes}-{data.num_edges}-{run.clusters}.npz"
    clusters = ClusterSampler(data, run.clusters, path=kept)
    loader = DataLoader(data, torch.arange(run.clusters), clusters, batch_size=run.size, shuffle=True)
    while True:
        yield from loader
