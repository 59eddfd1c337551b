"""Complete a knowledge graph: a relational graph convolution and DistMult, on generated families.

    python examples/knowledge_graph.py

Cousins, grandparents and aunts follow from parents and marriages, so a model that has understood the relations ranks
the right person first. Ranks are filtered: other right answers do not count against one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import graphweave as gw
from graphweave.data import KnowledgeGraph, KnownTails, Ranking, families, filtered_ranks
from graphweave.nn import DistMult, RelGraphConv

WIDTH = 48


class Encoder(torch.nn.Module):
    def __init__(self, nodes: int, relations: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Parameter(torch.randn(nodes, WIDTH) / WIDTH**0.5)
        self.layers = torch.nn.ModuleList([RelGraphConv(WIDTH, WIDTH, relations) for _ in range(2)])
        self.score = DistMult(relations, WIDTH)

    def forward(self, g: gw.Graph, relation: Tensor) -> Tensor:
        h = self.embedding
        for layer in self.layers:
            h = h + torch.tanh(layer(g, h, relation, norm="mean"))
        return h


def drawn(data: KnowledgeGraph, size: int) -> tuple[gw.Graph, Tensor, Tensor]:
    """A batch of triples to predict [size, 3], and the graph of all others with the relations of its edges."""
    order = torch.randperm(len(data.train))
    asked, rest = data.both_ways(data.train[order[:size]]), data.both_ways(data.train[order[size:]])
    return gw.graph((rest[:, 0], rest[:, 2]), num_nodes=data.num_nodes), rest[:, 1], asked


def main() -> None:
    torch.manual_seed(0)
    data = families(count=20)
    model = Encoder(data.num_nodes, 2 * data.num_rels)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    @gw.compile
    def loss(g: gw.Graph, relation: Tensor, asked: Tensor) -> Tensor:
        h = model(g, relation)
        head, rel, tail = asked.unbind(1)
        return F.cross_entropy(model.score.tails(h[head], rel, h), tail)

    for step in range(1, 101):
        optimizer.zero_grad()
        step_loss = loss(*drawn(data, size=512))
        step_loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: loss {step_loss.item():.3f}")

    both = data.both_ways(data.train)
    test = data.both_ways(data.test)
    with torch.no_grad():
        h = model(gw.graph((both[:, 0], both[:, 2]), num_nodes=data.num_nodes), both[:, 1])
        scores = model.score.tails(h[test[:, 0]], test[:, 1], h)
    known = KnownTails.of(data.everything(), 2 * data.num_rels)
    found, guessed = (Ranking.of(filtered_ranks(s, test, known)) for s in (scores, torch.rand_like(scores)))
    print(f"test mean reciprocal rank: {found.mrr:.3f}, random order: {guessed.mrr:.3f}")


if __name__ == "__main__":
    main()
