"""Classify clouds of points: edge convolutions (DGCNN) of PyG on spheres, cubes and rings.

    python examples/points.py

The perceptron of an edge convolution runs on every edge. It is computed tile by tile within one kernel, forward and
backward, so that no tensor of edges x features is stored.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import EdgeConv, global_max_pool

import graphweave as gw
from graphweave.points import knn_graph

SHAPES = ("sphere", "cube", "ring")


def cloud(shape: int, points: int = 64) -> Data:
    """Points on the surface of a shape, rotated at random, with some noise, each joined to its 8 nearest."""
    x = torch.randn(points, 3)
    if shape == 0:
        x = F.normalize(x, dim=1)
    elif shape == 1:
        x = x / x.abs().amax(1, keepdim=True)
    else:
        x = F.normalize(x * torch.tensor([1.0, 1.0, 0.0]), dim=1) + 0.2 * F.normalize(x, dim=1)
    rotated = x @ torch.linalg.qr(torch.randn(3, 3)).Q + 0.02 * torch.randn(points, 3)
    return Data(x=rotated, edge_index=knn_graph(rotated, 8), y=shape)


class EdgeNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 32)
        self.layers = torch.nn.ModuleList(
            EdgeConv(torch.nn.Sequential(torch.nn.Linear(2 * a, b), torch.nn.ReLU(), torch.nn.Linear(b, b)))
            for a, b in pairwise(widths)
        )
        self.head = torch.nn.Linear(widths[-1], len(SHAPES))

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, clouds: int) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x, edge_index))
        return self.head(global_max_pool(x, batch, size=clouds))


def main() -> None:
    torch.manual_seed(0)
    clouds = [cloud(i % len(SHAPES)) for i in range(360)]
    model = EdgeNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    @gw.compile
    def loss(x: Tensor, edge_index: Tensor, batch: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x, edge_index, batch, len(y)), y)

    for epoch in range(1, 9):
        for batch in DataLoader(clouds[:240], batch_size=24, shuffle=True):
            optimizer.zero_grad()
            step_loss = loss(batch.x, batch.edge_index, batch.batch, batch.y)
            step_loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {step_loss.item():.3f}")

    test = Batch.from_data_list(clouds[240:])
    with torch.no_grad():
        predicted = model(test.x, test.edge_index, test.batch, test.num_graphs).argmax(1)
    print(f"test accuracy: {(predicted == test.y).float().mean():.3f}, any class: {1 / len(SHAPES):.3f}")


if __name__ == "__main__":
    main()
