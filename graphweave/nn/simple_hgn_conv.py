"""Graph attention with types of edges in its scores (Simple-HGN)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import graphweave.function as fn
from graphweave.graph.graph import Graph
from graphweave.graph.softmax import edge_softmax
from graphweave.nn.ends import Attended, Feat, Width, both_ends, both_widths, reset_glorot
from graphweave.nn.relations import checked_types
from graphweave.udf.arguments import EdgeBatch, NodeBatch


class SimpleHGNConv(nn.Module):
    """Graph attention with types of edges in its scores: Lv et al., "Are we really making much progress? Revisiting,
    benchmarking, and refining heterogeneous graph neural networks", KDD 2021 (https://arxiv.org/abs/2112.14936).

    For each head, with z = W h and u_r = W_e e_r for the embedding e_r of the type r of an edge:
    s_ji = leaky_relu(a_l . z_j + a_r . z_i + a_e . u_r(ji)),
    a_ji = (1 - beta) times the softmax of s_ji over the edges into i + beta a'_ji, a' the previous layer's attention,
    h'_i = activation(b + residual(h_i) + sum over edges j -> i of a_ji z_j), divided by its length if `normalize`.

    `in_feats`: a number, or a pair (of sources, of destinations), each of which then has its own W. `out_feats`:
    features of each of `num_heads` heads, which are not joined. `num_etypes`: number of edge types. `edge_feats`:
    features of e_r, and of u_r in each head. `feat_drop`, `attn_drop`: rates of the dropout of features and of
    attention. `residual`: adds h_i, or a linear map of it if widths differ. `beta`: the share of a', if the call passes
    it. `normalize`: each head is divided by its L2 norm, as in the paper's last layer; a result of 0 stays 0.

    Nodes without incoming edges receive 0 (bias and residual are added). A node attends to itself only through a
    self-loop; the paper adds self-loops as a separate edge type.

    >>> graph = gw.graph(([0, 1, 2], [1, 2, 2]))
    >>> conv = SimpleHGNConv(5, 4, num_heads=2, num_etypes=3, edge_feats=6)
    >>> conv(graph, torch.randn(3, 5), torch.tensor([0, 1, 2])).shape
    torch.Size([3, 2, 4])
    """

    def __init__(
        self, in_feats: Width, out_feats: int, num_heads: int, num_etypes: int, edge_feats: int,
        feat_drop: float = 0.0, attn_drop: float = 0.0, negative_slope: float = 0.2, residual: bool = False,
        activation: Callable[[Tensor], Tensor] | None = None, bias: bool = False, beta: float = 0.05,
        normalize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.in_src, self.in_dst = both_widths(in_feats)
        self.out_feats, self.num_heads, self.num_etypes, self.edge_feats = out_feats, num_heads, num_etypes, edge_feats
        self.negative_slope, self.beta, self.normalize = negative_slope, beta, normalize
        width = num_heads * out_feats
        self.fc = nn.Linear(self.in_src, width, bias=False)
        self.fc_dst = nn.Linear(self.in_dst, width, bias=False) if isinstance(in_feats, tuple) else self.fc
        self.edge_emb = nn.Parameter(torch.empty(num_etypes, edge_feats))
        self.fc_e = nn.Linear(edge_feats, num_heads * edge_feats, bias=False)
        self.attn_l, self.attn_r = (nn.Parameter(torch.empty(1, num_heads, out_feats)) for _ in range(2))
        self.attn_e = nn.Parameter(torch.empty(1, num_heads, edge_feats))
        self.feat_drop, self.attn_drop = nn.Dropout(feat_drop), nn.Dropout(attn_drop)
        linear = residual and self.in_dst != width
        self.res_fc = nn.Linear(self.in_dst, width, bias=False) if linear else nn.Identity() if residual else None
        self.bias = nn.Parameter(torch.empty(width)) if bias else None
        self.activation = activation
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights are drawn from Glorot's normal distribution with the gain of a ReLU, embeddings of types from the
        standard normal distribution; b is 0."""
        reset_glorot(self, self.attn_l, self.attn_r, self.attn_e)
        nn.init.normal_(self.edge_emb)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self, graph: Graph, feat: Feat, etypes: Tensor, res_attn: Tensor | None = None, get_attention: bool = False
    ) -> Attended:
        """[N, in], or a pair ([N_src, in_src], [N_dst, in_dst]), and types of edges [E] -> [N_dst, heads, out].

        `res_attn` [E, heads, 1]: the attention a' of the previous layer. With `get_attention` the result is a pair: the
        features and the attention a [E, heads, 1], after dropout, which the next layer takes.
        """
        checked_types("etypes", etypes, graph.num_edges(), "edges")
        src, dst = both_ends(feat, graph)
        src = self.feat_drop(src)
        dst = self.feat_drop(dst) if isinstance(feat, tuple) else both_ends(src, graph)[1]
        shape = (-1, self.num_heads, self.out_feats)
        z = self.fc(src).view(shape)
        z_dst = z if src is dst and self.fc is self.fc_dst else self.fc_dst(dst).view(shape)
        with graph.local_scope():
            graph.srcdata["z"], graph.edata["type"] = z, etypes
            graph.srcdata["el"] = (z * self.attn_l).sum(-1, keepdim=True)
            graph.dstdata["er"] = (z_dst * self.attn_r).sum(-1, keepdim=True)
            if res_attn is not None:
                graph.edata["before"] = res_attn
            attention = self._attend(graph, res_attn is not None, get_attention)
            x = graph.dstdata["h"]
        if self.res_fc is not None:
            x = x + self.res_fc(dst).view(shape)
        if self.bias is not None:
            x = x + self.bias.view(shape)
        x = x if self.activation is None else self.activation(x)
        x = functional.normalize(x, dim=-1) if self.normalize else x
        return (x, attention) if get_attention else x

    def _attend(self, graph: Graph, mixed: bool, get_attention: bool) -> Tensor | None:
        """Set `h` of destinations from `z`, `el`, `er` and, if `mixed`, `before`. Returns the attention on request."""
        if get_attention:
            graph.apply_edges(self._score)
            a = edge_softmax(graph, graph.edata["e"])
            graph.edata["a"] = self._finished(a, graph.edata["before"] if mixed else None)
            graph.update_all(fn.u_mul_e("z", "a", "m"), fn.sum("m", "h"))
            attention: Tensor = graph.edata["a"]
            return attention

        def message(edges: EdgeBatch) -> dict[str, Tensor]:
            sent = {"z": edges.src["z"], **self._score(edges)}
            return {**sent, "before": edges.data["before"]} if mixed else sent

        def reduce(nodes: NodeBatch) -> dict[str, Tensor]:
            a = self._finished(nodes.mailbox["e"].softmax(1), nodes.mailbox["before"] if mixed else None)
            return {"h": (a * nodes.mailbox["z"]).sum(1)}

        graph.update_all(message, reduce)
        return None

    def _score(self, edges: EdgeBatch) -> dict[str, Tensor]:
        u = self.fc_e(self.edge_emb).view(-1, self.num_heads, self.edge_feats)
        of_type = (u * self.attn_e).sum(-1, keepdim=True).index_select(0, edges.data["type"])
        return {"e": functional.leaky_relu(edges.src["el"] + edges.dst["er"] + of_type, self.negative_slope)}

    def _finished(self, a: Any, before: Any) -> Any:
        """The attention after its dropout, mixed with that of the previous layer. A rate of 0 is left out, so that no
        kernel depends on the training mode."""
        a = self.attn_drop(a) if self.attn_drop.p > 0 else a
        return a if before is None else a * (1 - self.beta) + before * self.beta

    def extra_repr(self) -> str:
        return f"{self.in_src}, {self.out_feats}, num_heads={self.num_heads}, num_etypes={self.num_etypes}"
