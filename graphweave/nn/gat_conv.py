"""Graph attention (GAT)."""

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


class GATConv(nn.Module):
    """Graph attention: Velickovic et al., "Graph Attention Networks", ICLR 2018 (https://arxiv.org/abs/1710.10903).

    For each head, with z = W h:
    s_ji = leaky_relu(a_l . z_j + a_r . z_i),
    a_ji = w_ji times the softmax of s_ji over the edges into i, w_ji = 1 without edge weights,
    h'_i = activation(b + residual(h_i) + sum over edges j -> i of a_ji z_j).

    `in_feats`: a number, or a pair (of sources, of destinations), each of which then has its own W. `out_feats`:
    features of each of `num_heads` heads, which are not joined: `.flatten(1)` concatenates, `.mean(1)` averages them.
    `feat_drop`, `attn_drop`: rates of the dropout of features and of attention. `negative_slope`: of the leaky ReLU.
    `residual`: adds h_i, or, if widths differ, a linear map of it, which then has the bias. `activation`: function of
    the result. `allow_zero_in_degree`: DGL's argument, without effect.

    Nodes without incoming edges receive 0 (bias and residual are added). A node attends to itself only through a
    self-loop, so add self-loops (`graphweave.add_self_loop`), as the paper does.

    >>> graph = gw.add_self_loop(gw.graph(([0, 1, 2], [1, 2, 2])))
    >>> GATConv(5, 4, num_heads=2)(graph, torch.randn(3, 5)).shape
    torch.Size([3, 2, 4])
    """

    def __init__(
        self, in_feats: Width, out_feats: int, num_heads: int, feat_drop: float = 0.0, attn_drop: float = 0.0,
        negative_slope: float = 0.2, residual: bool = False, activation: Callable[[Tensor], Tensor] | None = None,
        allow_zero_in_degree: bool = False, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.in_src, self.in_dst = both_widths(in_feats)
        self.out_feats, self.num_heads, self.negative_slope = out_feats, num_heads, negative_slope
        width = num_heads * out_feats
        if isinstance(in_feats, tuple):
            self.fc_src = nn.Linear(self.in_src, width, bias=False)
            self.fc_dst = nn.Linear(self.in_dst, width, bias=False)
        else:
            self.fc = nn.Linear(self.in_src, width, bias=False)
        self.pair = isinstance(in_feats, tuple)
        self.attn_l = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.attn_r = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.feat_drop, self.attn_drop = nn.Dropout(feat_drop), nn.Dropout(attn_drop)
        linear = residual and self.in_dst != width
        self.res_fc = nn.Linear(self.in_dst, width, bias=bias) if linear else nn.Identity() if residual else None
        self.bias = nn.Parameter(torch.empty(width)) if bias and not linear else None
        self.activation = activation
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights are drawn from Glorot's normal distribution with the gain of a ReLU; biases are 0."""
        reset_glorot(self, self.attn_l, self.attn_r)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self, graph: Graph, feat: Feat, edge_weight: Tensor | None = None, get_attention: bool = False
    ) -> Attended:
        """[N, in], or a pair ([N_src, in_src], [N_dst, in_dst]) -> [N_dst, heads, out].

        `edge_weight` [E] multiplies the attention. With `get_attention` the result is a pair: the features and the
        attention [E, heads, 1], after dropout and with edge weights.
        """
        z_src, z_dst, h_dst = self._projected(graph, feat)
        with graph.local_scope():
            graph.srcdata["z"] = z_src
            graph.srcdata["el"], graph.dstdata["er"] = self._halves(z_src, z_dst)
            if edge_weight is not None:
                graph.edata["w"] = edge_weight.reshape(-1, 1, 1)
            attention = self._attend(graph, edge_weight is not None, get_attention)
            out = self._finished(graph.dstdata["h"], h_dst)
        return (out, attention) if get_attention else out

    def _projected(self, graph: Graph, feat: Feat) -> tuple[Tensor, Tensor, Tensor]:
        """z of sources and of destinations, [N, heads, out], and the features of destinations after dropout."""
        src, dst = both_ends(feat, graph)
        src = self.feat_drop(src)
        dst = self.feat_drop(dst) if isinstance(feat, tuple) else both_ends(src, graph)[1]
        shape = (-1, self.num_heads, self.out_feats)
        if self.pair:
            return self.fc_src(src).view(shape), self.fc_dst(dst).view(shape), dst
        z = self.fc(src).view(shape)
        return z, self.fc(dst).view(shape) if isinstance(feat, tuple) else both_ends(z, graph)[1], dst

    def _halves(self, z_src: Tensor, z_dst: Tensor) -> tuple[Tensor, Tensor]:
        """The summands of the scores: a_l . z [N_src, heads, 1] and a_r . z [N_dst, heads, 1]."""
        return (z_src * self.attn_l).sum(-1, keepdim=True), (z_dst * self.attn_r).sum(-1, keepdim=True)

    def _score(self, edges: EdgeBatch) -> dict[str, Tensor]:
        return {"e": functional.leaky_relu(edges.src["el"] + edges.dst["er"], self.negative_slope)}

    def _attend(self, graph: Graph, weighted: bool, get_attention: bool) -> Tensor | None:
        """Set `h` of destinations from `z`, `el`, `er` and, if `weighted`, `w`. Returns the attention on request."""
        if get_attention:
            graph.apply_edges(self._score)
            a = self._dropped(edge_softmax(graph, graph.edata["e"]))
            graph.edata["a"] = a * graph.edata["w"] if weighted else a
            graph.update_all(fn.u_mul_e("z", "a", "m"), fn.sum("m", "h"))
            attention: Tensor = graph.edata["a"]
            return attention

        def message(edges: EdgeBatch) -> dict[str, Tensor]:
            sent = {"z": edges.src["z"], **self._score(edges)}
            return {**sent, "w": edges.data["w"]} if weighted else sent

        def reduce(nodes: NodeBatch) -> dict[str, Tensor]:
            a = self._dropped(nodes.mailbox["e"].softmax(1))
            a = a * nodes.mailbox["w"] if weighted else a
            return {"h": (a * nodes.mailbox["z"]).sum(1)}

        graph.update_all(message, reduce)
        return None

    def _dropped(self, a: Tensor) -> Tensor:
        """The attention after its dropout. A rate of 0 is left out, so that no kernel depends on the training mode."""
        return self.attn_drop(a) if self.attn_drop.p > 0 else a

    def _finished(self, x: Tensor, h_dst: Tensor) -> Tensor:
        if self.res_fc is not None:
            x = x + self.res_fc(h_dst).view(-1, self.num_heads, self.out_feats)
        if self.bias is not None:
            x = x + self.bias.view(1, self.num_heads, self.out_feats)
        return x if self.activation is None else self.activation(x)

    def extra_repr(self) -> str:
        return f"{self.in_src}, {self.out_feats}, num_heads={self.num_heads}"
