"""Gated graph sequence network."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

import graphweave.function as fn
from graphweave.core.errors import DataError
from graphweave.graph.graph import Graph


class GatedGraphConv(nn.Module):
    """h <- GRU(a, h) for `n_steps` steps, with a_i = sum over edges j -> i of type t of W_t h_j + b_t.

    h starts as the features, with zeros up to `out_feats`. `n_etypes`: number of edge types. For nodes without incoming
    edges a is 0. Source: Li et al., "Gated Graph Sequence Neural Networks", ICLR 2016, section 3.

    >>> graph = gw.graph(([0, 1, 2], [1, 2, 2]))
    >>> GatedGraphConv(4, 5, n_steps=2, n_etypes=2)(graph, torch.randn(3, 4), torch.tensor([0, 1, 1])).shape
    torch.Size([3, 5])
    """

    def __init__(self, in_feats: int, out_feats: int, n_steps: int, n_etypes: int, bias: bool = True) -> None:
        super().__init__()
        if in_feats > out_feats:
            raise DataError(f"out_feats must be at least in_feats (got {out_feats} and {in_feats}). Pass more.")
        self.in_feats, self.out_feats, self.n_steps, self.n_etypes = in_feats, out_feats, n_steps, n_etypes
        self.linears = nn.ModuleList([nn.Linear(out_feats, out_feats) for _ in range(n_etypes)])
        self.gru = nn.GRUCell(out_feats, out_feats, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """W are drawn from Glorot's normal distribution with the gain of a ReLU, b are 0, the GRU's are PyTorch's."""
        self.gru.reset_parameters()
        for linear in self.linears:
            nn.init.xavier_normal_(linear.weight, gain=nn.init.calculate_gain("relu"))  # type: ignore[arg-type]
            nn.init.zeros_(linear.bias)  # type: ignore[arg-type]

    def forward(self, graph: Graph, feat: Tensor, etypes: Tensor | None = None) -> Tensor:
        """[N, in], and the type of each edge [E], which may be left out for one type -> [N, out]."""
        if etypes is None and self.n_etypes > 1:
            raise DataError(f"expected etypes, the type of each edge, for {self.n_etypes} types (got None). Pass them.")
        h = functional.pad(feat, (0, self.out_feats - feat.shape[1]))
        with graph.local_scope():
            if etypes is not None:
                for t in range(self.n_etypes):
                    graph.edata[f"w{t}"] = etypes.eq(t).to(feat.dtype)
            for _ in range(self.n_steps):
                h = self.gru(self._sum(graph, h, etypes is not None), h)
        return h

    def _sum(self, graph: Graph, h: Tensor, typed: bool) -> Tensor:
        total: Tensor | None = None
        for t, linear in enumerate(self.linears):
            graph.ndata["h"] = linear(h)
            graph.update_all(fn.u_mul_e("h", f"w{t}", "m") if typed else fn.copy_u("h", "m"), fn.sum("m", "a"))
            total = graph.ndata["a"] if total is None else total + graph.ndata["a"]
        return torch.zeros_like(h) if total is None else total
