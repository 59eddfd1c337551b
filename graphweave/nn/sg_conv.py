"""Simplified graph convolution (SGC)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from graphweave.graph.graph import Graph
from graphweave.nn.hops import hop, symmetric_norm


class SGConv(nn.Module):
    """Simplified graph convolution: Wu et al., "Simplifying Graph Convolutional Networks", ICML 2019
    (https://arxiv.org/abs/1902.07153).

    H' = norm(A^k H) W + b, where (A H)_i = sum over edges j -> i of h_j / sqrt(in_degree(j) in_degree(i)), or, with
    edge weights, of w_ji h_j / sqrt(sum of weights out of j times sum of weights into i). Degrees and sums of 0 count
    as 1.

    `in_feats`, `out_feats`: numbers of features of h and h'. `k`: number of hops. `bias`: False leaves b out. `norm`:
    function of A^k H. `allow_zero_in_degree`: DGL's argument, without effect. With `cached`, the first call's A^k H is
    that of all calls, whatever their graph and features.

    Nodes without incoming edges get b. A node's own features enter only through a self-loop, so add self-loops
    (`graphweave.add_self_loop`), as the paper does.

    >>> graph = gw.add_self_loop(gw.graph(([0, 1, 2], [1, 2, 2])))
    >>> SGConv(5, 4, k=2)(graph, torch.randn(3, 5)).shape
    torch.Size([3, 4])
    """

    def __init__(
        self, in_feats: int, out_feats: int, k: int = 1, cached: bool = False, bias: bool = True,
        norm: Callable[[Tensor], Tensor] | None = None, allow_zero_in_degree: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.k, self.cached, self.norm = k, cached, norm
        self._kept: Tensor | None = None
        self.fc = nn.Linear(in_feats, out_feats, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """W is drawn from Glorot's uniform distribution; b is 0."""
        nn.init.xavier_uniform_(self.fc.weight)
        if self.fc.bias is not None:
            nn.init.zeros_(self.fc.bias)

    def forward(self, graph: Graph, feat: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """[N, in] -> [N, out]. `edge_weight` [E] or [E, 1], not negative."""
        x = self._kept
        if x is None or not self.cached:
            norm, x = symmetric_norm(graph, feat, edge_weight), feat
            for _ in range(self.k):
                x = hop(graph, x, norm, edge_weight)
            self._kept = x if self.cached else None
        x = x if self.norm is None else self.norm(x)
        out: Tensor = self.fc(x)
        return out

    def extra_repr(self) -> str:
        return f"k={self.k}"
