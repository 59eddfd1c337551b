"""Classify nodes: a graph attention network by PyG on scikit-learn's digits, joined to their nearest neighbours.

    python examples/node_classification.py

The compiled function holds the model and the loss, so the last layer, the loss and its gradient become one kernel.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GAT

import graphweave as gw
from graphweave.data import NodeData, digits


def train(data: NodeData, epochs: int) -> torch.nn.Module:
    model = GAT(data.x.shape[1], 32, num_layers=2, out_channels=data.num_classes, heads=4, dropout=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    @gw.compile
    def loss(x: Tensor, edge_index: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        return F.cross_entropy(model(x, edge_index)[mask], y[mask])

    for epoch in range(1, epochs + 1):
        optimizer.zero_grad()
        step_loss = loss(data.x, data.edge_index, data.y, data.train_mask)
        step_loss.backward()
        optimizer.step()
        if epoch % 10 == 0:
            print(f"epoch {epoch}: loss {step_loss.item():.3f}")
    return model


@torch.no_grad()
def accuracy(model: torch.nn.Module, data: NodeData) -> float:
    model.eval()
    predicted = model(data.x, data.edge_index).argmax(1)  # a single call: eager mode is quicker than compiling
    return (predicted == data.y)[data.test_mask].float().mean().item()


def main() -> None:
    torch.manual_seed(0)
    data = digits(k=8)
    model = train(data, epochs=40)
    chance = data.y[data.test_mask].bincount().max() / data.test_mask.sum()
    print(f"test accuracy: {accuracy(model, data):.3f}, commonest class: {chance:.3f}")


if __name__ == "__main__":
    main()
