"""Write a relational attention as loops over edges and nodes, with weights chosen by the relation of an edge.

    python examples/relation_loops.py

The loops say what happens to one edge or one node. They become the same kernels as the layer written in gathers and
scatters: a softmax over the edges into a node, and sums that are weighted by it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import graphweave as gw
from graphweave import loops
from graphweave.loops import dot_prd, exp, leakyrelu

NODES, FEATURES, RELATIONS, CLASSES = 1500, 16, 3, 4


@loops.compile
def attention(g, h, weight, of_src, of_dst):
    """out_i = sum_j softmax_j(leaky(of_src_r . h_j W_r + of_dst_r . h_i W_r)) h_j W_r, r the relation of the edge."""
    for e in g.edges():
        e["z"] = h[e.src] * weight[e.etype]
        own = h[e.dst] * weight[e.etype]
        score = dot_prd(e["z"], of_src[e.etype]) + dot_prd(own, of_dst[e.etype])
        e["raised"] = exp(leakyrelu(score, 0.2))
    for n in g.dst_nodes():
        n["total"] = 1e-9
        for e in n.incoming_edges():
            n["total"] += e["raised"]
    for n in g.dst_nodes():
        n["out"] = 0.0
        for e in n.incoming_edges():
            n["out"] += e["raised"] / n["total"] * e["z"]
    return g.dstdata["out"]


class Network(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(RELATIONS, FEATURES, hidden) / FEATURES**0.5)
        self.of_src, self.of_dst = (nn.Parameter(torch.randn(RELATIONS, hidden) / hidden**0.5) for _ in range(2))
        self.own, self.out = nn.Linear(FEATURES, hidden), nn.Linear(hidden, CLASSES)

    def forward(self, g: gw.Graph, x: Tensor) -> Tensor:
        with g.local_scope():  # the fields that the loops set are gone afterwards
            h = attention(g, x, self.weight, self.of_src, self.of_dst)
        return self.out(F.relu(h + self.own(x)))


def shifted_classes() -> tuple[gw.Graph, Tensor, Tensor]:
    """A graph, features that hint at classes, and classes. By relation 0 a node gets edges from nodes of its own class,
    by relation 1 from those of the next class, by relation 2 from any: they can be used only if they are told apart."""
    y = torch.randint(CLASSES, (NODES,))
    members = [(y == c).nonzero().flatten() for c in range(CLASSES)]
    dst, relation = torch.arange(NODES).repeat_interleave(9), torch.arange(RELATIONS).repeat(3 * NODES)
    src = torch.randint(NODES, dst.shape)
    for r in (0, 1):
        for c in range(CLASSES):
            edges = ((relation == r) & (y[dst] == c)).nonzero().flatten()
            among = members[(c + r) % CLASSES]
            src[edges] = among[torch.randint(len(among), edges.shape)]
    g = gw.graph((src, dst), num_nodes=NODES)
    g.edata[gw.ETYPE] = relation
    return g, 0.7 * F.one_hot(y, FEATURES) + torch.randn(NODES, FEATURES), y


def main() -> None:
    torch.manual_seed(0)
    g, x, y = shifted_classes()
    train_mask = torch.rand(NODES) < 0.5
    model = Network(16)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    @gw.compile
    def loss(g: gw.Graph, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        return F.cross_entropy(model(g, x)[mask], y[mask])

    for epoch in range(1, 61):
        optimizer.zero_grad()
        step_loss = loss(g, x, y, train_mask)
        step_loss.backward()
        optimizer.step()
        if epoch % 20 == 0:
            print(f"epoch {epoch}: loss {step_loss.item():.3f}")

    with torch.no_grad():
        predicted = model(g, x).argmax(1)
    right = (predicted == y)[~train_mask].float().mean()
    print(f"test accuracy: {right:.3f}, commonest class: {y.bincount().max() / NODES:.3f}")


if __name__ == "__main__":
    main()
