"""DGL's table 4 and figure 3: training on batches of sampled neighbours and of clusters, and small graphs.

Batches are drawn by `graphweave.sampling` for all systems, since PyG's samplers need libraries that have no wheels on
the ordinary index. Eager PyG and graphweave take steps on the same batches, in turn; the time to draw a batch and to
gather its features counts for both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader

from bench.batches import WARM, LinkLoss, SeedLoss, step_by_step
from bench.named_graphs import edges_of, size_of
from bench.papers import price
from bench.papers.cells import OURS, Panel
from bench.papers.models import EAGER, GRAPHWEAVE, PYG, Measurement, dgl_of
from bench.papers.session import Session
from bench.relational_graphs import kept_path
from bench.sampling import batches_of, links_of
from bench.specs import Spec
from bench.turns import summary
from bench.workloads import Layers
from graphweave.sampling import ClusterSampler, DataLoader, NeighborSampler

_TURNS = 8
"""Batches of a measurement."""


@dataclass(frozen=True, slots=True)
class Batches:
    """A graph of bench.named_graphs with random features, a model, and the batches of an epoch: of `seeds` training
    nodes, `size` at a time, with `fanouts`; or of `size` of `clusters` clusters.

    The model classifies nodes, or it predicts `links`: for each edge there is one with another destination, too.
    """

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
    links: bool = False

    @property
    def edges(self) -> int:
        """An estimate of the edges of a batch: all that seeds may draw, or the edges of the nodes of its clusters."""
        if self.clusters:
            return int(self.graph.split(":")[2]) * self.size // self.clusters
        return self.size * sum(prod(self.fanouts[: hop + 1]) for hop in range(len(self.fanouts)))

    def seconds(self, folder: Path) -> float:
        """An estimate for an epoch's measurement: the graph and its clusters, two compilations, and all batches."""
        work = self.edges * self.hidden * self.layers * price.PER_FLOAT["train"]
        making = price.MAKING * size_of(self.graph, folder)[1] * (30 if self.clusters else 2)
        return 3 * price.START + making + (WARM + _TURNS) * work

    @property
    def per_epoch(self) -> int:
        return -(-(self.clusters or self.seeds) // self.size)


REDDIT, PRODUCTS = "reddit", "rmat:244903:12371844"
CITATION, PPA = "rmat:292796:3056119", "rmat:57629:3032627"

PRINTED: dict[tuple[str, str], tuple[float, float]] = {
    ("SAGE w/ NS", "reddit"): (19.90, 20.45),
    ("GAT w/ NS", "reddit"): (21.07, 21.89),
    ("SAGE w/ NS", "ogbn-product"): (33.34, 35.00),
    ("GAT w/ NS", "ogbn-product"): (67.0, 187.0),
    ("SAGE w/ CS", "ogbn-product"): (8.887, 8.614),
    ("GAT w/ CS", "ogbn-product"): (14.50, 58.36),
    ("GCN w/ CS", "ogbl-citation"): (5.772, 6.287),
    ("GAT w/ CS", "ogbl-citation"): (6.081, 8.290),
    ("GCN w/ CS", "ogbl-ppa"): (5.782, 6.421),
    ("GAT w/ CS", "ogbl-ppa"): (6.224, 8.198),
}
"""Model and dataset -> seconds of an epoch of DGL and PyG, on a GPU."""

RUNS = {
    ("SAGE w/ NS", "reddit"): Batches(REDDIT, 602, 41, "sage", 16, 2, 1, 1024, 15_343, (25, 10)),
    ("GAT w/ NS", "reddit"): Batches(REDDIT, 602, 41, "gat", 16, 2, 8, 1024, 15_343, (25, 10)),
    ("SAGE w/ NS", "ogbn-product"): Batches(PRODUCTS, 100, 47, "sage", 256, 3, 1, 1024, 19_662, (15, 10, 5)),
    ("GAT w/ NS", "ogbn-product"): Batches(PRODUCTS, 100, 47, "gat", 256, 3, 8, 128, 19_662, (10, 10, 10)),
    ("SAGE w/ CS", "ogbn-product"): Batches(PRODUCTS, 100, 47, "sage", 256, 3, 1, 32, clusters=1500),
    ("GAT w/ CS", "ogbn-product"): Batches(PRODUCTS, 100, 47, "gat", 256, 3, 8, 32, clusters=1500),
    ("GCN w/ CS", "ogbl-citation"): Batches(CITATION, 128, 256, "gcn", 256, 3, 1, 256, clusters=1500, links=True),
    ("GAT w/ CS", "ogbl-citation"): Batches(CITATION, 128, 256, "gat", 256, 3, 1, 256, clusters=1500, links=True),
    ("GCN w/ CS", "ogbl-ppa"): Batches(PPA, 58, 256, "gcn", 256, 3, 1, 256, clusters=1500, links=True),
    ("GAT w/ CS", "ogbl-ppa"): Batches(PPA, 58, 256, "gat", 256, 3, 1, 256, clusters=1500, links=True),
}
"""The models of the appendix D.2, with a tenth of the nodes, edges, training nodes and clusters. A predictor of links
has as many results as hidden features."""

SMALL = {
    ("SAGE w/ NS", "small"): Batches("rmat:300:2000", 8, 5, "sage", 16, 2, 1, 40, 100, (5, 3)),
    ("GAT w/ CS", "small"): Batches("rmat:300:2000", 8, 5, "gat", 16, 2, 2, 3, clusters=12),
    ("GCN w/ CS", "small links"): Batches("rmat:300:2000", 8, 16, "gcn", 16, 3, 1, 6, clusters=12, links=True),
}

CHAINS = (100, 1_000, 10_000, 100_000, 1_000_000)


def model_of(run: Batches) -> nn.Module:
    """A layer for each hop, and the loss of the first nodes of a batch, or of its links."""
    loss = LinkLoss if run.links else SeedLoss
    widths = [run.inputs, *[run.hidden] * (run.layers - 1), run.classes]
    *inner, last = pairwise(widths)
    if run.kind != "gat":
        conv = {"sage": pyg.SAGEConv, "gcn": pyg.GCNConv}[run.kind]
        return loss(Layers(*(conv(i, o) for i, o in (*inner, last))))
    heads = run.heads
    return loss(Layers(*(pyg.GATConv(i, o // heads, heads) for i, o in inner), pyg.GATConv(*last, 1)))


def table_4(session: Session) -> list[Panel]:
    about = (
        "One epoch of training on batches: the median step times the number of batches. Graphs are R-MAT with a tenth "
        "of the nodes, edges, training nodes and clusters of reddit and ogbn-product; features and labels are random. "
        "Two layers on reddit, for which the paper names two fanouts. Links (ogbl) are scored by the inner product of "
        "both ends; for each, one with another destination is drawn. All batches are drawn by graphweave (DGL's "
        "samplers run in another environment: bench.sampling compares them). No optimiser. The paper had a GPU."
    )
    panel = session.panel("Table 4", "an epoch on sampled batches", "s", about, rows="model", columns="dataset")
    for (model, graph), (theirs, theirs_pyg) in PRINTED.items():
        panel.printed("DGL, GPU", model, {graph: theirs})
        panel.printed("PyG, GPU", model, {graph: theirs_pyg})
    for (model, graph), run in (SMALL if session.options.quick else RUNS).items():
        if session.wants(model, graph, panel, seconds=run.seconds(session.options.data_dir)):
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
        spec = Spec("gcn", f"chain:{nodes}", 64, (64,))
        seconds = price.model(spec, "train", 3, session.options.data_dir)
        if session.wants("GCN", str(nodes), panel, seconds=seconds):
            answers = Measurement(session.options, spec, "train").times([GRAPHWEAVE, EAGER, dgl_of(spec)])
            for system, answer in answers.items():
                panel.measured(system, "GCN", str(nodes), answer, 1e3)
            session.measured(panel)
    return [panel]


def epoch(run: Batches, folder: Path) -> dict[str, dict[str, Any]]:
    """System -> quartiles of the seconds of a step with its batch, or why there are none."""
    index, nodes = edges_of(run.graph, folder)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(nodes, run.inputs, generator=generator)
    data = Data(x=x, edge_index=index, y=torch.randint(run.classes, (nodes,), generator=generator))
    torch.manual_seed(0)
    batches = links_of(_loader(run, data)) if run.links else batches_of(_loader(run, data))
    taken = step_by_step(model_of(run), batches, _TURNS)
    if "status" in taken:
        return {PYG: taken, OURS: taken}
    named = {PYG: taken["eager"], OURS: taken["graphweave"]}
    return {
        name: {"status": "ok", **summary([own + batch for own, batch in zip(times, taken["batch"], strict=True)])}
        for name, times in named.items()
    }


def _loader(run: Batches, data: Data) -> Iterable[Data]:
    if not run.clusters:
        seeds = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(1))[: run.seeds]
        sampler = NeighborSampler(data, list(run.fanouts), seed=0)
        return NodeLoader(data, sampler, input_nodes=seeds, batch_size=run.size, shuffle=True)
    kept = kept_path(f"clusters-{data.num_nodes}-{data.num_edges}-{run.clusters}.npz")
    clusters = ClusterSampler(data, run.clusters, path=kept)
    return DataLoader(data, torch.arange(run.clusters), clusters, batch_size=run.size, shuffle=True)
