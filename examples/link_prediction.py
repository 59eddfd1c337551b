"""Predict links: an encoder of two graph convolutions, and a score of each pair of nodes, compiled with the loss.

    python examples/link_prediction.py

The graph joins points on a square that lie close together. Each step draws as many random pairs as there are edges.
Scores of pairs are part of a kernel: rows of pairs x features are never stored.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GCN

import graphweave as gw
from graphweave.examples.measures import roc_auc
from graphweave.points import knn_graph

NODES = 2000


def close_points() -> tuple[Tensor, Tensor]:
    """The edges of a graph of the 8 nearest, in both directions: [2, E] of training, and [2, T] pairs of test."""
    points = torch.rand(NODES, 2)
    pairs = torch.unique(knn_graph(points, 8).sort(0).values, dim=1)
    test = torch.rand(pairs.shape[1]) < 0.1
    kept = pairs[:, ~test]
    return torch.cat([kept, kept.flip(0)], dim=1), pairs[:, test]


def main() -> None:
    torch.manual_seed(0)
    edge_index, test = close_points()
    embedding = torch.nn.Parameter(torch.randn(NODES, 32))
    encoder = GCN(32, 32, num_layers=2)
    optimizer = torch.optim.Adam([embedding, *encoder.parameters()], lr=0.01)

    def score(h: Tensor, pairs: Tensor) -> Tensor:
        return (h[pairs[0]] * h[pairs[1]]).sum(1)

    @gw.compile
    def loss(edge_index: Tensor, negative: Tensor) -> Tensor:
        h = encoder(embedding, edge_index)
        return -F.logsigmoid(score(h, edge_index)).mean() - F.logsigmoid(-score(h, negative)).mean()

    for epoch in range(1, 41):
        optimizer.zero_grad()
        step_loss = loss(edge_index, torch.randint(NODES, edge_index.shape))
        step_loss.backward()
        optimizer.step()
        if epoch % 10 == 0:
            print(f"epoch {epoch}: loss {step_loss.item():.3f}")

    with torch.no_grad():
        h = encoder(embedding, edge_index)
        scores = torch.cat([score(h, test), score(h, torch.randint(NODES, test.shape))])
    truth = torch.arange(len(scores)) < test.shape[1]
    print(f"test area under the ROC curve: {roc_auc(truth, scores):.3f}, guessing: 0.500")


if __name__ == "__main__":
    main()
