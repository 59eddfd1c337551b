"""Trains a relational model to predict a column of a table by the rows around it that were known at the time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphweave.core.errors import DataError
from graphweave.data.tables.graph import ALWAYS, NEVER, TableGraph, Target
from graphweave.examples.batched import RankStep, TargetTraining
from graphweave.examples.measures import ACCURACY, AUC, ERROR, class_scores, roc_auc
from graphweave.examples.relational_models import Encoder, RelationalEdges
from graphweave.examples.training import Predictions, TrainingJob, wrap
from graphweave.graph.graph import Graph
from graphweave.sampling.adjacency import adjacency
from graphweave.sampling.hops import NeighborBatch, hop_sampler
from graphweave.sampling.prefetch import Prefetcher

BATCH = 256
"""Rows of a step, unless the user says otherwise."""
FANOUT = (8, 8)
"""Neighbours that each hop draws by each relation, unless the user says otherwise."""
SQUARED, EXPLAINED = "root mean squared error", "R2"


class TableBatch(NamedTuple):
    """The data on which rows with the targets `y` [B] depend. Nodes are grouped by table, the rows themselves first.
    `features`: for each table [n, F]; `edge_features`: for each relation with features [e, F], whose edges end at the
    nodes `edge_dst` and weigh `edge_norm`, all relations one after the other."""

    features: list[Tensor]
    graph: Graph
    etype: Tensor
    ntype: Tensor
    norm: Tensor
    edge_features: list[Tensor]
    edge_dst: Tensor
    edge_norm: Tensor
    y: Tensor


class TableModel(nn.Module):
    """A batch -> [B, out]: what is to be said of its rows.

    The input of a node is a linear map of the features of its row, one for each table, and the mean over its edges of a
    linear map of theirs, one for each relation that has features. A layer norm and the two layers of the model follow.
    """

    def __init__(self, job: TrainingJob, widths: Sequence[int], edge_widths: Sequence[int], relations: int, out: int):
        super().__init__()
        self.inputs = nn.ModuleList(nn.Linear(width, job.hidden) for width in widths)
        self.edge_inputs = nn.ModuleList(nn.Linear(width, job.hidden) for width in edge_widths)
        self.encoder = Encoder(job, job.hidden, relations, len(widths))
        self.last = nn.Linear(2 * job.hidden, out)

    def forward(
        self, features: list[Tensor], g: Graph, etype: Tensor, ntype: Tensor, norm: Tensor,
        edge_features: list[Tensor], edge_dst: Tensor, edge_norm: Tensor, y: Tensor,
    ) -> Tensor:  # fmt: skip
        x = torch.cat([read(part) for read, part in zip(self.inputs, features, strict=True)])
        if edge_features:
            said = torch.cat([read(part) for read, part in zip(self.edge_inputs, edge_features, strict=True)])
            x = x.index_add(0, edge_dst, said * edge_norm.unsqueeze(1))
        x = F.layer_norm(x, (x.size(1),))
        x = torch.cat([x, F.relu(self.encoder(x, g, etype, ntype, norm))], 1)
        out: Tensor = self.last(x[: y.size(0)])
        return out


class TableTraining(TargetTraining[TableBatch]):
    """Each step draws, around some training rows, rows that were known at the time of each of these, and trains on
    them. Results are measured by such batches, too.

    Two classes by cross-entropy and the area under the ROC curve, more by accuracy; numbers, standardised by the
    training rows, by L1 loss and mean absolute error. The baseline is the commonest class, 0.5, or the median.
    """

    def __init__(self, way: str, job: TrainingJob, data: TableGraph, target: Target) -> None:
        super().__init__(way, job, target, job.batch or BATCH)
        fanout = job.fanout_of(FANOUT)
        self.data, self.target, self.y = data, target, target.y
        self.measure = ERROR if not target.classes else AUC if len(target.classes) == 2 else ACCURACY
        self.sampled = TableSampler(data, target, fanout, job.seed)
        known = target.y[self.rows["train"]]
        self.middle, self.spread = torch.tensor(0.0), torch.tensor(1.0)
        if self.measure == ERROR:
            self.middle, self.spread = known.mean(), known.std(correction=0).clamp(min=1e-12)
        widths, edge_widths = self.sampled.widths
        model = TableModel(job, widths, edge_widths, max(len(data.edges), 1), max(len(target.classes), 1))
        self.model = wrap(way, job)(model)
        self.optimise(model)

    def batches(self, skip: int = 0) -> Iterator[RankStep[TableBatch]]:
        return iter(Prefetcher(super().batches(skip), depth=1))

    def make_batch(self, drawn: Tensor, own: slice, number: int) -> TableBatch:
        return self.sampled.batch(drawn[own], len(self.history.loss))

    def loss(self, batch: TableBatch) -> Tensor:
        out: Tensor = self.model(*batch)
        if self.measure == ERROR:
            return F.l1_loss(out.squeeze(1), (batch.y - self.middle) / self.spread, reduction="sum")
        return F.cross_entropy(out, batch.y, reduction="sum")

    def answers(self, rows: Tensor) -> Tensor:
        out: Tensor = self.model(*self.sampled.batch(rows))
        return out if self.measure != ERROR else out * self.spread + self.middle

    def guess(self) -> Tensor:
        train = self.y[self.rows["train"]]
        return train.median().view(1) if self.measure == ERROR else class_scores(train, len(self.target.classes))

    def measured(self, out: Tensor, y: Tensor) -> dict[str, float]:
        if self.measure == ERROR:
            off = out.flatten() - y
            left = off.square().sum() / (y - y.mean()).square().sum()
            squared = off.square().mean().sqrt()
            return {ERROR: float(off.abs().mean()), SQUARED: float(squared), EXPLAINED: float(1 - left)}
        right = {ACCURACY: float((out.argmax(1) == y).float().mean())}
        return {AUC: roc_auc(y == 1, out[:, 1] - out[:, 0]), **right} if self.measure == AUC else right

    def predicted(self, out: Tensor, y: Tensor) -> Predictions:
        if self.measure == ERROR:
            return Predictions.of_numbers(out.flatten(), y)
        return Predictions.of_classes(out.argmax(1), y, self.target.classes)


class TableSampler:
    """Makes batches of a target's rows, in which no row is later than the row that it serves. Rows of a target without
    times see all rows."""

    def __init__(self, data: TableGraph, target: Target, fanout: Sequence[int], seed: int) -> None:
        self.data, self.target = data, target
        self.tables = [target.table, *(name for name in data.features if name != target.table)]
        counts = {name: x.size(0) for name, x in data.features.items()}
        relations = {
            one: adjacency(
                ends[0], ends[1], counts[one[0]], counts[one[2]], what=str(one),
                edge_times=data.edge_times.get(one), node_times=data.times.get(one[0]),
            )
            for one, ends in data.edges.items()
        }  # fmt: skip
        self.sampler = hop_sampler(relations, counts, dict.fromkeys(relations, tuple(fanout)), seed)
        times = torch.cat([torch.empty(0, dtype=torch.int64), *data.times.values()])
        seen = times[(times != ALWAYS) & (times != NEVER)]
        self._unit = max(float(seen.max() - seen.min()), 1.0) / 1000 if seen.numel() else 1.0

    @property
    def widths(self) -> tuple[list[int], list[int]]:
        """Features of the nodes of each table in a batch, and of the edges of each relation that has some."""
        data = self.data
        nodes = [data.features[name].size(1) + 2 * (name in data.times) for name in self.tables]
        return nodes, [data.edge_features[one].size(1) for one in data.edges if one in data.edge_features]

    def batch(self, rows: Tensor, epoch: int = 0) -> TableBatch:
        """The batch of some rows of the target's table, a function of these and of the epoch."""
        table = self.target.table
        own = self.data.times.get(table)
        limits = torch.full_like(rows, NEVER - 1) if own is None else own[rows]
        found = self.sampler.sample({table: rows}, {table: limits}, epoch)
        features = [self._features(name, found, limits) for name in self.tables]
        counts = [x.size(0) for x in features]
        begins = dict(zip(self.tables, np.cumsum([0, *counts]).tolist(), strict=False))
        ends = {one: [torch.cat([hop[i] for hop in hops]) for i in range(3)] for one, hops in found.edges.items()}
        edge_index = torch.cat(
            [torch.stack([src + begins[one[0]], dst + begins[one[2]]]) for one, (src, dst, _) in ends.items()]
            or [rows.new_zeros(2, 0)], 1,
        )  # fmt: skip
        etype, ntype = _numbered([dst.numel() for _, dst, _ in ends.values()]), _numbered(counts)
        edges = RelationalEdges.of(edge_index, etype, ntype)
        with_features = [number for number, one in enumerate(ends) if one in self.data.edge_features]
        carry = torch.isin(etype, torch.tensor(with_features, dtype=torch.int64))
        edge_features = [
            self.data.edge_features[one][edge] for one, (_, _, edge) in ends.items() if one in self.data.edge_features
        ]
        return TableBatch(
            features, edges.graph, etype, ntype, edges.norm, edge_features, edge_index[1][carry], edges.norm[carry],
            self.target.y[rows],
        )  # fmt: skip

    def _features(self, name: str, found: NeighborBatch, limits: Tensor) -> Tensor:
        """Features of the rows of a table in the batch. Where rows have times, their age at the time of the row that
        they serve is two more: it as a share of all time, and its logarithm."""
        nodes = torch.cat(found.nodes[name])
        x = self.data.features[name][nodes]
        if name not in self.data.times:
            return x
        times = self.data.times[name][nodes]
        if found.trees is None or self.target.table not in self.data.times:
            age = torch.zeros(nodes.numel())
        else:
            age = (limits[torch.cat(found.trees[name])].double() - times.double()).float() / self._unit
            age = age.masked_fill(times == ALWAYS, 0)
        return torch.cat([x, (age / 1000).unsqueeze(1), (age.log1p() / 4).unsqueeze(1)], 1)


def _numbered(counts: Sequence[int]) -> Tensor:
    """counts[0] times 0, counts[1] times 1, and so on."""
    return torch.arange(len(counts)).repeat_interleave(torch.tensor(counts, dtype=torch.int64))


def check_target(data: TableGraph) -> Target:
    """The target of the graph. DataError if no row is in the training or the test part."""
    target = data.target
    assert target is not None
    for part, mask in (("training", target.train_mask), ("test", target.test_mask)):
        if not bool(mask.any()):
            raise DataError(
                f"{target.table}.{target.column}: no row is in the {part} part. Give other shares or times."
            )
    return target


def described_parts(target: Target) -> str:
    """How many rows each part has."""
    masks: Mapping[str, Tensor] = {"train": target.train_mask, "val": target.val_mask, "test": target.test_mask}
    return "/".join(str(int(mask.sum())) for mask in masks.values())
