"""Gaussian mixture convolution (MoNet)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphweave.graph.graph import Graph
from graphweave.nn.ends import Feat, Width, both_ends, both_widths, one_of
from graphweave.nn.gin_conv import REDUCERS
from graphweave.udf.arguments import EdgeBatch


class GMMConv(nn.Module):
    """Gaussian mixture convolution: Monti et al., "Geometric Deep Learning on Graphs and Manifolds using Mixture Model
    CNNs", CVPR 2017 (https://arxiv.org/abs/1611.08402).

    h'_i = b + residual(h_i) + sum over k of aggregate over edges j -> i of w_k(u_ji) W_k h_j,
    w_k(u) = exp(-1/2 sum over d of ((u_d - mu_kd) inv_sigma_kd)^2).

    `in_feats`: a number, or a pair (of sources, of destinations). `dim`: number of pseudo coordinates u. `n_kernels`:
    number of k. `aggregator_type`: "sum", "mean" or "max". `residual`: adds h_i, or a linear map of it if widths
    differ. `bias`: False leaves b out. `allow_zero_in_degree`: DGL's argument, without effect.

    For nodes without incoming edges the aggregate is 0. A node's own features enter only through a self-loop or the
    residual.

    >>> graph = gw.graph(([0, 1, 2], [1, 2, 2]))
    >>> GMMConv(5, 4, dim=2, n_kernels=3)(graph, torch.randn(3, 5), torch.rand(3, 2)).shape
    torch.Size([3, 4])
    """

    def __init__(
        self, in_feats: Width, out_feats: int, dim: int, n_kernels: int, aggregator_type: str = "sum",
        residual: bool = False, bias: bool = True, allow_zero_in_degree: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.in_src, self.in_dst = both_widths(in_feats)
        self.out_feats, self.dim, self.n_kernels = out_feats, dim, n_kernels
        self.aggregator_type = one_of("aggregator_type", aggregator_type, tuple(REDUCERS))
        self.mu = nn.Parameter(torch.empty(n_kernels, dim))
        self.inv_sigma = nn.Parameter(torch.empty(n_kernels, dim))
        self.fc = nn.Linear(self.in_src, n_kernels * out_feats, bias=False)
        linear = residual and self.in_dst != out_feats
        self.res_fc = nn.Linear(self.in_dst, out_feats, bias=False) if linear else nn.Identity() if residual else None
        self.bias = nn.Parameter(torch.empty(out_feats)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights are drawn from Glorot's normal distribution with the gain of a ReLU, mu from a normal distribution of
        deviation 0.1; inv_sigma is 1 and b is 0."""
        nn.init.xavier_normal_(self.fc.weight, gain=nn.init.calculate_gain("relu"))
        if isinstance(self.res_fc, nn.Linear):
            nn.init.xavier_normal_(self.res_fc.weight, gain=nn.init.calculate_gain("relu"))
        nn.init.normal_(self.mu, 0, 0.1)
        nn.init.ones_(self.inv_sigma)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, graph: Graph, feat: Feat, pseudo: Tensor) -> Tensor:
        """[N, in], or a pair ([N_src, in_src], [N_dst, in_dst]), and u [E, dim] -> [N_dst, out]."""
        src, dst = both_ends(feat, graph)
        with graph.local_scope():
            graph.srcdata["z"] = self.fc(src).view(-1, self.n_kernels, self.out_feats)
            graph.edata["u"] = pseudo
            graph.update_all(self._message, REDUCERS[self.aggregator_type]("m", "h"))
            x = graph.dstdata["h"]
        if self.aggregator_type == "max":
            x = x.sum(1)
        if self.res_fc is not None:
            x = x + self.res_fc(dst)
        return x if self.bias is None else x + self.bias

    def _message(self, edges: EdgeBatch) -> dict[str, Tensor]:
        gap = (edges.data["u"].unsqueeze(1) - self.mu) * self.inv_sigma
        weight = torch.exp(-0.5 * (gap * gap).sum(-1))
        m = edges.src["z"] * weight.unsqueeze(-1)
        # A sum over kernels may be taken before a sum over edges, but not before a maximum.
        return {"m": m if self.aggregator_type == "max" else m.sum(1)}

    def extra_repr(self) -> str:
        return f"{self.in_src}, {self.out_feats}, dim={self.dim}, n_kernels={self.n_kernels}"
