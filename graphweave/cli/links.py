"""Trains an encoder and a decoder on the triples of a knowledge graph, to predict links."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphweave.cli.relational_models import LinkEncoder, RelationalEdges, decoder
from graphweave.cli.training import MRR, History, Resumable, TrainingJob, wrap
from graphweave.data import KnowledgeGraph, KnownTails, Ranking, filtered_ranks

_MAX_SCORES = 1 << 24
"""Upper limit on the scores that an evaluation holds at once, unless there are more entities than this."""

_MAX_GRADIENT_NORM = 1.0
"""Gradients are clipped to this norm. Scores are products of three factors, and the loss jumps without clipping."""

_WARM_UP_EDGES = 64
"""Number of triples and of edges in the first step of a warm-up."""


class LinkRunner(Resumable):
    """One way of training on `data`. All ways have the same seed, and so the same weights, batches and negatives.

    Each step encodes the graph of all training triples and their inverses, except some of the edges of the batch's own
    triples (otherwise the encoder could read the answers from the graph). It then predicts the tails of (head,
    relation) and of (tail, inverse relation) for the batch's triples. The loss is the cross-entropy of the true entity
    among all, or among itself and `negatives` entities that each step draws. The encoder runs in the given way; the
    scores are products of matrices, which PyTorch runs in all ways.
    """

    measure = MRR

    def __init__(self, way: str, job: TrainingJob, data: KnowledgeGraph) -> None:
        self.way, self.options, self.data, self.history = way, job.links, data, History()
        self.epochs = job.epochs
        torch.manual_seed(job.seed)
        rels = 2 * data.num_rels
        encoder = LinkEncoder(job.model, data.num_nodes, job.hidden, job.heads, rels, job.dropout)
        self.decoder = decoder(job.links.decoder, rels, job.hidden)
        self.modules = (encoder, self.decoder)
        self.encoder = wrap(way, job)(encoder)
        self.parameters = [*encoder.parameters(), *self.decoder.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, lr=job.lr, weight_decay=job.weight_decay)
        src, etype, dst = data.both_ways(data.train).unbind(1)
        ntype = torch.zeros(data.num_nodes, dtype=torch.int64)
        self.edges = RelationalEdges.of(torch.stack([src, dst]), etype, ntype)
        self.known = KnownTails.of(data.everything(), rels)
        self.generator = torch.Generator().manual_seed(job.seed)
        self.batches = self._drawn()

    @property
    def steps(self) -> int:
        """Number of steps of an epoch."""
        return math.ceil(len(self.data.train) / self.options.batch)

    def step(self) -> float:
        """Run one training step on the next batch. Returns the loss."""
        ids = next(self.batches)
        return self._step(ids, self._without(ids))

    def epoch(self, tick: Callable[[float], None] = lambda share: None) -> None:
        """Train on each triple once. Measures the MRR of `valid` every `eval_every` epochs and after the last epoch."""
        loss = seconds = 0.0
        for number in range(self.steps):
            start = time.perf_counter()
            loss += self.step()
            seconds += time.perf_counter() - start
            tick((number + 1) / self.steps)
        self.history.seconds.append(seconds)
        self.history.loss.append(loss / self.steps)
        self.history.train.append(math.nan)
        done = len(self.history.loss)
        due = done % self.options.eval_every == 0 or done == self.epochs
        self.history.val.append(self.rank(self.data.valid).mrr if due else math.nan)

    def rank(self, triples: Tensor) -> Ranking:
        """Statistics of the 2T filtered ranks of the tails and heads of `triples` [T, 3] (`data/ranking.py`)."""
        self.encoder.eval()
        queries = self.data.both_ways(triples)
        with torch.no_grad():
            nodes = self._encoded(self.edges)
            ranks = [self._ranks(nodes, part) for part in queries.split(max(_MAX_SCORES // len(nodes), 1))]
        return Ranking.of(torch.cat(ranks))

    def warm_up(self) -> None:
        """Run two steps of different sizes on few triples and edges."""
        for count in (_WARM_UP_EDGES, _WARM_UP_EDGES // 2):
            self._step(torch.arange(min(count, len(self.data.train))), self.edges.first(count))

    def test(self) -> dict[str, float]:
        return _named(self.rank(self.data.test))

    def baseline(self) -> dict[str, float]:
        """Entities ranked by how often each is the tail of the relation in the training triples."""
        data = self.data
        _, rel, tail = data.both_ways(data.train).unbind(1)
        often = torch.zeros(2 * data.num_rels, data.num_nodes)
        often.index_put_((rel, tail), torch.ones(len(tail)), accumulate=True)
        parts = data.both_ways(data.test).split(max(_MAX_SCORES // data.num_nodes, 1))
        return _named(Ranking.of(torch.cat([filtered_ranks(often[part[:, 1]], part, self.known) for part in parts])))

    def _drawn(self) -> Iterator[Tensor]:
        """Endless batches of numbers of training triples. Each epoch is shuffled."""
        while True:
            yield from torch.randperm(len(self.data.train), generator=self.generator).split(self.options.batch)

    def _without(self, ids: Tensor) -> RelationalEdges:
        """The graph without some of the triples `ids` and their inverses; each is left out with probability
        `edge_dropout`."""
        rate = self.options.edge_dropout
        if rate == 0:
            return self.edges
        gone = ids[torch.rand(len(ids), generator=self.generator) < rate]
        keep = torch.ones_like(self.edges.etype, dtype=torch.bool)
        keep[gone] = False
        keep[gone + len(self.data.train)] = False
        return self.edges.only(keep)

    def _step(self, ids: Tensor, edges: RelationalEdges) -> float:
        self.encoder.train()
        self.optimizer.zero_grad()
        head, rel, tail = self.data.both_ways(self.data.train[ids]).unbind(1)
        nodes = self._encoded(edges)
        heads = nodes.index_select(0, head)
        if 0 < self.options.negatives < len(nodes):
            drawn = torch.randint(len(nodes), (self.options.negatives,), generator=self.generator)
            true = self.decoder(heads, rel, nodes.index_select(0, tail))
            other = self.decoder.tails(heads, rel, nodes.index_select(0, drawn))
            # The true entity may be drawn by chance. It is then not a negative.
            other = other.masked_fill(drawn == tail.unsqueeze(1), -math.inf)
            scores, tail = torch.cat([true.unsqueeze(1), other], 1), torch.zeros_like(tail)
        else:
            scores = self.decoder.tails(heads, rel, nodes)
        loss = F.cross_entropy(scores, tail)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, _MAX_GRADIENT_NORM)
        self.optimizer.step()
        return loss.item()

    def _encoded(self, edges: RelationalEdges) -> Tensor:
        out: Tensor = self.encoder(edges.graph, edges.etype, edges.ntype, edges.norm)
        return out

    def _ranks(self, nodes: Tensor, queries: Tensor) -> Tensor:
        head, rel, _ = queries.unbind(1)
        return filtered_ranks(self.decoder.tails(nodes[head], rel, nodes), queries, self.known)


def _named(found: Ranking) -> dict[str, float]:
    return {
        "test MRR": found.mrr, "test Hits@1": found.hits1, "test Hits@3": found.hits3, "test Hits@10": found.hits10,
    }  # fmt: skip
