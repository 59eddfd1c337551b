"""Continuous-filter convolution (SchNet)."""

from __future__ import annotations

import math

from torch import Tensor, nn

import graphweave.function as fn
from graphweave.graph.graph import Graph
from graphweave.nn.ends import Feat, both_ends


class ShiftedSoftplus(nn.Module):
    """log(exp(beta x) / 2 + 1 / 2) / beta, and x itself above `threshold`.

    >>> ShiftedSoftplus()(torch.zeros(2))
    tensor([0., 0.])
    """

    def __init__(self, beta: int = 1, shift: int = 2, threshold: int = 20) -> None:
        super().__init__()
        self.shift, self.softplus = shift, nn.Softplus(beta=beta, threshold=threshold)

    def forward(self, inputs: Tensor) -> Tensor:
        """Any shape -> the same."""
        return self.softplus(inputs) - math.log(float(self.shift))


class CFConv(nn.Module):
    """h'_i = phi(sum over edges e = j -> i of (W h_j) * psi(x_e)), with shifted softplus in the networks phi and psi.

    Nodes without incoming edges get phi(0). Source: Schütt et al., "SchNet: A continuous-filter convolutional neural
    network for modeling quantum interactions", NIPS 2017, section 3.

    >>> graph = gw.graph(([0, 1, 2], [1, 2, 2]))
    >>> CFConv(5, 2, 8, 4)(graph, torch.randn(3, 5), torch.randn(3, 2)).shape
    torch.Size([3, 4])
    """

    def __init__(self, node_in_feats: int, edge_in_feats: int, hidden_feats: int, out_feats: int) -> None:
        super().__init__()
        self.project_edge = nn.Sequential(
            nn.Linear(edge_in_feats, hidden_feats), ShiftedSoftplus(), nn.Linear(hidden_feats, hidden_feats),
            ShiftedSoftplus(),
        )  # fmt: skip
        self.project_node = nn.Linear(node_in_feats, hidden_feats)
        self.project_out = nn.Sequential(nn.Linear(hidden_feats, out_feats), ShiftedSoftplus())

    def forward(self, g: Graph, node_feats: Feat, edge_feats: Tensor) -> Tensor:
        """[N, node_in], or a pair, and [E, edge_in] -> [N_dst, out]."""
        src, _ = both_ends(node_feats, g)
        with g.local_scope():
            g.srcdata["hv"], g.edata["he"] = self.project_node(src), self.project_edge(edge_feats)
            g.update_all(fn.u_mul_e("hv", "he", "m"), fn.sum("m", "h"))
            out: Tensor = self.project_out(g.dstdata["h"])
            return out
