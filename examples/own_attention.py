"""Write an attention of one's own in plain PyTorch, and see what the compiler makes of it.

    python examples/own_attention.py

A node looks at its neighbours and at how far away they are: the score has a term for the distance, and every head
learns its own weight for it. No library has this layer, so nobody has written a kernel for it; here it is one kernel
forward all the same.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import graphweave as gw
from graphweave.data import digits


class DistanceAttention(nn.Module):
    """h'_i = sum_j softmax_j(q_i . k_j / sqrt(width) - softplus(s) |x_i - x_j|^2) v_j, and h_i W beside it."""

    def __init__(self, inputs: int, outputs: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.own = (nn.Linear(inputs, outputs) for _ in range(4))
        self.steepness = nn.Parameter(torch.zeros(heads))

    def forward(self, h: Tensor, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        nodes = len(h)
        q, k, v = (f(h).view(nodes, self.heads, -1) for f in (self.query, self.key, self.value))
        distance = (x[dst] - x[src]).square().mean(1, keepdim=True)  # [E, 1]
        score = (q[dst] * k[src]).sum(-1) / q.shape[-1] ** 0.5 - F.softplus(self.steepness) * distance  # [E, heads]
        index = dst.unsqueeze(1).expand_as(score)
        most = score.new_zeros(nodes, self.heads).scatter_reduce(0, index, score.detach(), "amax", include_self=False)
        raised = (score - most[dst]).exp()
        weight = raised / torch.zeros_like(most).index_add(0, dst, raised)[dst]
        out = torch.zeros_like(v).index_add(0, dst, weight.unsqueeze(-1) * v[src])
        return out.flatten(1) + self.own(h)


class Network(nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = DistanceAttention(features, 32, heads=4), DistanceAttention(32, 32, heads=4)
        self.out = nn.Linear(32, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = F.relu(self.first(x, x, edge_index))
        return self.out(F.relu(self.second(h, x, edge_index)))


def main() -> None:
    torch.manual_seed(0)
    data = digits(k=8)
    model = Network(data.x.shape[1], data.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def loss(x: Tensor, edge_index: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        return F.cross_entropy(model(x, edge_index)[mask], y[mask])

    inputs = (data.x, data.edge_index, data.y, data.train_mask)
    print(gw.explain(loss, *inputs))  # kernels, bytes, and whether anything was left to PyTorch
    compiled = gw.compile(loss)
    for epoch in range(1, 41):
        optimizer.zero_grad()
        step_loss = compiled(*inputs)
        step_loss.backward()
        optimizer.step()
        if epoch % 10 == 0:
            print(f"epoch {epoch}: loss {step_loss.item():.3f}")

    with torch.no_grad():
        predicted = model(data.x, data.edge_index).argmax(1)
    chance = data.y[data.test_mask].bincount().max() / data.test_mask.sum()
    right = (predicted == data.y)[data.test_mask].float().mean()
    print(f"test accuracy: {right:.3f}, commonest class: {chance:.3f}")


if __name__ == "__main__":
    main()
