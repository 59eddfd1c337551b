"""Attention by dot products of both ends."""

from __future__ import annotations

from torch import Tensor, nn

import graphweave.function as fn
from graphweave.graph.graph import Graph
from graphweave.graph.softmax import edge_softmax
from graphweave.nn.ends import Attended, Feat, Width, both_ends, both_widths


class DotGatConv(nn.Module):
    """h'_i = sum over edges j -> i of a_ji W h_j, a_ji = softmax over the edges into i of <W h_j, W h_i> / sqrt(out).

    For each head. With a pair of `in_feats` sources and destinations have matrices of their own.
    `allow_zero_in_degree`: DGL's argument, without effect; nodes without incoming edges get 0. Source: Lim et al.,
    "Predicting Drug-Target Interaction Using a Novel Graph Neural Network with 3D Structure-Embedded Graph
    Representation", 2019.

    >>> graph = gw.graph(([0, 1, 2], [1, 2, 2]))
    >>> DotGatConv(5, 4, num_heads=2)(graph, torch.randn(3, 5)).shape
    torch.Size([3, 2, 4])
    """

    def __init__(self, in_feats: Width, out_feats: int, num_heads: int, allow_zero_in_degree: bool = False) -> None:
        super().__init__()
        self.out_feats, self.num_heads = out_feats, num_heads
        self.in_src, self.in_dst = both_widths(in_feats)
        if isinstance(in_feats, tuple):
            self.fc_src = nn.Linear(self.in_src, out_feats * num_heads, bias=False)
            self.fc_dst = nn.Linear(self.in_dst, out_feats * num_heads, bias=False)
        else:
            self.fc = nn.Linear(self.in_src, out_feats * num_heads, bias=False)

    def forward(self, graph: Graph, feat: Feat, get_attention: bool = False) -> Attended:
        """[N, in], or a pair -> [N_dst, heads, out]; with `get_attention` also a, [E, heads, 1]."""
        src, dst = both_ends(feat, graph)
        own = not hasattr(self, "fc")
        src = self._heads(self.fc_src(src) if own else self.fc(src))
        dst = self._heads(self.fc_dst(dst) if own else self.fc(dst))
        with graph.local_scope():
            graph.srcdata["h"], graph.dstdata["q"] = src, dst
            graph.apply_edges(fn.u_dot_v("h", "q", "s"))
            graph.edata["a"] = edge_softmax(graph, graph.edata["s"] / self.out_feats**0.5)
            graph.update_all(fn.u_mul_e("h", "a", "m"), fn.sum("m", "out"))
            out = graph.dstdata["out"]
            return (out, graph.edata["a"]) if get_attention else out

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(-1, self.num_heads, self.out_feats)
