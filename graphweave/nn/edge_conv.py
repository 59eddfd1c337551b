"""Edge convolution with a linear message (DGCNN)."""

from __future__ import annotations

from torch import Tensor, nn

import graphweave.function as fn
from graphweave.graph.graph import Graph
from graphweave.nn.ends import Feat, both_ends
from graphweave.udf.arguments import EdgeBatch


class EdgeConv(nn.Module):
    """Edge convolution: Wang et al., "Dynamic Graph CNN for Learning on Point Clouds", ACM Transactions on Graphics
    2019 (https://arxiv.org/abs/1801.07829).

    h'_i = max over edges j -> i of theta(h_j - h_i) + phi(h_i), with linear maps theta and phi. `EdgeMLPConv` takes any
    network in their place. (DGL 2.1 documents this formula and computes theta(h_i - h_j): negate `theta.weight` of a
    model that was trained with it.)

    `in_feat`, `out_feat`: numbers of features of h and h'. `batch_norm`: messages are normalised over all edges before
    the maximum. `allow_zero_in_degree`: DGL's argument, without effect.

    Nodes without incoming edges get 0. A self-loop is the message phi(h_i); the paper's graphs of nearest neighbours
    have self-loops.

    >>> graph = gw.graph(([0, 1, 2], [1, 2, 2]))
    >>> EdgeConv(5, 4)(graph, torch.randn(3, 5)).shape
    torch.Size([3, 4])
    """

    def __init__(
        self, in_feat: int, out_feat: int, batch_norm: bool = False, allow_zero_in_degree: bool = False
    ) -> None:
        super().__init__()
        self.theta, self.phi = nn.Linear(in_feat, out_feat), nn.Linear(in_feat, out_feat)
        self.batch_norm = batch_norm
        if batch_norm:
            self.bn = nn.BatchNorm1d(out_feat)

    def forward(self, g: Graph, feat: Feat) -> Tensor:
        """[N, in], or a pair ([N_src, in], [N_dst, in]) -> [N_dst, out]."""
        src, dst = both_ends(feat, g)
        with g.local_scope():
            g.srcdata["x"], g.dstdata["x_dst"] = src, dst
            g.update_all(self._message, fn.max("m", "h"))
            out: Tensor = g.dstdata["h"]
        return out

    def _message(self, edges: EdgeBatch) -> dict[str, Tensor]:
        m = self.theta(edges.src["x"] - edges.dst["x_dst"]) + self.phi(edges.dst["x_dst"])
        return {"m": self.bn(m) if self.batch_norm else m}
