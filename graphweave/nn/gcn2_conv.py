"""Graph convolution with initial residual and identity mapping (GCNII)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import graphweave.function as fn
from graphweave.graph.graph import Graph
from graphweave.nn.ends import inverse_power, on_rows


class GCN2Conv(nn.Module):
    """h' = activation(f W' + b), with f = (1 - alpha) D^-1/2 A D^-1/2 h + alpha h0 and W' = (1 - beta) I + beta W.

    beta = log(lambda / layer + 1), D in-degrees, which count as at least 1. `project_initial_features`: whether both
    terms of f have the same W; otherwise the term of h0 has a matrix of its own. `bias`: False leaves b out.
    `allow_zero_in_degree`: DGL's argument, without effect; such nodes get the term of h0. Source: Chen et al., "Simple
    and Deep Graph Convolutional Networks", ICML 2020, section 3.

    >>> graph = gw.graph(([0, 1, 2], [1, 2, 2]))
    >>> x = torch.randn(3, 5)
    >>> GCN2Conv(5, layer=1)(graph, x, x).shape
    torch.Size([3, 5])
    """

    def __init__(
        self, in_feats: int, layer: int, alpha: float = 0.1, lambda_: float = 1, project_initial_features: bool = True,
        allow_zero_in_degree: bool = False, bias: bool = True, activation: Callable[[Tensor], Tensor] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.alpha, self.beta, self.activation = alpha, math.log(lambda_ / layer + 1), activation
        self.weight1 = nn.Parameter(torch.empty(in_feats, in_feats))
        self.weight2 = None if project_initial_features else nn.Parameter(torch.empty(in_feats, in_feats))
        self.bias = nn.Parameter(torch.empty(in_feats)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Matrices are drawn from the standard normal distribution; b is 0."""
        for weight in (self.weight1, self.weight2):
            if weight is not None:
                nn.init.normal_(weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, graph: Graph, feat: Tensor, feat_0: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """[N, F], the first layer's features [N, F], and weights of messages [E] -> [N, F]. With weights, degrees do
        not count."""
        with graph.local_scope():
            message: Any = fn.copy_u("h", "m")
            scale = None
            if edge_weight is None:
                scale = on_rows(inverse_power(graph.in_degrees(), 0.5, feat.dtype), feat)
            else:
                graph.edata["w"], message = edge_weight, fn.u_mul_e("h", "w", "m")
            graph.ndata["h"] = feat if scale is None else feat * scale
            graph.update_all(message, fn.sum("m", "h"))
            h = graph.ndata["h"] if scale is None else graph.ndata["h"] * scale
        h, first = (1 - self.alpha) * h, self.alpha * feat_0
        if self.weight2 is None:
            h = h + first
            out = (1 - self.beta) * h + self.beta * (h @ self.weight1)
        else:
            out = (1 - self.beta) * (h + first) + self.beta * (h @ self.weight1 + first @ self.weight2)
        out = out if self.bias is None else out + self.bias
        return out if self.activation is None else self.activation(out)

    def extra_repr(self) -> str:
        return f"in={self.weight1.shape[0]}, alpha={self.alpha}, beta={self.beta}"
