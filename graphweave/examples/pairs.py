"""Trains an encoder and a decoder of pairs, to predict which nodes of a graph are joined."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphweave.core.errors import DataError
from graphweave.data import LinkData, NodeData
from graphweave.distributed.ranks import ALONE, Ranks
from graphweave.examples.batched import BatchTraining
from graphweave.examples.convolutions import build
from graphweave.examples.measures import AUC, PRECISION, average_precision, roc_auc
from graphweave.examples.training import TrainingJob, wrap

BATCH = 65_536
"""Edges of a step, unless the user says otherwise."""

PAIR_DECODERS = ("dot", "bilinear", "mlp")
_VAL, _TEST = 0.05, 0.1
"""Shares of the joined pairs that validate and test."""


class PairScores(nn.Module):
    """`nodes` [N, H], `src`, `dst` [P] -> [P]: <u, v> ("dot"), u^T W v ("bilinear"), or a perceptron of u * v and
    |u - v| ("mlp"). Compiled, no row of a pair is stored."""

    def __init__(self, name: str, hidden: int) -> None:
        super().__init__()
        self.name = name
        if name == "bilinear":
            self.turn = nn.Linear(hidden, hidden, bias=False)
        elif name == "mlp":
            self.product, self.difference = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
            self.last = nn.Linear(hidden, 1)

    def forward(self, nodes: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        if self.name == "mlp":
            u, v = nodes[src], nodes[dst]
            hidden = F.relu(self.product(u * v) + self.difference((u - v).abs()))
            return self.last(hidden).squeeze(1)
        other = self.turn(nodes) if self.name == "bilinear" else nodes
        return (nodes[src] * other[dst]).sum(1)


class PairModel(nn.Module):
    """Two convolutions, and the scores of pairs of their rows."""

    def __init__(self, encoder: nn.Module, decoder: PairScores) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, x: Tensor, edge_index: Tensor, src: Tensor, dst: Tensor, joined: Tensor) -> Tensor:
        """The loss: the sum of binary cross-entropies of the scores of pairs that are `joined` (1) or not (0)."""
        scores = self.decoder(self.encoder(x, edge_index), src, dst)
        return F.binary_cross_entropy_with_logits(scores, joined, reduction="sum")


class PairTraining(BatchTraining[tuple[Tensor, Tensor, Tensor]]):
    """Joined pairs {u, v} are split at random, unless the data have a split; training pairs, both ways, are the graph
    that all encodings see.

    Each step scores a batch of joined pairs, swapped at random, and `negatives` other pairs for each: (u, w), w
    uniform. These may be joined by chance. Measures: areas under the ROC and the precision-recall curves, against as
    many pairs that are not joined (fewer where hardly any are left), or against those of the data. The baseline counts
    common neighbours in the training graph.
    """

    measure = AUC

    def __init__(self, way: str, job: TrainingJob, data: NodeData | LinkData, ranks: Ranks = ALONE) -> None:
        super().__init__(way, job, ranks)
        self.data, self.size, self.negatives = data, job.batch or BATCH, job.links.negatives or 1
        self.pairs, self.edges = _split(data, job.seed)
        encoder = build(job, data.x.size(1), job.hidden)
        decoder = PairScores(job.links.decoder, job.hidden)
        self.run = wrap(way, job)(PairModel(encoder, decoder))
        self.encode, self.decode = wrap(way, job)(encoder), wrap(way, job)(decoder)
        self.optimise(encoder, decoder)

    @property
    def steps(self) -> int:
        return -(-self.pairs["train"].size(1) // self.size)

    def drawn(self) -> Iterator[Tensor]:
        """For each batch [2 + negatives, pairs]: both ends of joined pairs, and other nodes for the first end."""
        train = self.pairs["train"]
        for rows in self._shuffled(torch.arange(train.size(1)), self.size):
            src, dst = train[:, rows]
            swapped = torch.rand(rows.numel(), generator=self.generator) < 0.5
            src, dst = torch.where(swapped, dst, src), torch.where(swapped, src, dst)
            others = torch.randint(self.data.num_nodes, (self.negatives * rows.numel(),), generator=self.generator)
            yield torch.cat([torch.stack([src, dst]), others.view(self.negatives, -1)])

    def make_batch(self, drawn: Tensor, own: slice, number: int) -> tuple[Tensor, Tensor, Tensor]:
        src, ends = drawn[0, own], drawn[1:, own]
        joined = torch.zeros(ends.shape)
        joined[0] = 1
        return src.repeat(1 + self.negatives), ends.reshape(-1), joined.view(-1)

    def terms(self, drawn: Tensor) -> int:
        return drawn[1:].numel()

    def loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        out: Tensor = self.run(self.data.x, self.edges, *batch)
        return out

    def scores(self, part: str) -> dict[str, float]:
        nodes = self.encode(self.data.x, self.edges)
        return _measured(*(self._scored(nodes, self.pairs[kind]) for kind in (part, f"not {part}")))

    def _scored(self, nodes: Tensor, pairs: Tensor) -> Tensor:
        """The scores of `pairs` [2, n], of which each rank computes its share."""
        own: Tensor = self.decode(nodes, *pairs[:, self.ranks.share(pairs.size(1))])
        return self.ranks.gathered(own)

    def baseline(self) -> dict[str, float]:
        # Imported here, since SciPy takes long to load.
        from scipy.sparse import coo_array

        count = self.data.num_nodes
        src, dst = self.edges.numpy()
        joined = coo_array((np.ones(len(src), dtype=np.float32), (src, dst)), shape=(count, count)).tocsr()
        found = []
        for part in ("test", "not test"):
            u, v = self.pairs[part].numpy()
            found.append(torch.from_numpy(np.asarray(joined[u].multiply(joined[v]).sum(1)).reshape(-1)))
        return {f"test {name}": value for name, value in _measured(*found).items()}


def _split(data: NodeData | LinkData, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """Pairs [2, n] by part, "not val" and "not test" those that are not joined; and the training graph, both ways."""
    if isinstance(data, LinkData):
        return {**data.joined, **{f"not {part}": pairs for part, pairs in data.others.items()}}, data.edge_index
    count = data.num_nodes
    low, high = data.edge_index.amin(0), data.edge_index.amax(0)
    keys = (low * count + high)[low != high].unique()
    held = round(_VAL * keys.numel()), round(_TEST * keys.numel())
    if min(held) < 1:
        raise DataError(
            f"{data.name}: expected 20 joined pairs at least, to split them (got {keys.numel()}). Give a larger graph."
        )
    generator = torch.Generator().manual_seed(seed)
    mixed = keys[torch.randperm(keys.numel(), generator=generator)]
    found = dict(zip(("val", "test", "train"), mixed.split([*held, keys.numel() - sum(held)]), strict=True))
    for part in ("val", "test"):
        drawn = torch.randint(count, (2, 4 * found[part].numel() + 64), generator=generator)
        other = drawn.amin(0) * count + drawn.amax(0)
        free = other[(drawn[0] != drawn[1]) & ~torch.isin(other, keys)]
        found[f"not {part}"] = free[: found[part].numel()]
    pairs = {part: torch.stack([k // count, k % count]) for part, k in found.items()}
    return pairs, torch.cat([pairs["train"], pairs["train"].flip(0)], 1)


def _measured(joined: Tensor, other: Tensor) -> dict[str, float]:
    if not joined.numel() or not other.numel():
        return {AUC: float("nan"), PRECISION: float("nan")}
    scores = torch.cat([joined, other])
    truth = torch.arange(scores.numel()) < joined.numel()
    return {AUC: roc_auc(truth, scores), PRECISION: average_precision(truth, scores)}
