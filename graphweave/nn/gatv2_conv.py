"""Graph attention whose scores see both ends before the nonlinearity (GATv2)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

import graphweave.function as fn
from graphweave.graph.graph import Graph
from graphweave.graph.softmax import edge_softmax
from graphweave.nn.ends import Attended, Feat, Width, both_ends, both_widths, reset_glorot
from graphweave.udf.arguments import EdgeBatch, NodeBatch


class GATv2Conv(nn.Module):
    """Dynamic graph attention: Brody, Alon and Yahav, "How Attentive are Graph Attention Networks?", ICLR 2022
    (https://arxiv.org/abs/2105.14491).

    For each head, with l = W_l h and r = W_r h (biases included):
    s_ji = a . leaky_relu(l_j + r_i),
    a_ji = softmax of s_ji over the edges into i,
    h'_i = activation(residual(h_i) + sum over edges j -> i of a_ji l_j).

    `in_feats`: a number, or a pair (of sources, of destinations). `out_feats`: features of each of `num_heads` heads,
    which are not joined: `.flatten(1)` concatenates them. `share_weights`: W_r is W_l, which needs equal widths.
    `residual`: adds h_i, or a linear map of it if widths differ. `bias`: whether the linear maps have biases. Other
    arguments are `GATConv`'s.

    Nodes without incoming edges receive 0 (the residual is added). A node attends to itself only through a self-loop,
    so add self-loops (`graphweave.add_self_loop`), as the paper does.

    >>> graph = gw.add_self_loop(gw.graph(([0, 1, 2], [1, 2, 2])))
    >>> GATv2Conv(5, 4, num_heads=2)(graph, torch.randn(3, 5)).shape
    torch.Size([3, 2, 4])
    """

    def __init__(
        self, in_feats: Width, out_feats: int, num_heads: int, feat_drop: float = 0.0, attn_drop: float = 0.0,
        negative_slope: float = 0.2, residual: bool = False, activation: Callable[[Tensor], Tensor] | None = None,
        allow_zero_in_degree: bool = False, bias: bool = True, share_weights: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.in_src, self.in_dst = both_widths(in_feats)
        self.out_feats, self.num_heads, self.negative_slope = out_feats, num_heads, negative_slope
        width = num_heads * out_feats
        self.fc_src = nn.Linear(self.in_src, width, bias=bias)
        self.fc_dst = self.fc_src if share_weights else nn.Linear(self.in_dst, width, bias=bias)
        self.attn = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.feat_drop, self.attn_drop = nn.Dropout(feat_drop), nn.Dropout(attn_drop)
        linear = residual and self.in_dst != width
        self.res_fc = nn.Linear(self.in_dst, width, bias=bias) if linear else nn.Identity() if residual else None
        self.activation = activation
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights are drawn from Glorot's normal distribution with the gain of a ReLU; biases are 0."""
        reset_glorot(self, self.attn)

    def forward(self, graph: Graph, feat: Feat, get_attention: bool = False) -> Attended:
        """[N, in], or a pair ([N_src, in_src], [N_dst, in_dst]) -> [N_dst, heads, out].

        With `get_attention` the result is a pair: the features and the attention [E, heads, 1], after dropout.
        """
        src, dst = both_ends(feat, graph)
        src = self.feat_drop(src)
        dst = self.feat_drop(dst) if isinstance(feat, tuple) else both_ends(src, graph)[1]
        shape = (-1, self.num_heads, self.out_feats)
        with graph.local_scope():
            graph.srcdata["l"] = self.fc_src(src).view(shape)
            graph.dstdata["r"] = self.fc_dst(dst).view(shape)
            if get_attention:
                graph.apply_edges(self._score)
                graph.edata["a"] = self._dropped(edge_softmax(graph, graph.edata["e"]))
                graph.update_all(fn.u_mul_e("l", "a", "m"), fn.sum("m", "h"))
            else:
                graph.update_all(self._message, self._reduce)
            x = graph.dstdata["h"]
            attention = graph.edata["a"] if get_attention else None
        if self.res_fc is not None:
            x = x + self.res_fc(dst).view(shape)
        x = x if self.activation is None else self.activation(x)
        return (x, attention) if get_attention else x

    def _score(self, edges: EdgeBatch) -> dict[str, Tensor]:
        sides = functional.leaky_relu(edges.src["l"] + edges.dst["r"], self.negative_slope)
        return {"e": (sides * self.attn).sum(-1, keepdim=True)}

    def _message(self, edges: EdgeBatch) -> dict[str, Tensor]:
        return {"l": edges.src["l"], **self._score(edges)}

    def _reduce(self, nodes: NodeBatch) -> dict[str, Tensor]:
        a = self._dropped(nodes.mailbox["e"].softmax(1))
        return {"h": (a * nodes.mailbox["l"]).sum(1)}

    def _dropped(self, a: Tensor) -> Tensor:
        """The attention after its dropout. A rate of 0 is left out, so that no kernel depends on the training mode."""
        return self.attn_drop(a) if self.attn_drop.p > 0 else a

    def extra_repr(self) -> str:
        return f"{self.in_src}, {self.out_feats}, num_heads={self.num_heads}"
