"""Classify whole graphs: PyG's GIN and its `DataLoader` on random graphs with and without triangles.

    python examples/graph_classification.py

All nodes have the same number of neighbours in both classes, so only the form of a graph tells its class: the model has
to count triangles, for which it gets the closed walks of three steps from each node.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GIN, global_add_pool

import graphweave as gw


def ring(nodes: int, triangles: bool) -> Data:
    """A ring with chords to the second neighbour (which make triangles), or to the third one (which make none).
    Each node has a random walk's chances to be at home again after 2, 3 and 4 steps of it, with some noise."""
    at, chord = torch.arange(nodes), 2 if triangles else 3
    one_way = torch.cat([torch.stack([at, (at + step) % nodes]) for step in (1, chord)], dim=1)
    edge_index = torch.cat([one_way, one_way.flip(0)], dim=1)
    steps = torch.zeros(nodes, nodes).index_put((edge_index[1], edge_index[0]), torch.tensor(0.25))
    home = torch.stack([torch.linalg.matrix_power(steps, k).diagonal() for k in (2, 3, 4)], dim=1)
    return Data(x=home + 0.2 * torch.randn(nodes, 3), edge_index=edge_index, y=int(triangles), num_nodes=nodes)


def main() -> None:
    torch.manual_seed(0)
    graphs = [ring(int(torch.randint(10, 30, ())), triangles=i % 2 == 0) for i in range(600)]
    train, test = DataLoader(graphs[:400], batch_size=50, shuffle=True), DataLoader(graphs[400:], batch_size=200)
    model = GIN(3, 16, num_layers=2)
    head = torch.nn.Linear(16, 2)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=0.01)

    def logits(x: Tensor, edge_index: Tensor, batch: Tensor, graphs: int) -> Tensor:
        return head(global_add_pool(model(x, edge_index), batch, size=graphs))

    @gw.compile
    def loss(x: Tensor, edge_index: Tensor, batch: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits(x, edge_index, batch, len(y)), y)

    for epoch in range(1, 9):
        total = 0.0
        for batch in train:
            optimizer.zero_grad()
            step_loss = loss(batch.x, batch.edge_index, batch.batch, batch.y)
            step_loss.backward()
            optimizer.step()
            total += step_loss.item()
        print(f"epoch {epoch}: loss {total / len(train):.3f}")

    with torch.no_grad():
        batch = next(iter(test))
        predicted = logits(batch.x, batch.edge_index, batch.batch, batch.num_graphs).argmax(1)
    print(f"test accuracy: {(predicted == batch.y).float().mean():.3f}, either class: 0.500")


if __name__ == "__main__":
    main()
