"""Training an encoder and a decoder on the triples of a knowledge graph, to predict links."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphweave.cli.relational_models import LinkEncoder, RelationalEdges, decoder
from graphweave.cli.training import MRR, WAYS, History, TrainingJob
from graphweave.data import KnowledgeGraph, KnownTails, Ranking, filtered_ranks

_SCORES = 1 << 24
"""Scores that an evaluation holds at once."""

_CLIP = 1.0
"""Largest norm of a step's gradient: scores are products of three factors, and without it losses were seen to jump."""

_WARM_EDGES = 64


class LinkRunner:
    """One way of training on `data`: same seed, so the same weights, batches and negatives whichever way.

    Each step encodes the whole graph of training triples and their inverses, without some of the edges that the batch's
    own triples are (else the encoder would read answers off the graph), and predicts the tail of (head, relation) and
    of (tail, inverse relation) for the batch's triples: cross-entropy of the true one among all entities, or among the
    true one and `negatives` drawn anew. The encoder runs the given way; the scores are products of matrices, which run
    as they are.
    """

    measure = MRR

    def __init__(self, way: str, job: TrainingJob, data: KnowledgeGraph) -> None:
        self.way, self.options, self.data, self.history = way, job.links, data, History()
        self.epochs = job.epochs
        torch.manual_seed(job.seed)
        rels = 2 * data.num_rels
        encoder = LinkEncoder(job.model, data.num_nodes, job.hidden, job.heads, rels, job.dropout)
        self.decoder = decoder(job.links.decoder, rels, job.hidden)
        self.encoder = WAYS[way](encoder)
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
        """Of an epoch."""
        return math.ceil(len(self.data.train) / self.options.batch)

    def step(self) -> float:
        """One training step on the next batch; the loss."""
        ids = next(self.batches)
        return self._step(ids, self._without(ids))

    def epoch(self, tick: Callable[[float], None] = lambda share: None) -> None:
        """All training triples once; every `eval_every` epochs and after the last, the MRR of `valid`."""
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
        """Filtered ranks of the tails and of the heads of `triples` [T, 3], 2T in all (`data/ranking.py`)."""
        self.encoder.eval()
        queries = self.data.both_ways(triples)
        with torch.no_grad():
            nodes = self._encoded(self.edges)
            ranks = [self._ranks(nodes, part) for part in queries.split(max(_SCORES // len(nodes), 1))]
        return Ranking.of(torch.cat(ranks))

    def warm_up(self) -> None:
        """Two steps on few edges."""
        for count in (_WARM_EDGES, _WARM_EDGES // 2):
            self._step(torch.arange(min(count, len(self.data.train))), self.edges.first(count))

    def test(self) -> dict[str, float]:
        found = self.rank(self.data.test)
        return {
            "test MRR": found.mrr, "test Hits@1": found.hits1, "test Hits@3": found.hits3, "test Hits@10": found.hits10,
        }  # fmt: skip

    def _drawn(self) -> Iterator[Tensor]:
        """Numbers of training triples, batch by batch, shuffled anew for each epoch."""
        while True:
            yield from torch.randperm(len(self.data.train), generator=self.generator).split(self.options.batch)

    def _without(self, ids: Tensor) -> RelationalEdges:
        """The graph without edges of triples `ids`, each with its inverse, at the rate of `edge_dropout`."""
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
            # One that was drawn by chance is no negative.
            other = other.masked_fill(drawn == tail.unsqueeze(1), -math.inf)
            scores, tail = torch.cat([true.unsqueeze(1), other], 1), torch.zeros_like(tail)
        else:
            scores = self.decoder.tails(heads, rel, nodes)
        loss = F.cross_entropy(scores, tail)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, _CLIP)
        self.optimizer.step()
        return loss.item()

    def _encoded(self, edges: RelationalEdges) -> Tensor:
        out: Tensor = self.encoder(edges.graph, edges.etype, edges.ntype, edges.norm)
        return out

    def _ranks(self, nodes: Tensor, queries: Tensor) -> Tensor:
        head, rel, _ = queries.unbind(1)
        return filtered_ranks(self.decoder.tails(nodes[head], rel, nodes), queries, self.known)
