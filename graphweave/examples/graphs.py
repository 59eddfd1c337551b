"""Trains a model that classifies whole graphs, or predicts numbers of them, in batches of graphs."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphweave.data import GraphBatch, GraphSet
from graphweave.distributed.ranks import ALONE, Ranks
from graphweave.examples.batched import TargetTraining
from graphweave.examples.convolutions import convolutions
from graphweave.examples.measures import ACCURACY, AUC, ERROR, class_scores, roc_auc
from graphweave.examples.training import Predictions, TrainingJob, wrap

BATCH = 128
"""Graphs of a step, unless the user says otherwise."""

_LAYERS = 3


class GraphModel(nn.Module):
    """`x` [N, F], `edge_index` [2, E], `graph` [N], number of graphs -> [graphs, targets].

    Three convolutions, each with ReLU and batch normalisation; the sum and the mean of the nodes of each graph; a
    perceptron with one hidden layer.
    """

    def __init__(self, job: TrainingJob, features: int, targets: int) -> None:
        super().__init__()
        conv, hidden = convolutions(job)[job.model], job.hidden
        widths = [features] + [hidden] * _LAYERS
        self.convs = nn.ModuleList(conv(i, o, job.heads) for i, o in itertools.pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(_LAYERS))
        self.first, self.last, self.dropout = nn.Linear(2 * hidden, hidden), nn.Linear(hidden, targets), job.dropout

    def forward(self, x: Tensor, edge_index: Tensor, graph: Tensor, num_graphs: int) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(F.relu(conv(x, edge_index)))
        total = x.new_zeros(num_graphs, x.size(1)).index_add(0, graph, x)
        size = x.new_zeros(num_graphs).index_add(0, graph, x.new_ones(x.size(0))).clamp(min=1)
        both = torch.cat([total, total / size.unsqueeze(1)], 1)
        return self.last(F.dropout(F.relu(self.first(both)), self.dropout, self.training))


class GraphTraining(TargetTraining[GraphBatch]):
    """Classes by cross-entropy and accuracy; targets of 0 and 1 by their own cross-entropies and the mean area under
    the ROC curve; other numbers, standardised by the training graphs, by L1 loss and mean absolute error. The baseline
    is the commonest class, 0.5, or the median of the training graphs."""

    def __init__(self, way: str, job: TrainingJob, data: GraphSet, ranks: Ranks = ALONE) -> None:
        super().__init__(way, job, data, job.batch or BATCH, ranks)
        self.data, self.y = data, data.y
        self.measure = ACCURACY if data.num_classes else AUC if data.is_binary else ERROR
        model = self.normalised(GraphModel(job, data.x.size(1), data.num_targets))
        self.model = wrap(way, job)(model)
        self.optimise(model)
        known = data.y[self.rows["train"]].float()
        self.middle, self.spread = torch.tensor(0.0), torch.tensor(1.0)
        if self.measure == ERROR:
            self.middle = known.nanmean(0)
            self.spread = (known - self.middle).square().nanmean(0).sqrt().clamp(min=1e-12)

    def make_batch(self, drawn: Tensor, own: slice, number: int) -> GraphBatch:
        return self.data.batch(drawn[own])

    def terms(self, drawn: Tensor) -> int:
        return drawn.numel() if self.measure == ACCURACY else int((~self.data.y[drawn].isnan()).sum())

    def loss(self, batch: GraphBatch) -> Tensor:
        out = self._predicted(batch)
        if self.measure == ACCURACY:
            return F.cross_entropy(out, batch.y, reduction="sum")
        known = ~batch.y.isnan()
        if self.measure == AUC:
            return F.binary_cross_entropy_with_logits(out[known], batch.y[known], reduction="sum")
        return F.l1_loss(out[known], ((batch.y - self.middle) / self.spread)[known], reduction="sum")

    def answers(self, rows: Tensor) -> Tensor:
        out = self._predicted(self.data.batch(rows))
        return out if self.measure != ERROR else out * self.spread + self.middle

    def guess(self) -> Tensor:
        train = self.y[self.rows["train"]]
        if self.measure == ACCURACY:
            return class_scores(train, self.data.num_classes)
        return train.nanmedian(0).values if self.measure == ERROR else torch.zeros(self.data.num_targets)

    def measured(self, out: Tensor, y: Tensor) -> dict[str, float]:
        if self.measure == ACCURACY:
            return {ACCURACY: float((out.argmax(1) == y).float().mean())}
        if self.measure == ERROR:
            return {ERROR: float((out - y).abs().nanmean())}
        columns = zip(out.unbind(1), y.unbind(1), strict=True)
        areas = [roc_auc(t[~t.isnan()] == 1, p[~t.isnan()]) for p, t in columns]
        return {AUC: float(torch.tensor(areas, dtype=torch.float64).nanmean())}

    def predicted(self, out: Tensor, y: Tensor) -> Predictions | None:
        """Predicted classes or numbers. There are none of targets of 0 and 1, which get scores."""
        if self.measure == AUC:
            return None
        if self.measure == ACCURACY:
            return Predictions.of_classes(out.argmax(1), y, self.data.num_classes)
        return Predictions.of_numbers(out.flatten(), y.flatten())

    def _predicted(self, batch: GraphBatch) -> Tensor:
        out: Tensor = self.model(batch.x, batch.edge_index, batch.graph, batch.y.size(0))
        return out
