"""Trains an encoder and a decoder on the triples of a knowledge graph, to predict links."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphweave.data import KnowledgeGraph, KnownTails, Ranking, filtered_ranks
from graphweave.distributed.ranks import ALONE, Ranks
from graphweave.examples.batched import BatchTraining, RankStep
from graphweave.examples.measures import MRR
from graphweave.examples.relational_models import LinkEncoder, RelationalEdges, decoder
from graphweave.examples.training import TrainingJob, wrap

_MAX_SCORES = 1 << 24
"""Upper limit on the scores that an evaluation holds at once, unless there are more entities than this."""

_MAX_GRADIENT_NORM = 1.0
"""Gradients are clipped to this norm. Scores are products of three factors, and the loss jumps without clipping."""

_WARM_UP_EDGES = 64
"""Number of triples and of edges in the first step of a warm-up."""


class LinkBatch(NamedTuple):
    """A share of a batch: numbers of its triples, the graph without some edges of the whole batch, and the entities
    that all of the batch's triples have as wrong tails; None where these are all entities."""

    triples: Tensor
    edges: RelationalEdges
    others: Tensor | None


class TripleTraining(BatchTraining[LinkBatch]):
    """One way of training on `data`. All ways have the same seed, and so the same weights, batches and negatives.

    Each step encodes the graph of all training triples and their inverses, except some of the edges of the batch's own
    triples (otherwise the encoder could read the answers from the graph). It then predicts the tails of (head,
    relation) and of (tail, inverse relation) for the batch's triples. The loss is the cross-entropy of the true entity
    among all, or among itself and `negatives` entities that each step draws. The encoder runs in the given way; the
    scores are products of matrices, which PyTorch runs in all ways.
    """

    measure = MRR

    def __init__(self, way: str, job: TrainingJob, data: KnowledgeGraph, ranks: Ranks = ALONE) -> None:
        super().__init__(way, job, ranks)
        self.options, self.data, self.size = job.links, data, job.links.batch
        rels = 2 * data.num_rels
        encoder = LinkEncoder(job, data.num_nodes, rels)
        self.decoder = decoder(job.links.decoder, rels, job.hidden)
        self.encoder = wrap(way, job)(encoder)
        self.optimise(encoder, self.decoder)
        src, etype, dst = data.both_ways(data.train).unbind(1)
        ntype = torch.zeros(data.num_nodes, dtype=torch.int64)
        self.edges = RelationalEdges.of(torch.stack([src, dst]), etype, ntype)
        self.known = KnownTails.of(data.everything(), rels)

    @property
    def steps(self) -> int:
        return math.ceil(len(self.data.train) / self.size)

    def drawn(self) -> Iterator[tuple[Tensor, Tensor | None, Tensor | None]]:
        """For each batch the numbers of its triples, those whose edges are left out, and the wrong tails."""
        for ids in self._shuffled(torch.arange(len(self.data.train)), self.size):
            gone = self._left_out(ids)
            others = None
            if 0 < self.options.negatives < self.data.num_nodes:
                others = torch.randint(self.data.num_nodes, (self.options.negatives,), generator=self.generator)
            yield ids, gone, others

    def count(self, drawn: tuple[Tensor, ...]) -> int:
        return drawn[0].numel()

    def terms(self, drawn: tuple[Tensor, ...]) -> int:
        return 2 * drawn[0].numel()

    def make_batch(self, drawn: tuple[Tensor, Tensor | None, Tensor | None], own: slice, number: int) -> LinkBatch:
        ids, gone, others = drawn
        return LinkBatch(ids[own], self._without(gone), others)

    def loss(self, batch: LinkBatch) -> Tensor:
        head, rel, tail = self.data.both_ways(self.data.train[batch.triples]).unbind(1)
        nodes = self._encoded(batch.edges)
        heads = nodes.index_select(0, head)
        if batch.others is None:
            scores = self.decoder.tails(heads, rel, nodes)
        else:
            true = self.decoder(heads, rel, nodes.index_select(0, tail))
            other = self.decoder.tails(heads, rel, nodes.index_select(0, batch.others))
            # The true entity may be drawn by chance. It is then not a negative.
            other = other.masked_fill(batch.others == tail.unsqueeze(1), -math.inf)
            scores, tail = torch.cat([true.unsqueeze(1), other], 1), torch.zeros_like(tail)
        return F.cross_entropy(scores, tail, reduction="sum")

    def before_update(self) -> None:
        nn.utils.clip_grad_norm_([p for module in self.modules for p in module.parameters()], _MAX_GRADIENT_NORM)

    def validates(self) -> bool:
        """Whether a multiple of `eval_every` epochs, or all, are done."""
        done = len(self.history.loss)
        return done % self.options.eval_every == 0 or done == self.job.epochs

    def scores(self, part: str) -> dict[str, float]:
        return _named(self.rank(self.data.valid if part == "val" else self.data.test))

    def rank(self, triples: Tensor) -> Ranking:
        """Statistics of the 2T filtered ranks of the tails and heads of `triples` [T, 3] (`data/ranking.py`)."""
        for module in self.modules:
            module.eval()
        with torch.no_grad():
            nodes = self._encoded(self.edges)
            return self._ranking(triples, lambda queries: self._ranks(nodes, queries))

    def warm_up(self) -> None:
        """Run two steps of different sizes on few triples and edges."""
        for count in (_WARM_UP_EDGES, _WARM_UP_EDGES // 2):
            ids = torch.arange(min(count, len(self.data.train)))
            self._step(RankStep(LinkBatch(ids, self.edges.first(count), None), 2 * ids.numel(), True))

    def baseline(self) -> dict[str, float]:
        """Entities ranked by how often each is the tail of the relation in the training triples."""
        data = self.data
        _, rel, tail = data.both_ways(data.train).unbind(1)
        often = torch.zeros(2 * data.num_rels, data.num_nodes)
        often.index_put_((rel, tail), torch.ones(len(tail)), accumulate=True)
        found = _named(self._ranking(data.test, lambda part: filtered_ranks(often[part[:, 1]], part, self.known)))
        return {f"test {name}": value for name, value in found.items()}

    def _ranking(self, triples: Tensor, ranks_of: Callable[[Tensor], Tensor]) -> Ranking:
        """Of `ranks_of` queries [n, 3], for the tails and heads of `triples`. Each rank of the job takes its share."""
        at_once = max(_MAX_SCORES // self.data.num_nodes, 1)
        return Ranking.of(self._over_rows(self.data.both_ways(triples), at_once, ranks_of))

    def _left_out(self, ids: Tensor) -> Tensor | None:
        """Some of the triples `ids`, each with probability `edge_dropout`."""
        if self.options.edge_dropout == 0:
            return None
        return ids[torch.rand(len(ids), generator=self.generator) < self.options.edge_dropout]

    def _without(self, gone: Tensor | None) -> RelationalEdges:
        """The graph without the triples `gone` and their inverses."""
        if gone is None:
            return self.edges
        keep = torch.ones_like(self.edges.etype, dtype=torch.bool)
        keep[gone] = False
        keep[gone + len(self.data.train)] = False
        return self.edges.only(keep)

    def _encoded(self, edges: RelationalEdges) -> Tensor:
        out: Tensor = self.encoder(edges.graph, edges.etype, edges.ntype, edges.norm)
        return out

    def _ranks(self, nodes: Tensor, queries: Tensor) -> Tensor:
        head, rel, _ = queries.unbind(1)
        return filtered_ranks(self.decoder.tails(nodes[head], rel, nodes), queries, self.known)


def _named(found: Ranking) -> dict[str, float]:
    return {
        MRR: found.mrr, "Hits@1": found.hits1, "Hits@3": found.hits3, "Hits@10": found.hits10,
    }  # fmt: skip
