"""Embeddings of nodes by random walks: DeepWalk and metapath2vec."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphweave.core.errors import DataError
from graphweave.dgl.graph import DGLGraph
from graphweave.dgl.random import choice
from graphweave.dgl.walks import random_walk
from graphweave.graph.relation import Etype

_POWER = 0.75
"""Negative nodes are drawn by their frequency to this power (Mikolov et al. 2013)."""


class DeepWalk(nn.Module):
    """Nodes that are near in random walks get near embeddings: the loss of a batch of walks is the mean of -log
    sigmoid(u . c) over pairs at most `window_size` apart, plus `neg_weight` `negative_size` times that of -log
    sigmoid(-u . c) over pairs with drawn nodes; products are cut to [-6, 6].

    Negative nodes are those of the batch's walks (`fast_neg`), or drawn by out-degree^0.75. Pairs with the end of a
    shorter walk (-1) are left out. Source: Perozzi et al., "DeepWalk", KDD 2014; Mikolov et al., "Distributed
    Representations of Words and Phrases and their Compositionality", NIPS 2013. DataError for walks that are not longer
    than the window.

    >>> model = DeepWalk(graph)
    >>> loader = torch.utils.data.DataLoader(graph.nodes(), batch_size=128, collate_fn=model.sample)
    >>> loss = model(next(iter(loader)))
    """

    def __init__(
        self, g: DGLGraph, emb_dim: int = 128, walk_length: int = 40, window_size: int = 5, neg_weight: float = 1,
        negative_size: int = 5, fast_neg: bool = True, sparse: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if walk_length <= window_size:
            raise DataError(
                f"walk_length must be above window_size (got {walk_length}, {window_size}). Pass longer walks."
            )
        self.g, self.emb_dim, self.walk_length, self.window_size = g, emb_dim, walk_length, window_size
        self.neg_weight, self.negative_size, self.fast_neg = neg_weight, negative_size, fast_neg
        self.node_embed = nn.Embedding(g.num_nodes(), emb_dim, sparse=sparse)
        self.context_embed = nn.Embedding(g.num_nodes(), emb_dim, sparse=sparse)
        self.reset_parameters()
        if not fast_neg:
            chance = g.out_degrees().double().pow(_POWER)
            self.neg_prob = chance / chance.sum()
        self._pairs = _window(walk_length, window_size + 1, window_size + 1)

    def reset_parameters(self) -> None:
        """Embeddings are drawn from -1 / emb_dim to 1 / emb_dim; those of contexts are 0."""
        nn.init.uniform_(self.node_embed.weight, -1 / self.emb_dim, 1 / self.emb_dim)
        nn.init.zeros_(self.context_embed.weight)

    def sample(self, indices: object) -> Tensor:
        """Walks from the nodes `indices` [B], int64 [B, walk_length]."""
        return random_walk(self.g, torch.as_tensor(indices), length=self.walk_length - 1)[0]

    def forward(self, batch_walk: Tensor) -> Tensor:
        """Walks [B, walk_length] -> loss []."""
        of, near = (batch_walk[:, side].reshape(-1) for side in self._pairs.to(batch_walk.device))
        there = (of >= 0) & (near >= 0)
        of, near = of[there], near[there]
        wrong = self._negatives(batch_walk, len(of) * self.negative_size)
        right = _scores(self.node_embed(of), self.context_embed(near), 6)
        other = _scores(self.node_embed(near.repeat_interleave(self.negative_size)), self.context_embed(wrong), 6)
        positive = -functional.logsigmoid(right).mean()
        return positive - functional.logsigmoid(-other).mean() * self.negative_size * self.neg_weight

    def _negatives(self, walks: Tensor, count: int) -> Tensor:
        """`count` nodes: those of the walks, each equally often, or drawn by degree."""
        if not self.fast_neg:
            return choice(self.g.num_nodes(), count, prob=self.neg_prob).to(walks.device)
        seen = walks[walks >= 0]
        times = max(-(-count // max(len(seen), 1)), 2 * self.negative_size * self.window_size)
        return seen[torch.randperm(len(seen) * times, device=walks.device)[:count] % len(seen)]


class MetaPath2Vec(nn.Module):
    """`DeepWalk`'s loss for walks along `metapath`, a list of relations: mean of -log sigmoid(u . c) minus the sum of
    log sigmoid(-u . n) over `negative_size` drawn nodes n; products are cut to [-10, 10].

    Nodes of all types have numbers one after the other, type by type: `local_to_global_nid[type]` has those of a type.
    A node's contexts are the `window_size` nodes before it in the walk and `window_size` - 1 after it. Negative nodes
    are drawn by frequency^0.75 in one walk from each start. Source: Dong et al., "metapath2vec", KDD 2017, section 3.2.

    >>> model = MetaPath2Vec(graph, ["buys", "sold to"], window_size=1)
    >>> loader = torch.utils.data.DataLoader(torch.arange(graph.num_nodes("user")), 128, collate_fn=model.sample)
    >>> loss = model(*next(iter(loader)))
    """

    def __init__(
        self, g: DGLGraph, metapath: Sequence[Etype], window_size: int, emb_dim: int = 128, negative_size: int = 5,
        sparse: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if len(metapath) + 1 < window_size:
            raise DataError(
                f"window_size must be at most the number of nodes of a walk, {len(metapath) + 1} (got {window_size})."
                " Pass a smaller one."
            )
        self.hg, self.metapath, self.window_size = g, list(metapath), window_size
        self.emb_dim, self.negative_size = emb_dim, negative_size
        keys = [g.to_canonical_etype(etype) for etype in metapath]
        self.node_metapath = [keys[0][0], *(key[2] for key in keys)]
        first = dict(zip(g.ntypes, accumulate((g.num_nodes(t) for t in g.ntypes), initial=0), strict=False))
        self.local_to_global_nid = {t: torch.arange(first[t], first[t] + g.num_nodes(t)) for t in g.ntypes}
        self._first = torch.tensor([first[t] for t in self.node_metapath])
        seen = self._walks(torch.arange(g.num_nodes(self.node_metapath[0])))
        chance = torch.bincount(seen[seen >= 0], minlength=g.num_nodes()).double().pow(_POWER)
        self.neg_prob = chance / chance.sum()
        self.node_embed = nn.Embedding(g.num_nodes(), emb_dim, sparse=sparse)
        self.context_embed = nn.Embedding(g.num_nodes(), emb_dim, sparse=sparse)
        self._pairs = _window(len(self.node_metapath), window_size + 1, window_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Embeddings are drawn from -1 / emb_dim to 1 / emb_dim; those of contexts are 0."""
        nn.init.uniform_(self.node_embed.weight, -1 / self.emb_dim, 1 / self.emb_dim)
        nn.init.zeros_(self.context_embed.weight)

    def sample(self, indices: object) -> tuple[Tensor, Tensor, Tensor]:
        """(nodes [P], their contexts [P], drawn nodes [P, negative_size]) of a walk from each of `indices`."""
        walks = self._walks(torch.as_tensor(indices))
        of, near = (walks[:, side].reshape(-1) for side in self._pairs)
        there = (of >= 0) & (near >= 0)
        of, near = of[there], near[there]
        drawn = choice(self.hg.num_nodes(), len(of) * self.negative_size, prob=self.neg_prob)
        return of, near, drawn.view(len(of), self.negative_size)

    def forward(self, pos_u: Tensor, pos_v: Tensor, neg_v: Tensor) -> Tensor:
        """[P], [P], [P, negative_size] -> loss []."""
        u = self.node_embed(pos_u)
        right = functional.logsigmoid(_scores(u, self.context_embed(pos_v), 10))
        wrong = functional.logsigmoid(-_scores(u.unsqueeze(1), self.context_embed(neg_v), 10))
        return -(right + wrong.sum(1)).mean()

    def _walks(self, starts: Tensor) -> Tensor:
        """A walk from each start, [B, nodes of the metapath] by numbers over all types, -1 after its end."""
        traces = random_walk(self.hg, starts, metapath=self.metapath)[0]
        return torch.where(traces >= 0, traces + self._first, traces)


def _window(length: int, before: int, after: int) -> Tensor:
    """int64 [2, pairs]: places i and j of a walk, i - before < j < i + after, j other than i; by i, then by j."""
    i, j = torch.arange(length)[:, None], torch.arange(length)
    return ((j > i - before) & (j < i + after) & (j != i)).nonzero().t()


def _scores(x: Tensor, y: Tensor, most: float) -> Tensor:
    return (x * y).sum(-1).clamp(-most, most)
