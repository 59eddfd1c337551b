"""Personalised propagation (APPNP)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphweave.graph.graph import Graph
from graphweave.nn.ends import inverse_power
from graphweave.nn.hops import Norm, hop, symmetric_norm


class APPNPConv(nn.Module):
    """Personalised propagation: Gasteiger, Bojchevski and Guennemann, "Predict then Propagate: Graph Neural Networks
    meet Personalized PageRank", ICLR 2019 (https://arxiv.org/abs/1810.05997).

    H_0 = H, H_(t+1) = (1 - alpha) A H_t + alpha H_0, and H_k is the result, where (A H)_i = sum over edges j -> i of
    h_j / sqrt(out_degree(j) in_degree(i)), or, with edge weights, of w_ji h_j / sqrt(sum of weights out of j times sum
    of weights into i). Degrees and sums of 0 count as 1.

    `k`: number of steps. `alpha`: probability of a return to the start. `edge_drop`: rate of the dropout of edges,
    which is drawn again for each step in training. The layer has no parameters.

    Nodes without incoming edges get alpha h_i. The paper adds self-loops first (`graphweave.add_self_loop`).

    >>> graph = gw.add_self_loop(gw.graph(([0, 1, 2], [1, 2, 2])))
    >>> APPNPConv(k=10, alpha=0.1)(graph, torch.randn(3, 5)).shape
    torch.Size([3, 5])
    """

    def __init__(self, k: int, alpha: float, edge_drop: float = 0.0) -> None:
        super().__init__()
        self.k, self.alpha, self.edge_drop = k, alpha, nn.Dropout(edge_drop)

    def forward(self, graph: Graph, feat: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """[N, F] -> [N, F]. `edge_weight` [E] or [E, 1], not negative."""
        norm = self._norm(graph, feat, edge_weight)
        drops = self.training and self.edge_drop.p > 0
        if drops and edge_weight is None:
            edge_weight = torch.ones(graph.num_edges(), dtype=feat.dtype, device=feat.device)
        x = feat
        for _ in range(self.k):
            x = hop(graph, x, norm, self.edge_drop(edge_weight) if drops else edge_weight)
            x = (1 - self.alpha) * x + self.alpha * feat
        return x

    def _norm(self, graph: Graph, feat: Tensor, edge_weight: Tensor | None) -> Norm:
        if edge_weight is not None:
            return symmetric_norm(graph, feat, edge_weight)
        return inverse_power(graph.out_degrees(), 0.5, feat.dtype), inverse_power(graph.in_degrees(), 0.5, feat.dtype)

    def extra_repr(self) -> str:
        return f"k={self.k}, alpha={self.alpha}"
