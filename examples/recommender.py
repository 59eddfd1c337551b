"""Recommend items to users: LightGCN in ten lines of plain PyTorch, with the loss of pairs compiled with it.

    python examples/recommender.py

`graphweave train --task recommend --data FILE.npz` does this for a file of who chose what (docs/data.md).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import graphweave as gw

USERS, ITEMS, TASTES, AT = 1000, 500, 8, 20


class LightGCN(nn.Module):
    """The mean of each node's embedding and of its sums over one to three hops (He et al., 2020). Users come first."""

    def __init__(self, nodes: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(0.1 * torch.randn(nodes, width))

    def forward(self, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        h = self.embedding
        degree = torch.zeros(len(h)).index_add(0, dst, torch.ones(len(dst))).clamp(min=1)
        weight = (degree[src] * degree[dst]).rsqrt().unsqueeze(1)
        total = h
        for _ in range(3):
            h = torch.zeros_like(h).index_add(0, dst, weight * h[src])
            total = total + h
        return total / 4


def choices() -> tuple[Tensor, Tensor]:
    """Pairs of a user and an item [2, T], for training and for tests. Item i has taste i % TASTES, and three in four
    choices are of the user's own taste."""
    user = torch.arange(USERS).repeat_interleave(16)
    of_user = torch.randint(TASTES, (USERS,))
    liked = torch.randint(ITEMS // TASTES, user.shape) * TASTES + of_user[user]
    item = torch.where(torch.rand(user.shape) < 0.75, liked, torch.randint(ITEMS, user.shape))
    pairs = torch.unique(torch.stack([user, item]), dim=1)
    test = torch.rand(pairs.shape[1]) < 0.2
    return pairs[:, ~test], pairs[:, test]


def recall(scores: Tensor, train: Tensor, test: Tensor) -> float:
    """The share of test pairs whose item is among the AT best of its user, of the items that are new to the user."""
    best = scores.index_put((train[0], train[1]), torch.tensor(-torch.inf)).topk(AT, dim=1).indices
    return (best[test[0]] == test[1].unsqueeze(1)).any(1).float().mean().item()


def main() -> None:
    torch.manual_seed(0)
    train, test = choices()
    pairs = torch.stack([train[0], train[1] + USERS])
    edge_index = torch.cat([pairs, pairs.flip(0)], dim=1)
    model = LightGCN(USERS + ITEMS, 32)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    @gw.compile
    def loss(edge_index: Tensor, user: Tensor, chosen: Tensor, other: Tensor) -> Tensor:
        h = model(edge_index)
        return -F.logsigmoid((h[user] * (h[chosen] - h[other])).sum(1)).mean()  # BPR: the chosen one scores higher

    for epoch in range(1, 41):
        optimizer.zero_grad()
        other = torch.randint(USERS, USERS + ITEMS, pairs[0].shape)
        step_loss = loss(edge_index, pairs[0], pairs[1], other)
        step_loss.backward()
        optimizer.step()
        if epoch % 10 == 0:
            print(f"epoch {epoch}: loss {step_loss.item():.3f}")

    with torch.no_grad():
        h = model(edge_index)
    popular = train[1].bincount(minlength=ITEMS).float().expand(USERS, ITEMS)
    found, guessed = recall(h[:USERS] @ h[USERS:].T, train, test), recall(popular, train, test)
    print(f"test recall at {AT}: {found:.3f}, most popular items: {guessed:.3f}")


if __name__ == "__main__":
    main()
