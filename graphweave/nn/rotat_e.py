"""RotatE: scores of triples (head, relation, tail)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from graphweave.core.errors import DataError

_MAX_DIFFERENCES = 1 << 22
"""Upper limit on the elements of the differences that `heads` and `tails` hold at once in eager mode. A single query
may need more."""


class RotatE(nn.Module):
    """score(h, r, t) = gamma - sum over k of |h_k exp(i theta_rk) - t_k|, with complex numbers: Sun et al., "RotatE:
    Knowledge Graph Embedding by Relational Rotation in Complex Space", ICLR 2019 (https://arxiv.org/abs/1902.10197).

    `num_rels`: number of relations. `feats`: number of features of an embedding, which must be even: the first half are
    real parts, the second half imaginary ones. The caller passes the embeddings of nodes. `gamma`: the paper's margin.
    The higher its score, the likelier a triple. The gradient of a modulus of 0 is 0.

    >>> nodes, r = torch.randn(6, 4), torch.tensor([0, 2])
    >>> decoder = RotatE(num_rels=3, feats=4)
    >>> decoder(nodes[[0, 1]], r, nodes[[2, 3]]).shape, decoder.tails(nodes[[0, 1]], r, nodes).shape
    (torch.Size([2]), torch.Size([2, 6]))
    """

    def __init__(self, num_rels: int, feats: int, gamma: float = 12.0) -> None:
        super().__init__()
        if feats % 2:
            raise DataError(f"feats must be even, real and imaginary parts (got {feats}). Pass an even number.")
        self.num_rels, self.feats, self.gamma = num_rels, feats, gamma
        self.theta = nn.Parameter(torch.empty(num_rels, feats // 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """theta is drawn uniformly from the circle."""
        nn.init.uniform_(self.theta, -math.pi, math.pi)

    def forward(self, head: Tensor, rel: Tensor, tail: Tensor) -> Tensor:
        """Embeddings [B, feats] of heads and tails, relations [B] -> scores [B]."""
        return self._score(self._rotated(head, rel, 1.0), tail)

    def tails(self, head: Tensor, rel: Tensor, nodes: Tensor) -> Tensor:
        """Scores of all `nodes` [N, feats] as tails: [B, N].

        Differences are computed for some heads at a time, [some, N, feats]. In a compiled model, or if gradients are
        needed, all of them exist at once, [B, N, feats].
        """
        return self._against(self._rotated(head, rel, 1.0), nodes)

    def heads(self, nodes: Tensor, rel: Tensor, tail: Tensor) -> Tensor:
        """Scores of all `nodes` [N, feats] as heads: [B, N]."""
        return self._against(self._rotated(tail, rel, -1.0), nodes)  # a rotation does not change moduli

    def _rotated(self, x: Tensor, rel: Tensor, direction: float) -> Tensor:
        theta = self.theta.index_select(0, rel) * direction
        real, imaginary = x.chunk(2, -1)
        cos, sin = theta.cos(), theta.sin()
        return torch.cat([real * cos - imaginary * sin, real * sin + imaginary * cos], -1)

    def _score(self, x: Tensor, y: Tensor) -> Tensor:
        gap = (x - y).unflatten(-1, (2, -1))
        out: Tensor = self.gamma - torch.linalg.vector_norm(gap, dim=-2).sum(-1)
        return out

    def _against(self, x: Tensor, nodes: Tensor) -> Tensor:
        if torch.compiler.is_compiling():  # tracing would unroll the loop over parts for one size
            return self._score(x.unsqueeze(1), nodes)
        step = max(_MAX_DIFFERENCES // max(nodes.numel(), 1), 1)
        parts = [self._score(rows.unsqueeze(1), nodes) for rows in x.split(step)]
        return torch.cat(parts)

    def extra_repr(self) -> str:
        return f"num_rels={self.num_rels}, feats={self.feats}, gamma={self.gamma}"
