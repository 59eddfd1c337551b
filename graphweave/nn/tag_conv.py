"""Topology adaptive graph convolution (TAGCN)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from graphweave.graph.graph import Graph
from graphweave.nn.hops import hop, symmetric_norm


class TAGConv(nn.Module):
    """Topology adaptive graph convolution: Du et al., "Topology Adaptive Graph Convolutional Networks", 2017
    (https://arxiv.org/abs/1710.10370).

    H' = activation(sum over n = 0..k of A^n H W_n + b), where (A H)_i = sum over edges j -> i of
    h_j / sqrt(in_degree(j) in_degree(i)), or, with edge weights, of w_ji h_j / sqrt(sum of weights out of j times sum
    of weights into i). Degrees and sums of 0 count as 1.

    `in_feats`, `out_feats`: numbers of features of h and h'. `k`: number of hops. `bias`: False leaves b out.
    `activation`: function of the result.

    Nodes without incoming edges get activation(h_i W_0 + b). No self-loops are needed.

    >>> graph = gw.graph(([0, 1, 2], [1, 2, 2]))
    >>> TAGConv(5, 4, k=3)(graph, torch.randn(3, 5)).shape
    torch.Size([3, 4])
    """

    def __init__(
        self, in_feats: int, out_feats: int, k: int = 2, bias: bool = True,
        activation: Callable[[Tensor], Tensor] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.k, self.activation = k, activation
        self.lin = nn.Linear(in_feats * (k + 1), out_feats, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """W_n are drawn from Glorot's normal distribution with the gain of a ReLU; b does not change."""
        nn.init.xavier_normal_(self.lin.weight, gain=nn.init.calculate_gain("relu"))

    def forward(self, graph: Graph, feat: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """[N, in] -> [N, out]. `edge_weight` [E] or [E, 1], not negative."""
        norm, powers = symmetric_norm(graph, feat, edge_weight), [feat]
        for _ in range(self.k):
            powers.append(hop(graph, powers[-1], norm, edge_weight))
        x: Tensor = self.lin(torch.cat(powers, -1))
        return x if self.activation is None else self.activation(x)

    def extra_repr(self) -> str:
        return f"k={self.k}"
