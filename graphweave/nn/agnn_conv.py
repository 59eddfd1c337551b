"""Attention by similarity (AGNN)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphweave.graph.graph import Graph
from graphweave.nn.ends import Feat, both_ends
from graphweave.udf.arguments import EdgeBatch, NodeBatch


class AGNNConv(nn.Module):
    """Attention by similarity: Thekumparampil et al., "Attention-based Graph Neural Network for Semi-Supervised
    Learning", 2018 (https://arxiv.org/abs/1803.03735).

    h'_i = sum over edges j -> i of p_ji h_j, p_ji = softmax over the edges into i of beta cos(h_j, h_i).

    `init_beta`: beta, a parameter if `learn_beta`, else a buffer. `allow_zero_in_degree`: DGL's argument, without
    effect.

    Nodes without incoming edges get 0. A node attends to itself only through a self-loop, so add self-loops
    (`graphweave.add_self_loop`), as the paper does.

    >>> graph = gw.add_self_loop(gw.graph(([0, 1, 2], [1, 2, 2])))
    >>> AGNNConv()(graph, torch.randn(3, 5)).shape
    torch.Size([3, 5])
    """

    def __init__(self, init_beta: float = 1.0, learn_beta: bool = True, allow_zero_in_degree: bool = False) -> None:
        super().__init__()
        beta = torch.tensor([float(init_beta)])
        if learn_beta:
            self.beta: Tensor = nn.Parameter(beta)
        else:
            self.register_buffer("beta", beta)

    def forward(self, graph: Graph, feat: Feat) -> Tensor:
        """[N, F], or a pair ([N_src, F], [N_dst, F]) -> [N_dst, F]."""
        src, dst = both_ends(feat, graph)
        with graph.local_scope():
            graph.srcdata["h"] = src
            graph.srcdata["unit"] = unit = functional.normalize(src, p=2, dim=-1)
            own = isinstance(feat, tuple)
            graph.dstdata["unit_dst"] = functional.normalize(dst, p=2, dim=-1) if own else both_ends(unit, graph)[1]
            graph.update_all(self._message, self._reduce)
            out: Tensor = graph.dstdata["out"]
        return out

    def _message(self, edges: EdgeBatch) -> dict[str, Tensor]:
        cosine = (edges.src["unit"] * edges.dst["unit_dst"]).sum(-1, keepdim=True)
        return {"h": edges.src["h"], "e": self.beta * cosine}

    def _reduce(self, nodes: NodeBatch) -> dict[str, Tensor]:
        return {"out": (nodes.mailbox["e"].softmax(1) * nodes.mailbox["h"]).sum(1)}
