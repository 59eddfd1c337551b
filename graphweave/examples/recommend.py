"""Trains embeddings of users and items on who chose what, and recommends items: LightGCN and a graph autoencoder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphweave.data import Interactions
from graphweave.distributed.ranks import ALONE, Ranks
from graphweave.examples.batched import BatchTraining
from graphweave.examples.training import TrainingJob, wrap

BATCH = 8192
"""Pairs of a step, unless the user says otherwise."""

RECOMMENDERS = ("lightgcn", "gcmc")
_AT = 20
"""Items that are recommended to each user."""
RECALL, NDCG = f"recall@{_AT}", f"NDCG@{_AT}"
_USERS = 1024
"""Users that are scored at once."""
_LAYERS = 3


def _neighbour_sums(x: Tensor, edge_index: Tensor, norm: Tensor) -> Tensor:
    """out[v] = sum of norm[e] x[u] over the edges e = (u, v). [N, F] -> [N, F]"""
    src, dst = edge_index
    return torch.zeros_like(x).index_add(0, dst, x[src] * norm.unsqueeze(1))


class LightGCN(nn.Module):
    """The mean of a node's embedding and of its sums over 0 to 3 hops: E_(k+1) = D^-1/2 A D^-1/2 E_k (He et al.,
    "LightGCN", 2020, equations 3 and 4). Users and items are one set of nodes, users first. A node without edges keeps
    a quarter of its embedding."""

    def __init__(self, num_nodes: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(0.1 * torch.randn(num_nodes, hidden))

    def forward(self, edge_index: Tensor, norm: Tensor) -> Tensor:
        x: Tensor = self.embedding
        total = x
        for _ in range(_LAYERS):
            x = _neighbour_sums(x, edge_index, norm)
            total = total + x
        return total / (_LAYERS + 1)


class _Side(nn.Module):
    """A node's vector from its own embedding x and the sum h of its neighbours': W relu(U x + V h)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.own, self.other, self.out = (nn.Linear(hidden, hidden) for _ in range(3))

    def forward(self, x: Tensor, sums: Tensor) -> Tensor:
        out: Tensor = self.out(F.relu(self.own(x) + self.other(sums)))
        return out


class GCMC(nn.Module):
    """One graph convolution, ReLU, and a dense layer, with weights of their own for users and for items (van den Berg,
    Kipf and Welling, "Graph Convolutional Matrix Completion", 2018, sections 2.3 and 2.4, for one level of rating, with
    symmetric normalisation). Scores are bilinear (section 2.5).

    A node's own embedding enters the convolution, too, so that one without edges has a vector. Users and items are one
    set of nodes, users first.
    """

    def __init__(self, num_users: int, num_items: int, hidden: int) -> None:
        super().__init__()
        self.sizes = [num_users, num_items]
        self.embedding = nn.Parameter(0.1 * torch.randn(num_users + num_items, hidden))
        self.users, self.items = _Side(hidden), _Side(hidden)
        self.bilinear = nn.Parameter(torch.eye(hidden) + 0.01 * torch.randn(hidden, hidden))

    def forward(self, edge_index: Tensor, norm: Tensor) -> Tensor:
        x: Tensor = self.embedding
        sums = _neighbour_sums(x, edge_index, norm)
        sides = zip((self.users, self.items), x.split(self.sizes), sums.split(self.sizes), strict=True)
        return torch.cat([side(own, other) for side, own, other in sides])


class Recommender(nn.Module):
    """Embeddings and the scores of pairs, so that both run in the given way."""

    def __init__(self, name: str, num_users: int, num_items: int, hidden: int) -> None:
        super().__init__()
        lightgcn = name == "lightgcn"
        self.encoder = LightGCN(num_users + num_items, hidden) if lightgcn else GCMC(num_users, num_items, hidden)

    def projected(self, users: Tensor) -> Tensor:
        """Embeddings of users whose inner products with those of items are the scores."""
        return users @ self.encoder.bilinear if isinstance(self.encoder, GCMC) else users

    def forward(self, edge_index: Tensor, norm: Tensor, users: Tensor, chosen: Tensor, other: Tensor) -> Tensor:
        """[pairs, 2]: the scores of a chosen item and of another one."""
        nodes = self.encoder(edge_index, norm)
        mine = self.projected(nodes[users])
        return torch.stack([(mine * nodes[items]).sum(1) for items in (chosen, other)], 1)


