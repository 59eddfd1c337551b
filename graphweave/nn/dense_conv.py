"""Layers over adjacency matrices, for graphs with edges between most nodes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from graphweave.nn.ends import Feat, Width, both_widths, one_of


class DenseGraphConv(nn.Module):
    """`GraphConv` over a matrix: h' = activation(c A h W + b), A[i, j] the weight of the edge j -> i.

    `norm`: "both": D_i^-1/2 A D_j^-1/2; "right": D_i^-1 A; "none". Degrees are sums of A, at least 1.

    >>> DenseGraphConv(5, 4)(torch.eye(3), torch.randn(3, 5)).shape
    torch.Size([3, 4])
    """

    def __init__(
        self, in_feats: int, out_feats: int, norm: str = "both", bias: bool = True,
        activation: Callable[[Tensor], Tensor] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.norm, self.activation = one_of("norm", norm, ("both", "right", "none")), activation
        self.weight = nn.Parameter(torch.empty(in_feats, out_feats))
        self.bias = nn.Parameter(torch.empty(out_feats)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """W is drawn from Glorot's uniform distribution; b is 0."""
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, adj: Tensor, feat: Tensor) -> Tensor:
        """A [N_dst, N_src], [N_src, in] -> [N_dst, out]."""
        adj, x = adj.to(feat.dtype), feat
        of_dst = adj.sum(1).clamp(min=1)[:, None]
        if self.norm == "both":
            x = x * adj.sum(0).clamp(min=1)[:, None] ** -0.5
        out = adj @ (x @ self.weight)
        if self.norm != "none":
            out = out * of_dst ** (-0.5 if self.norm == "both" else -1.0)
        out = out if self.bias is None else out + self.bias
        return out if self.activation is None else self.activation(out)


class DenseSAGEConv(nn.Module):
    """`SAGEConv` with the aggregator "gcn" over a matrix: h'_i = activation(norm(W (h_i + sum of A_ij h_j) / (d_i + 1)
    + b)).

    d_i is the sum of A's row i.

    >>> DenseSAGEConv(5, 4)(torch.eye(3), torch.randn(3, 5)).shape
    torch.Size([3, 4])
    """

    def __init__(
        self, in_feats: Width, out_feats: int, feat_drop: float = 0.0, bias: bool = True,
        norm: Callable[[Tensor], Tensor] | None = None, activation: Callable[[Tensor], Tensor] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.feat_drop, self.norm, self.activation = nn.Dropout(feat_drop), norm, activation
        self.fc = nn.Linear(both_widths(in_feats)[0], out_feats, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """W is drawn from Glorot's uniform distribution with the gain of a ReLU."""
        nn.init.xavier_uniform_(self.fc.weight, gain=nn.init.calculate_gain("relu"))

    def forward(self, adj: Tensor, feat: Feat) -> Tensor:
        """A [N_dst, N_src], and [N, in] or a pair -> [N_dst, out]."""
        src, dst = feat if isinstance(feat, tuple) else (feat, feat)
        src, dst = self.feat_drop(src), self.feat_drop(dst)
        adj = adj.to(src.dtype)
        out = self.fc((adj @ src + dst) / (adj.sum(1, keepdim=True) + 1))
        out = out if self.activation is None else self.activation(out)
        return out if self.norm is None else self.norm(out)


class DenseChebConv(nn.Module):
    """`ChebConv` over a matrix: H' = sum over n = 0..k-1 of T_n(L) H W_n + b, L = 2 / lambda_max (I - D^-1/2 A D^-1/2)
    - I.

    T_0 = I, T_1 = L, T_n = 2 L T_(n-1) - T_(n-2). D has the sums of A's rows, at least 1.

    >>> DenseChebConv(5, 4, k=3)(torch.eye(3), torch.randn(3, 5)).shape
    torch.Size([3, 4])
    """

    def __init__(self, in_feats: int, out_feats: int, k: int, bias: bool = True) -> None:
        super().__init__()
        self.k = k
        self.W = nn.Parameter(torch.empty(k, in_feats, out_feats))
        self.bias = nn.Parameter(torch.empty(out_feats)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Each W_n is drawn from Glorot's normal distribution with the gain of a ReLU; b is 0."""
        for weight in self.W:
            nn.init.xavier_normal_(weight, gain=nn.init.calculate_gain("relu"))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, adj: Tensor, feat: Tensor, lambda_max: float | Tensor | None = None) -> Tensor:
        """A [N, N], [N, in] -> [N, out]. `lambda_max`: the largest eigenvalue of I - D^-1/2 A D^-1/2; None computes
        it."""
        adj = adj.to(feat.dtype)
        root = adj.sum(1).clamp(min=1) ** -0.5
        one = torch.eye(len(adj), dtype=adj.dtype, device=adj.device)
        laplacian = one - root[:, None] * adj * root
        if lambda_max is None:
            lambda_max = torch.linalg.eigvals(laplacian).real.max()
        scaled = laplacian * (2 / lambda_max) - one
        terms = [feat, scaled @ feat][: self.k]
        for _ in range(2, self.k):
            terms.append(2 * scaled @ terms[-1] - terms[-2])
        out = (torch.stack(terms) @ self.W).sum(0)
        return out if self.bias is None else out + self.bias
