"""RotatE: scores of triples (head, relation, tail)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from graphweave.core.errors import DataError

_AT_ONCE = 1 << 22
"""Elements of the differences that one step of the matrix forms makes."""


class RotatE(nn.Module):
    """score(h, r, t) = gamma - sum over k of |h_k exp(i theta_rk) - t_k|, of complex numbers: Sun et al., "RotatE:
    Knowledge Graph Embedding by Relational Rotation in Complex Space", ICLR 2019 (https://arxiv.org/abs/1902.10197).

    `num_rels`: relations. `feats`: of embeddings of nodes, which are the caller's; an even number, the first half real
    parts, the second imaginary ones. `gamma`: the paper's margin. The higher a score, the likelier the triple. Where a
    modulus is 0 its gradient is taken to be 0.

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
        """theta uniform over the circle."""
        nn.init.uniform_(self.theta, -math.pi, math.pi)

    def forward(self, head: Tensor, rel: Tensor, tail: Tensor) -> Tensor:
        """Embeddings [B, feats] of heads and tails, relations [B] -> scores [B]."""
        return self._score(self._rotated(head, rel, 1.0), tail)

    def tails(self, head: Tensor, rel: Tensor, nodes: Tensor) -> Tensor:
        """Scores of all `nodes` [N, feats] as tails: [B, N].

        Differences [N, feats] are made for some heads at a time; inside a compiled model, and for gradients, all of
        them exist, [B, N, feats].
        """
        return self._against(self._rotated(head, rel, 1.0), nodes)

    def heads(self, nodes: Tensor, rel: Tensor, tail: Tensor) -> Tensor:
        """Scores of all `nodes` [N, feats] as heads: [B, N]."""
        return self._against(self._rotated(tail, rel, -1.0), nodes)  # a rotation keeps moduli

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
        if torch.compiler.is_compiling():  # steps would be compiled in
            return self._score(x.unsqueeze(1), nodes)
        step = max(_AT_ONCE // max(nodes.numel(), 1), 1)
        parts = [self._score(rows.unsqueeze(1), nodes) for rows in x.split(step)]
        return torch.cat(parts)

    def extra_repr(self) -> str:
        return f"num_rels={self.num_rels}, feats={self.feats}, gamma={self.gamma}"
