"""Attention from both ends and edge features, which are part of the messages."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

import graphweave.function as fn
from graphweave.graph.graph import Graph
from graphweave.graph.softmax import edge_softmax
from graphweave.nn.ends import Attended, Feat, Width, both_ends, both_widths, reset_glorot
from graphweave.udf.arguments import EdgeBatch


class EdgeGATConv(nn.Module):
    """h'_i = sum over edges e = j -> i of a_e (W h_j + W_e f_e), + W_res h_i, + b, for each head.

    a_e is the softmax over the edges into i of leaky_relu(<l, W h_j> + <r, W h_i> + <v, W_e f_e>). `residual`: adds
    W_res h_i, or h_i where widths are equal. `allow_zero_in_degree`: DGL's argument, without effect; without incoming
    edges the sum is 0. Source: Monninger et al., "SCENE: Reasoning about Traffic Scenes using Heterogeneous Graph
    Neural Networks", IEEE Robotics and Automation Letters 2023.

    >>> graph = gw.graph(([0, 1, 2], [1, 2, 2]))
    >>> EdgeGATConv(5, 2, 4, num_heads=3)(graph, torch.randn(3, 5), torch.randn(3, 2)).shape
    torch.Size([3, 3, 4])
    """

    def __init__(
        self, in_feats: Width, edge_feats: int, out_feats: int, num_heads: int, feat_drop: float = 0.0,
        attn_drop: float = 0.0, negative_slope: float = 0.2, residual: bool = True,
        activation: Callable[[Tensor], Tensor] | None = None, allow_zero_in_degree: bool = False, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_heads, self.out_feats, self.slope, self.activation = num_heads, out_feats, negative_slope, activation
        self.in_src, self.in_dst = both_widths(in_feats)
        width = out_feats * num_heads
        if isinstance(in_feats, tuple):
            self.fc_src = nn.Linear(self.in_src, width, bias=False)
            self.fc_dst = nn.Linear(self.in_dst, width, bias=False)
        else:
            self.fc = nn.Linear(self.in_src, width, bias=False)
        self.fc_edge = nn.Linear(edge_feats, width, bias=False)
        shape = (1, num_heads, out_feats)
        self.attn_l, self.attn_r, self.attn_edge = (nn.Parameter(torch.empty(shape)) for _ in range(3))
        self.feat_drop, self.attn_drop = nn.Dropout(feat_drop), nn.Dropout(attn_drop)
        self.res_fc: nn.Module | None = None
        if residual:
            self.res_fc = nn.Identity() if self.in_dst == width else nn.Linear(self.in_dst, width, bias=False)
        self.bias = nn.Parameter(torch.empty(width)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights are drawn from Glorot's normal distribution with the gain of a ReLU; b is 0."""
        reset_glorot(self, self.attn_l, self.attn_r, self.attn_edge)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, graph: Graph, feat: Feat, edge_feat: Tensor, get_attention: bool = False) -> Attended:
        """[N, in], or a pair, and [E, edge] -> [N_dst, heads, out]; with `get_attention` also a, [E, heads, 1]."""
        src, dst = both_ends(feat, graph)
        src, dst = self.feat_drop(src), self.feat_drop(dst)
        own = not hasattr(self, "fc")
        of_src = self._heads(self.fc_src(src) if own else self.fc(src))
        of_dst = self._heads(self.fc_dst(dst) if own else self.fc(dst))
        of_edge = self._heads(self.fc_edge(edge_feat))
        with graph.local_scope():
            graph.srcdata["h"], graph.edata["f"] = of_src, of_edge
            graph.srcdata["el"] = (of_src * self.attn_l).sum(-1, keepdim=True)
            graph.dstdata["er"] = (of_dst * self.attn_r).sum(-1, keepdim=True)
            graph.apply_edges(fn.u_add_v("el", "er", "e"))
            score = graph.edata["e"] + (of_edge * self.attn_edge).sum(-1, keepdim=True)
            graph.edata["a"] = self.attn_drop(edge_softmax(graph, functional.leaky_relu(score, self.slope)))
            graph.update_all(_message, fn.sum("m", "out"))
            out, a = graph.dstdata["out"], graph.edata["a"]
        if self.res_fc is not None:
            out = out + self._heads(self.res_fc(dst))
        if self.bias is not None:
            out = out + self.bias.view(1, self.num_heads, self.out_feats)
        out = out if self.activation is None else self.activation(out)
        return (out, a) if get_attention else out

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(-1, self.num_heads, self.out_feats)


def _message(edges: EdgeBatch) -> dict[str, Tensor]:
    return {"m": (edges.src["h"] + edges.data["f"]) * edges.data["a"]}
