"""Filtered ranks of true tails among all entities, and the statistics that are reported about them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphweave.core.errors import DataError


@dataclass(frozen=True, slots=True, eq=False)
class KnownTails:
    """The tails that are true for each pair (head, relation), which ranks leave out.

    `keys` [K] int64 are the pairs as head * num_rels + relation, sorted and without duplicates. The tails of pair k are
    `tails[first[k]:first[k + 1]]`, without duplicates; there are [U] in all.
    """

    keys: Tensor
    first: Tensor
    tails: Tensor
    num_rels: int

    @staticmethod
    def of(triples: Tensor, num_rels: int) -> KnownTails:
        """From `triples` [T, 3] int64 of head, relation (0..num_rels-1) and tail, which may have duplicates."""
        head, rel, tail = torch.unique(triples, dim=0).unbind(1)
        keys, counts = torch.unique_consecutive(head * num_rels + rel, return_counts=True)
        first = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return KnownTails(keys, first, tail, num_rels)

    def pairs(self, head: Tensor, rel: Tensor) -> tuple[Tensor, Tensor]:
        """(query, tail), each [P]: all tails that are known for each of the B queries (head[b], rel[b])."""
        query = head * self.num_rels + rel
        if self.keys.numel() == 0:
            return query[:0], query[:0]
        place = torch.searchsorted(self.keys, query).clamp(max=self.keys.numel() - 1)
        known = self.keys[place] == query
        begin, count = self.first[place], (self.first[place + 1] - self.first[place]) * known
        row = torch.repeat_interleave(torch.arange(query.numel()), count)
        before = count.cumsum(0) - count
        return row, self.tails[torch.arange(row.numel()) - before[row] + begin[row]]


def filtered_ranks(scores: Tensor, triples: Tensor, known: KnownTails) -> Tensor:
    """Rank of the tail of each triple [B, 3] among all N entities by `scores` [B, N]: [B] float64, 1 for the best.

    Filtered (Bordes et al., "Translating Embeddings for Modeling Multi-relational Data", NeurIPS 2013, section 4.2;
    Schlichtkrull et al., ESWC 2018, section 5.2): entities that are `known` tails of (head, relation) are left out,
    except the triple's own tail. Equal scores share their mean rank, 1 + higher + (equal others) / 2, so that a model
    that gives all the same score gets the middle rank, not the first. Heads are ranked as tails of the inverse
    relation.

    Raises DataError if a score is NaN, which has no rank.
    """
    head, rel, tail = triples.unbind(1)
    if bool(scores.amax(1).isnan().any()):  # a maximum propagates NaN
        raise DataError(
            "scores must be numbers to be ranked (got NaN): a training that diverged wants a lower rate."
            " Lower the rate."
        )
    own = scores.gather(1, tail.unsqueeze(1))
    row, other = known.pairs(head, rel)
    keep = other != tail[row]
    row, other = row[keep], other[keep]
    score, mine, count = scores[row, other], own[row, 0], len(scores)
    # The counts are over all entities, minus those that are left out, so no filtered copy of `scores` is needed.
    higher = (scores > own).sum(1) - torch.bincount(row[score > mine], minlength=count)
    equal = (scores == own).sum(1) - 1 - torch.bincount(row[score == mine], minlength=count)
    return 1 + higher.double() + equal.double() / 2


@dataclass(frozen=True, slots=True)
class Ranking:
    """Mean reciprocal rank, and the shares of ranks of at most 1, 3 and 10. NaN if nothing was ranked."""

    mrr: float
    hits1: float
    hits3: float
    hits10: float

    @staticmethod
    def of(ranks: Tensor) -> Ranking:
        hits1, hits3, hits10 = (float((ranks <= k).double().mean()) for k in (1, 3, 10))
        return Ranking(float(ranks.reciprocal().mean()), hits1, hits3, hits10)
