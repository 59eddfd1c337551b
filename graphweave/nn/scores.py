"""Scores of pairs of nodes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphweave.nn.ends import one_of


class EdgePredictor(nn.Module):
    """The score of pairs (h, t): "dot": <h, t>; "cos": their cosine; "ele": h * t; "cat": [h ; t]; then W s + b.

    `in_feats`, `out_feats`: W's widths, left out for the score itself. For "dot" and "cos" scores are [..., 1].

    >>> EdgePredictor("cat", 5, 4)(torch.randn(3, 5), torch.randn(3, 5)).shape
    torch.Size([3, 4])
    """

    def __init__(self, op: str, in_feats: int | None = None, out_feats: int | None = None, bias: bool = False) -> None:
        super().__init__()
        self.op = one_of("op", op, ("dot", "cos", "ele", "cat"))
        self.linear: nn.Linear | None = None
        if in_feats is not None and out_feats is not None:
            width = {"dot": 1, "cos": 1, "ele": in_feats, "cat": 2 * in_feats}[op]
            self.linear = nn.Linear(width, out_feats, bias=bias)

    def reset_parameters(self) -> None:
        """Draw W anew, as `torch.nn.Linear` does."""
        if self.linear is not None:
            self.linear.reset_parameters()

    def forward(self, h_src: Tensor, h_dst: Tensor) -> Tensor:
        """[..., F], [..., F] -> [..., out]."""
        match self.op:
            case "dot":
                score = (h_src * h_dst).sum(-1, keepdim=True)
            case "cos":
                score = functional.cosine_similarity(h_src, h_dst, dim=-1).unsqueeze(-1)
            case "ele":
                score = h_src * h_dst
            case _:
                score = torch.cat([h_src, h_dst], dim=-1)
        return score if self.linear is None else self.linear(score)


class TransE(nn.Module):
    """-|h + r - t| in the p-norm, r a row of a table of relations. Source: Bordes et al., "Translating Embeddings for
    Modeling Multi-relational Data", NIPS 2013.

    >>> TransE(2, 5)(torch.randn(3, 5), torch.randn(3, 5), torch.tensor([0, 1, 1])).shape
    torch.Size([3])
    """

    def __init__(self, num_rels: int, feats: int, p: float = 1) -> None:
        super().__init__()
        self.rel_emb, self.p = nn.Embedding(num_rels, feats), p

    def reset_parameters(self) -> None:
        """Draw the table anew, as `torch.nn.Embedding` does."""
        self.rel_emb.reset_parameters()

    def forward(self, h_head: Tensor, h_tail: Tensor, rels: Tensor) -> Tensor:
        """[E, F], [E, F], relations [E] -> [E]."""
        return -torch.linalg.vector_norm(h_head + self.rel_emb(rels) - h_tail, ord=self.p, dim=-1)


class TransR(nn.Module):
    """-|h M_r + r - t M_r| in the p-norm. Source: Lin et al., "Learning Entity and Relation Embeddings for Knowledge
    Graph Completion", AAAI 2015.

    >>> TransR(2, 4, 5)(torch.randn(3, 5), torch.randn(3, 5), torch.tensor([0, 1, 1])).shape
    torch.Size([3])
    """

    def __init__(self, num_rels: int, rfeats: int, nfeats: int, p: float = 1) -> None:
        super().__init__()
        self.rel_emb, self.rel_project = nn.Embedding(num_rels, rfeats), nn.Embedding(num_rels, nfeats * rfeats)
        self.rfeats, self.nfeats, self.p = rfeats, nfeats, p

    def reset_parameters(self) -> None:
        """Draw both tables anew, as `torch.nn.Embedding` does."""
        self.rel_emb.reset_parameters()
        self.rel_project.reset_parameters()

    def forward(self, h_head: Tensor, h_tail: Tensor, rels: Tensor) -> Tensor:
        """[E, nfeats], [E, nfeats], relations [E] -> [E]."""
        project = self.rel_project(rels).view(-1, self.nfeats, self.rfeats)
        moved = ((h_head - h_tail).unsqueeze(1) @ project).squeeze(1)
        return -torch.linalg.vector_norm(moved + self.rel_emb(rels), ord=self.p, dim=-1)
