"""Chebyshev spectral graph convolution."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphweave.graph.graph import Graph
from graphweave.graph.readout import broadcast_nodes
from graphweave.nn.hops import hop, symmetric_norm


class ChebConv(nn.Module):
    """Chebyshev convolution: Defferrard, Bresson and Vandergheynst, "Convolutional Neural Networks on Graphs with Fast
    Localized Spectral Filtering", NIPS 2016 (https://arxiv.org/abs/1606.09375).

    H' = activation(sum over n = 0..k-1 of Z_n W_n + b), Z_0 = H, Z_1 = L Z_0, Z_n = 2 L Z_(n-1) - Z_(n-2),
    L = 2 / lambda_max (I - A) - I, A_ij = 1 / sqrt(in_degree(i) in_degree(j)) for each edge j -> i; degrees of 0 count
    as 1.

    `in_feats`, `out_feats`: numbers of features of h and h'. `k`: number of polynomials (edges are not read if it is
    1). `activation`: function of the result, by default ReLU; None for none. `bias`: False leaves b out.

    Nodes without incoming edges have (A H)_i = 0. The formula is meant for undirected graphs, so the graph should have
    both directions of each edge (`graphweave.to_bidirected`), and no self-loops.

    >>> graph = gw.graph(([0, 1, 1, 2], [1, 0, 2, 1]))
    >>> ChebConv(5, 4, k=3)(graph, torch.randn(3, 5)).shape
    torch.Size([3, 4])
    """

    def __init__(
        self, in_feats: int, out_feats: int, k: int,
        activation: Callable[[Tensor], Tensor] | None = functional.relu, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.k, self.activation = k, activation
        self.linear = nn.Linear(k * in_feats, out_feats, bias=bias)

    def reset_parameters(self) -> None:
        """Weights as in `nn.Linear`."""
        self.linear.reset_parameters()

    def forward(self, graph: Graph, feat: Tensor, lambda_max: float | Sequence[float] | Tensor | None = None) -> Tensor:
        """[N, in] -> [N, out].

        `lambda_max`: the largest eigenvalue of I - A, as one number, or one for each graph of a batch ([B] or [B, 1]).
        The default is its upper bound, 2.
        """
        norm = symmetric_norm(graph, feat)
        rescale = self._rescale(graph, feat, lambda_max)

        def laplacian(x: Tensor) -> Tensor:
            if lambda_max is None:
                return -hop(graph, x, norm)
            return x * (rescale - 1) - hop(graph, x, norm) * rescale

        terms = [feat]
        if self.k > 1:
            terms.append(laplacian(feat))
        for _ in range(2, self.k):
            terms.append(2 * laplacian(terms[-1]) - terms[-2])
        x: Tensor = self.linear(torch.cat(terms, -1))
        return x if self.activation is None else self.activation(x)

    def _rescale(
        self, graph: Graph, feat: Tensor, lambda_max: float | Sequence[float] | Tensor | None
    ) -> float | Tensor:
        """2 / lambda_max: a number, or [N, 1]."""
        if lambda_max is None or isinstance(lambda_max, (int, float)):
            return 2 / (2 if lambda_max is None else lambda_max)
        each = torch.as_tensor(lambda_max, dtype=feat.dtype, device=feat.device).reshape(-1, 1)
        return 2 / broadcast_nodes(graph, each)

    def extra_repr(self) -> str:
        return f"k={self.k}"