class RecommenderTraining(BatchTraining[Tensor]):
    """Each step draws another item for each pair (user, item), uniformly, and takes the loss of Bayesian personalised
    ranking, -log sigmoid(score of the item - score of the other) (Rendle et al., 2009), plus `weight_decay`.

    Measures: recall and normalised discounted cumulative gain of the 20 best items that the user has not chosen in
    training, over users with pairs in the split. The baseline recommends the items that most users chose.
    """

    measure = RECALL

    def __init__(self, way: str, job: TrainingJob, data: Interactions, ranks: Ranks = ALONE) -> None:
        super().__init__(way, job, ranks)
        self.data, self.size = data, job.batch or BATCH
        users, items = data.train
        there, back = torch.stack([items + data.num_users, users]), torch.stack([users, items + data.num_users])
        self.edges = torch.cat([there, back], 1)
        num_nodes = data.num_users + data.num_items
        degree = torch.bincount(self.edges[1], minlength=num_nodes).float().clamp(min=1).rsqrt()
        self.norm = degree[self.edges[0]] * degree[self.edges[1]]
        self.model = Recommender(job.model, data.num_users, data.num_items, job.hidden)
        self.run, self.encode = wrap(way, job)(self.model), wrap(way, job)(self.model.encoder)
        self.optimise(self.model)

    @property
    def steps(self) -> int:
        return -(-self.data.train.size(1) // self.size)

    def drawn(self) -> Iterator[Tensor]:
        for rows in self._shuffled(torch.arange(self.data.train.size(1)), self.size):
            other = torch.randint(self.data.num_items, (rows.numel(),), generator=self.generator)
            yield torch.cat([self.data.train[:, rows], other.unsqueeze(0)])

    def make_batch(self, drawn: Tensor, own: slice, number: int) -> Tensor:
        return drawn[:, own]

    def loss(self, batch: Tensor) -> Tensor:
        users, chosen, other = batch[0], batch[1] + self.data.num_users, batch[2] + self.data.num_users
        scores = self.run(self.edges, self.norm, users, chosen, other)
        return -F.logsigmoid(scores[:, 0] - scores[:, 1]).sum()

    def scores(self, part: str) -> dict[str, float]:
        nodes: Tensor = self.encode(self.edges, self.norm)
        users, items = nodes.split([self.data.num_users, self.data.num_items])
        return self._ranked(part, lambda some: self.model.projected(users[some]) @ items.T)

    def baseline(self) -> dict[str, float]:
        popular = torch.bincount(self.data.train[1], minlength=self.data.num_items).float()
        return {f"test {k}": v for k, v in self._ranked("test", lambda some: popular.expand(some.numel(), -1)).items()}

    def _ranked(self, part: str, score: Callable[[Tensor], Tensor]) -> dict[str, float]:
        wanted = self.data.val if part == "val" else self.data.test
        known = self.data.train if part == "val" else torch.cat([self.data.train, self.data.val], 1)
        wanted, known = (pairs[:, pairs[0].argsort(stable=True)] for pairs in (wanted, known))
        recall = gain = 0.0
        users = wanted[0].unique()
        own = users[self.ranks.share(users.numel())]
        discount = 1 / torch.log2(torch.arange(_AT) + 2.0)
        for some in own.split(_USERS):
            if not some.numel():
                break  # more ranks than users
            scores = score(some).clone()
            mine = _of_users(known, some)
            scores[mine[0], mine[1]] = -math.inf
            best = scores.topk(min(_AT, self.data.num_items), 1).indices
            hit = torch.zeros_like(scores, dtype=torch.bool)
            right = _of_users(wanted, some)
            hit[right[0], right[1]] = True
            count = hit.sum(1)
            found = hit.gather(1, best).to(discount.dtype)
            recall += float((found.sum(1) / count).sum())
            ideal = discount.cumsum(0)[count.clamp(max=best.size(1)) - 1]
            gain += float((found @ discount[: best.size(1)] / ideal).sum())
        recall, gain = self.ranks.sum(recall, gain)
        return {RECALL: recall / max(users.numel(), 1), NDCG: gain / max(users.numel(), 1)}


def _of_users(pairs: Tensor, users: Tensor) -> tuple[Tensor, Tensor]:
    """Of `pairs` [2, n], sorted by user, those of `users` (rising): positions in `users`, and items."""
    place = torch.searchsorted(users, pairs[0]).clamp(max=users.numel() - 1)
    mine = users[place] == pairs[0]
    return place[mine], pairs[1][mine]
