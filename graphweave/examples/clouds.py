"""Trains DGCNN to classify point clouds: each layer joins each point to the nearest ones by the rows it has there."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphweave.data import PointSet
from graphweave.distributed.ranks import ALONE, Ranks
from graphweave.examples.batched import TargetTraining
from graphweave.examples.convolutions import convolutions
from graphweave.examples.measures import ACCURACY, class_scores
from graphweave.examples.training import Predictions, TrainingJob, Wrap, wrap
from graphweave.points import knn_graph

BATCH = 16
"""Clouds of a step, unless the user says otherwise."""

_NEIGHBOURS = 20
_LAYERS = 3


def nearest(x: Tensor, clouds: int, k: int) -> Tensor:
    """`edge_index` [2, E] of the edges from the k nearest other points of its cloud to each point, by the rows of `x`
    [clouds * P, F]; all others if there are fewer."""
    cloud = torch.arange(clouds).repeat_interleave(x.size(0) // max(clouds, 1))
    return knn_graph(x.detach(), k, cloud)


class DGCNN(nn.Module):
    """`points` [C, P, 3] -> logits [C, classes] (Wang et al., "Dynamic Graph CNN for Learning on Point Clouds", 2019,
    section 3): three edge convolutions with maximum, the second and third on the graph of the nearest rows of the layer
    before; a dense layer on their results side by side; the maximum and mean of each cloud; a perceptron.

    `wrap` prepares each convolution and the head. Neighbours are found between them.
    """

    def __init__(self, job: TrainingJob, classes: int, wrap: Wrap) -> None:
        super().__init__()
        conv, hidden = convolutions(job)["edgeconv"], job.hidden
        self.convs = nn.ModuleList(conv(3 if i == 0 else hidden, hidden, 1) for i in range(_LAYERS))
        self.head = CloudHead(_LAYERS * hidden, hidden, classes, job.dropout)
        self.runs = [wrap(one) for one in (*self.convs, self.head)]

    def forward(self, points: Tensor) -> Tensor:
        clouds, x, layers = points.size(0), points.reshape(-1, 3), []
        for run in self.runs[:-1]:
            x = F.relu(run(x, nearest(x, clouds, _NEIGHBOURS)))
            layers.append(x)
        out: Tensor = self.runs[-1](torch.cat(layers, 1).view(clouds, points.size(1), -1))
        return out


class CloudHead(nn.Module):
    """[C, P, F] -> [C, classes]."""

    def __init__(self, features: int, hidden: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.each, self.first = nn.Linear(features, 4 * hidden), nn.Linear(8 * hidden, 2 * hidden)
        self.last, self.dropout = nn.Linear(2 * hidden, classes), dropout

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.each(x), 0.2)
        both = torch.cat([x.amax(1), x.mean(1)], 1)
        return self.last(F.dropout(F.relu(self.first(both)), self.dropout, self.training))


class CloudTraining(TargetTraining[tuple[Tensor, Tensor]]):
    """Cross-entropy and accuracy; the baseline is the commonest class of the training clouds."""

    measure = ACCURACY

    def __init__(self, way: str, job: TrainingJob, data: PointSet, ranks: Ranks = ALONE) -> None:
        super().__init__(way, job, data, job.batch or BATCH, ranks)
        self.data, self.y = data, data.y
        self.model = DGCNN(job, data.num_classes, wrap(way, job))
        self.optimise(self.model)

    def make_batch(self, drawn: Tensor, own: slice, number: int) -> tuple[Tensor, Tensor]:
        return self.data.points[drawn[own]], self.data.y[drawn[own]]

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(self.model(batch[0]), batch[1], reduction="sum")

    def answers(self, rows: Tensor) -> Tensor:
        out: Tensor = self.model(self.data.points[rows])
        return out

    def guess(self) -> Tensor:
        return class_scores(self.y[self.rows["train"]], self.data.num_classes)

    def measured(self, out: Tensor, y: Tensor) -> dict[str, float]:
        return {ACCURACY: float((out.argmax(1) == y).float().mean())}

    def predicted(self, out: Tensor, y: Tensor) -> Predictions:
        return Predictions.of_classes(out.argmax(1), y, self.data.num_classes)
