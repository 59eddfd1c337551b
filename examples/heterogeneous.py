"""Classify papers in a graph of papers, authors and topics: a GraphSAGE that PyG's `to_hetero` has converted.

    python examples/heterogeneous.py

The model calls a layer for each relation. The compiler merges the layers of a step, so that relations do not cost a
handful of kernels each.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.nn import GraphSAGE, to_hetero
from torch_geometric.transforms import ToUndirected

import graphweave as gw

PAPERS, AUTHORS, TOPICS, FIELDS = 2000, 600, 60, 5


def library() -> HeteroData:
    """Authors and topics belong to a field of research, and a paper mostly has those of its own field. The features of
    papers say nothing about it; those of authors and topics do."""
    counts = {"paper": PAPERS, "author": AUTHORS, "topic": TOPICS}
    field = {name: torch.randint(FIELDS, (count,)) for name, count in counts.items()}
    data = HeteroData()
    data["paper"].x, data["paper"].y = torch.randn(PAPERS, 16), field["paper"]
    for name, each in (("author", 3), ("topic", 2)):
        data[name].x = F.one_hot(field[name], 16) + 0.5 * torch.randn(counts[name], 16)
        paper = torch.arange(PAPERS).repeat_interleave(each)
        candidates = torch.randint(counts[name], (len(paper), 4))
        fits = field[name][candidates] == field["paper"][paper].unsqueeze(1)
        chosen = candidates.gather(1, fits.int().argmax(1, keepdim=True)).flatten()  # the first that fits, if any does
        data["paper", f"has_{name}", name].edge_index = torch.stack([paper, chosen])
    data["paper"].train_mask = torch.rand(PAPERS) < 0.5
    return ToUndirected()(data)


def main() -> None:
    torch.manual_seed(0)
    data = library()
    y, train_mask = data["paper"].y, data["paper"].train_mask
    model = to_hetero(GraphSAGE(16, 16, num_layers=2, out_channels=FIELDS), data.metadata())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    @gw.compile
    def loss(x: dict[str, Tensor], edge_index: dict[tuple[str, str, str], Tensor], y: Tensor, mask: Tensor) -> Tensor:
        return F.cross_entropy(model(x, edge_index)["paper"][mask], y[mask])

    for epoch in range(1, 31):
        optimizer.zero_grad()
        step_loss = loss(data.x_dict, data.edge_index_dict, y, train_mask)
        step_loss.backward()
        optimizer.step()
        if epoch % 10 == 0:
            print(f"epoch {epoch}: loss {step_loss.item():.3f}")

    with torch.no_grad():
        predicted = model(data.x_dict, data.edge_index_dict)["paper"].argmax(1)
    right = (predicted == y)[~train_mask].float().mean()
    print(f"test accuracy: {right:.3f}, commonest class: {y.bincount().max() / PAPERS:.3f}")


if __name__ == "__main__":
    main()
