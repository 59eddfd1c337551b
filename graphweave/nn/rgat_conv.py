"""Relational graph attention (RGAT)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

import graphweave.function as fn
from graphweave.graph.graph import Graph
from graphweave.graph.softmax import edge_softmax, softmax
from graphweave.nn.ends import Attended, Feat, both_ends, one_of
from graphweave.nn.relations import checked_types, into_pairs
from graphweave.nn.typed_linear import Regularizer, TypedLinear
from graphweave.ops import gather_mm
from graphweave.udf import run
from graphweave.udf.arguments import EdgeBatch, NodeBatch

Attention = Literal["across-relation", "within-relation"]
"""Edges over which the softmax runs: all edges into a node, or those of the same relation."""

Scores = Literal["shared", "typed"]
"""Whether all relations share the score vectors, or each relation has its own."""


class RGATConv(nn.Module):
    """Relational graph attention: Busbridge et al., "Relational Graph Attention Networks", 2019
    (https://arxiv.org/abs/1904.05811), with additive scores.

    For each head, with r = r(ji) the relation of the edge and z_j = W_r h_j, z_i = W_r h_i:
    s_ji = leaky_relu(a_l . z_j + a_r . z_i),
    a_ji = softmax of s_ji over the edges into i,
    h'_i = activation(b + residual(h_i) + sum over edges j -> i of a_ji z_j).

    `in_feats`: features of nodes, equal at both ends. `out_feats`: features of each of `num_heads` heads, which are not
    joined: `.flatten(1)` concatenates, `.mean(1)` averages them. `regularizer`, `num_bases`: how W_r are tied
    (`TypedLinear`). `attention`: with "across-relation" the softmax runs over all edges into i (the paper's ARGAT);
    with "within-relation" it runs over those of the same relation (WIRGAT). `scores`: with "shared" (PyG's), a_l and
    a_r read the features of all heads and are the same for all relations; with "typed", each relation has its own
    vectors, which read only their own head (Hector, Wu et al., ASPLOS 2024, section 2). `feat_drop`, `attn_drop`: rates
    of the dropout of features and of attention. Other arguments are those of `GATConv`.

    Scores are computed as h_j (W_r a_l), so that z is needed only for the result. Nodes without incoming edges receive
    0 (bias and residual are added). A node attends to itself only through a self-loop, whose relation is treated like
    any other.

    >>> graph = gw.graph(([0, 1, 2], [1, 2, 2]))
    >>> RGATConv(5, 4, num_rels=2, num_heads=3)(graph, torch.randn(3, 5), torch.tensor([0, 1, 0])).shape
    torch.Size([3, 3, 4])
    """

    def __init__(
        self, in_feats: int, out_feats: int, num_rels: int, num_heads: int = 1, regularizer: Regularizer = None,
        num_bases: int | None = None, attention: Attention = "across-relation", scores: Scores = "shared",
        feat_drop: float = 0.0, attn_drop: float = 0.0, negative_slope: float = 0.2, residual: bool = False,
        activation: Callable[[Tensor], Tensor] | None = None, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        one_of("attention", attention, ("across-relation", "within-relation"))
        one_of("scores", scores, ("shared", "typed"))
        self.in_feats, self.out_feats, self.num_rels, self.num_heads = in_feats, out_feats, num_rels, num_heads
        self.attention, self.scores, self.negative_slope = attention, scores, negative_slope
        width = num_heads * out_feats
        self.linear_r = TypedLinear(in_feats, width, num_rels, regularizer, num_bases)
        shape = (width, num_heads) if scores == "shared" else (num_rels, num_heads, out_feats)
        self.attn_l, self.attn_r = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))
        self.feat_drop, self.attn_drop = nn.Dropout(feat_drop), nn.Dropout(attn_drop)
        linear = residual and in_feats != width
        self.res_fc = nn.Linear(in_feats, width, bias=False) if linear else nn.Identity() if residual else None
        self.bias = nn.Parameter(torch.empty(width)) if bias else None
        self.activation = activation
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """W_r as in `TypedLinear`; a_l, a_r and the residual's map are drawn from Glorot's normal distribution with the
        gain of a ReLU; b is 0."""
        gain = nn.init.calculate_gain("relu")
        self.linear_r.reset_parameters()
        for vectors in (self.attn_l, self.attn_r):
            nn.init.xavier_normal_(vectors, gain=gain)
        if isinstance(self.res_fc, nn.Linear):
            nn.init.xavier_normal_(self.res_fc.weight, gain=gain)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, graph: Graph, feat: Feat, etypes: Tensor, get_attention: bool = False) -> Attended:
        """[N, in], or a pair ([N_src, in], [N_dst, in]), and relations [E] -> [N_dst, heads, out].

        With `get_attention` the result is a pair: the features and the attention [E, heads, 1], after dropout.
        """
        checked_types("etypes", etypes, graph.num_edges(), "edges")
        src, dst = both_ends(feat, graph)
        src = self.feat_drop(src)
        dst = self.feat_drop(dst) if isinstance(feat, tuple) else both_ends(src, graph)[1]
        with graph.local_scope():
            graph.srcdata["h"], graph.dstdata["h_dst"], graph.edata["type"] = src, dst, etypes
            attention = None
            if get_attention or self.attention == "within-relation":
                graph.apply_edges(self._score)
                graph.edata["a"] = attention = self._dropped(self._normalized(graph, etypes))
                graph.update_all(self._weighted, fn.sum("m", "h"))
            else:
                graph.update_all(self._message, self._reduce)
            x = graph.dstdata["h"]
        shape = (-1, self.num_heads, self.out_feats)
        if self.res_fc is not None:
            x = x + self.res_fc(dst).view(shape)
        if self.bias is not None:
            x = x + self.bias.view(shape)
        x = x if self.activation is None else self.activation(x)
        return (x, attention) if get_attention else x

    def _score_weight(self, attn: Tensor) -> Tensor:
        """W_r a of each relation and head, [R, in, heads]."""
        weight = self.linear_r.get_weight()
        if self.scores == "typed":  # one column for each head, which is 0 at the features of other heads
            own = torch.eye(self.num_heads, dtype=attn.dtype, device=attn.device).unsqueeze(1)
            attn = (attn.unsqueeze(-1) * own).flatten(1, 2)
        if weight.dim() == 3:
            return weight @ attn
        return (weight @ attn.unflatten(-2, (weight.shape[1], -1))).flatten(1, 2)

    def _score(self, edges: EdgeBatch) -> dict[str, Tensor]:
        etype = edges.data["type"]
        left = gather_mm(edges.src["h"], self._score_weight(self.attn_l), idx_b=etype)
        right = gather_mm(edges.dst["h_dst"], self._score_weight(self.attn_r), idx_b=etype)
        return {"e": functional.leaky_relu(left + right, self.negative_slope).unsqueeze(-1)}

    def _sent(self, edges: EdgeBatch) -> Tensor:
        return self.linear_r(edges.src["h"], edges.data["type"]).view(-1, self.num_heads, self.out_feats)

    def _message(self, edges: EdgeBatch) -> dict[str, Tensor]:
        return {"z": self._sent(edges), **self._score(edges)}

    def _reduce(self, nodes: NodeBatch) -> dict[str, Tensor]:
        a = self._dropped(nodes.mailbox["e"].softmax(1))
        return {"h": (a * nodes.mailbox["z"]).sum(1)}

    def _weighted(self, edges: EdgeBatch) -> dict[str, Tensor]:
        return {"m": edges.data["a"] * self._sent(edges)}

    def _normalized(self, graph: Graph, etypes: Tensor) -> Tensor:
        """The softmax of the scores `e`, [E, heads, 1]."""
        if self.attention == "within-relation":
            pair, counts = into_pairs(graph, etypes, self.num_rels)
            out: Tensor = run.call(softmax, graph.edata["e"], pair, counts.new_empty((counts.shape[0], 0)))
        else:
            out = edge_softmax(graph, graph.edata["e"])
        return out

    def _dropped(self, a: Tensor) -> Tensor:
        """The attention after its dropout. A rate of 0 is left out, so that no kernel depends on the training mode."""
        return self.attn_drop(a) if self.attn_drop.p > 0 else a

    def extra_repr(self) -> str:
        return f"{self.in_feats}, {self.out_feats}, num_rels={self.num_rels}, num_heads={self.num_heads}"
