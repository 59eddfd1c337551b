"""Classify nodes of a graph by batches of sampled neighbours: PyG's GraphSAGE and a loader of graphweave.

    python examples/neighbour_batches.py

The loader takes the arguments of PyG's `NeighborLoader` and needs neither pyg-lib nor torch-sparse. One compilation
serves batches of all sizes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import graphweave as gw
from graphweave.sampling import NeighborLoader

NODES, CLASSES, FEATURES = 6000, 6, 32


def communities() -> Data:
    """A graph in which four of five edges join nodes of one class. Features say little about the class of a node, those
    of its neighbours together say much."""
    y = torch.randint(CLASSES, (NODES,))
    members = [(y == c).nonzero().flatten() for c in range(CLASSES)]
    src = torch.randint(NODES, (10 * NODES,))
    dst = torch.randint(NODES, (10 * NODES,))
    for c in range(CLASSES):
        inside = ((y[src] == c) & (torch.rand(src.shape) < 0.8)).nonzero().flatten()
        dst[inside] = members[c][torch.randint(len(members[c]), inside.shape)]
    x = 0.5 * F.one_hot(y, FEATURES) + torch.randn(NODES, FEATURES)
    train_mask = torch.rand(NODES) < 0.5
    return Data(x=x, edge_index=torch.stack([src, dst]), y=y, train_mask=train_mask, test_mask=~train_mask)


def main() -> None:
    torch.manual_seed(0)
    data = communities()
    model = GraphSAGE(FEATURES, 32, num_layers=2, out_channels=CLASSES)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    loader = NeighborLoader(data, [10, 10], input_nodes=data.train_mask, batch_size=512, shuffle=True)

    @gw.compile
    def loss(x: Tensor, edge_index: Tensor, y: Tensor) -> Tensor:
        seeds = model(x, edge_index)[: len(y)]  # inside, so that no layer computes rows that nobody reads
        return F.cross_entropy(seeds, y)

    for epoch in range(1, 5):
        total = 0.0
        for batch in loader:
            optimizer.zero_grad()
            step_loss = loss(batch.x, batch.edge_index, batch.y[: batch.batch_size])
            step_loss.backward()
            optimizer.step()
            total += step_loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.3f}")

    with torch.no_grad():
        predicted = model(data.x, data.edge_index).argmax(1)
    right = (predicted == data.y)[data.test_mask].float().mean()
    print(f"test accuracy: {right:.3f}, commonest class: {data.y.bincount().max() / NODES:.3f}")


if __name__ == "__main__":
    main()
