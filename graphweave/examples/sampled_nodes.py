"""Trains a PyG model to classify nodes by sampled neighbours of a few of them at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphweave.data import NodeData
from graphweave.distributed.parts import EDGES, NODES
from graphweave.distributed.ranks import ALONE, Ranks
from graphweave.examples.batched import RankStep, RowTraining
from graphweave.examples.convolutions import NORMED, TwoLayer, build
from graphweave.examples.drawn_norms import graph_norms
from graphweave.examples.measures import ACCURACY, accuracy, commonest
from graphweave.examples.training import Predictions, TrainingJob, wrap
from graphweave.sampling.adjacency import adjacency
from graphweave.sampling.hops import hop_sampler
from graphweave.sampling.prefetch import Prefetcher

BATCH = 512
"""Seeds of a step, unless the user says otherwise."""
FANOUT = (10, 10)
"""Neighbours that each layer draws, unless the user says otherwise."""


class SeedBatch(NamedTuple):
    """The data on which seeds with the classes `y` [B] depend: features `x` [N, F] of nodes, seeds first, and the edges
    [2, E] along which the first and the last layer take sums, with their weights [E] if the model takes such."""

    x: Tensor
    first: Tensor
    last: Tensor
    y: Tensor
    first_weight: Tensor | None = None
    last_weight: Tensor | None = None


class SeedLoss(nn.Module):
    """The sum of the cross-entropies of seeds. Compiled with the model, rows of other nodes are not computed where
    nobody reads them."""

    def __init__(self, model: TwoLayer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, x: Tensor, first: Tensor, last: Tensor, y: Tensor, first_weight: Tensor | None = None,
        last_weight: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        out = self.model(x, first, last, first_weight, last_weight)
        return F.cross_entropy(out[: y.size(0)], y, reduction="sum")


class SampledTraining(RowTraining[SeedBatch]):
    """Each step draws neighbours of `batch` training nodes and trains on these nodes (Hamilton, Ying and Leskovec,
    "Inductive Representation Learning on Large Graphs", 2017, algorithm 2). A thread samples one batch ahead. Results
    are measured on the whole graph. The baseline is the commonest class of the training nodes.

    For each layer and batch a node draws its own neighbours, whichever seed needs it. So each rank draws for its seeds
    what one process would draw. Norms of "gcn" are those of the whole graph (`drawn_norms.py`).
    """

    measure = ACCURACY

    def __init__(self, way: str, job: TrainingJob, data: NodeData, ranks: Ranks = ALONE) -> None:
        super().__init__(way, job, data, job.batch or BATCH, ranks)
        fanout = job.fanout_of(FANOUT)
        self.data = data
        src, dst = data.edge_index
        edges = adjacency(src, dst, data.num_nodes, data.num_nodes, what=data.name)
        self.sampler = hop_sampler(
            {EDGES: edges}, {NODES: data.num_nodes}, {EDGES: fanout}, job.seed, repeat=True, by_node=True
        )
        normed = job.model in NORMED
        self.norms = graph_norms(data.edge_index, data.num_nodes, data.x.dtype) if normed else None
        model = build(job, data.x.size(1), data.num_classes, given_norms=normed)
        self.model, self.run = wrap(way, job)(model), wrap(way, job)(SeedLoss(model))
        self.optimise(model)

    def batches(self, skip: int = 0) -> Iterator[RankStep[SeedBatch]]:
        return iter(Prefetcher(super().batches(skip), depth=1))

    def make_batch(self, drawn: Tensor, own: slice, number: int) -> SeedBatch:
        seeds, epoch = drawn[own], len(self.history.loss)
        batch = self.sampler.sample({NODES: seeds}, None, epoch, batch_number=number)
        last, first = batch.edges[EDGES]
        nodes = torch.cat(batch.nodes[NODES])
        x, y = self.data.x.index_select(0, nodes), self.data.y[seeds]
        if self.norms is None:
            return SeedBatch(x, torch.stack([first.src, first.dst]), torch.stack([last.src, last.dst]), y)
        (first_edges, first_weight), (last_edges, last_weight) = (self.norms.drawn(h, nodes) for h in (first, last))
        return SeedBatch(x, first_edges, last_edges, y, first_weight, last_weight)

    def loss(self, batch: SeedBatch) -> Tensor:
        out: Tensor = self.run(*batch)
        return out

    def scores(self, part: str) -> dict[str, float]:
        return {ACCURACY: accuracy(self._predicted(), self.data.y, getattr(self.data, f"{part}_mask"))}

    def _test_predictions(self) -> Predictions:
        mask = self.data.test_mask
        return Predictions.of_classes(self._predicted()[mask], self.data.y[mask], self.data.num_classes)

    def _predicted(self) -> Tensor:
        norms = self.norms
        whole = (self.data.edge_index,) if norms is None else (norms.edge_index, None, norms.weight)
        return self.model(self.data.x, *whole).argmax(dim=1)

    def baseline(self) -> dict[str, float]:
        return commonest(self.data.y, self.data.train_mask, self.data.test_mask)
