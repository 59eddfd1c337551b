"""DistMult: scores of triples (head, relation, tail)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class DistMult(nn.Module):
    """score(h, r, t) = sum over k of h_k w_rk t_k: Yang et al., "Embedding Entities and Relations for Learning and
    Inference in Knowledge Bases", ICLR 2015 (https://arxiv.org/abs/1412.6575). The decoder of R-GCN.

    `num_rels`: number of relations. `feats`: number of features of an embedding. The caller passes the embeddings of
    nodes, which may be a layer's results. The higher its score, the likelier a triple. Scores are symmetric in head and
    tail.

    >>> nodes, r = torch.randn(6, 4), torch.tensor([0, 2])
    >>> decoder = DistMult(num_rels=3, feats=4)
    >>> decoder(nodes[[0, 1]], r, nodes[[2, 3]]).shape, decoder.tails(nodes[[0, 1]], r, nodes).shape
    (torch.Size([2]), torch.Size([2, 6]))
    """

    def __init__(self, num_rels: int, feats: int) -> None:
        super().__init__()
        self.num_rels, self.feats = num_rels, feats
        self.weight = nn.Parameter(torch.empty(num_rels, feats))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """w is drawn from Glorot's uniform distribution with the gain of a ReLU."""
        nn.init.xavier_uniform_(self.weight, gain=nn.init.calculate_gain("relu"))

    def forward(self, head: Tensor, rel: Tensor, tail: Tensor) -> Tensor:
        """Embeddings [B, feats] of heads and tails, relations [B] -> scores [B]."""
        return (head * self.weight.index_select(0, rel) * tail).sum(-1)

    def tails(self, head: Tensor, rel: Tensor, nodes: Tensor) -> Tensor:
        """Scores of all `nodes` [N, feats] as tails: [B, N], by one product of matrices."""
        return (head * self.weight.index_select(0, rel)) @ nodes.t()

    def heads(self, nodes: Tensor, rel: Tensor, tail: Tensor) -> Tensor:
        """Scores of all `nodes` [N, feats] as heads: [B, N]."""
        return self.tails(tail, rel, nodes)

    def extra_repr(self) -> str:
        return f"num_rels={self.num_rels}, feats={self.feats}"
