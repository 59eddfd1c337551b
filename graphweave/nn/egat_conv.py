"""Attention from both ends and from edge features, which the layer computes anew (EGAT)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

import graphweave.function as fn
from graphweave.graph.graph import Graph
from graphweave.graph.softmax import edge_softmax
from graphweave.nn.ends import Attended, Feat, Width, both_ends, both_widths, reset_glorot


class EGATConv(nn.Module):
    """f'_e = leaky_relu(A h_j + B h_i + C f_e + b), h'_i = sum over edges e = j -> i of a_e W h_j, for each head.

    a_e is the softmax over the edges into i of <v, f'_e>. Nodes without incoming edges get 0. `bias`: False leaves b
    out. `out_edge_feats` numbers of each edge and head are stored, since they are a result. Source: Kamiński et al.,
    "Rossmann-toolbox: a deep learning-based protocol for the prediction and design of cofactor specificity in Rossmann
    fold proteins", Briefings in Bioinformatics 2022.

    >>> graph = gw.graph(([0, 1, 2], [1, 2, 2]))
    >>> nodes, edges = EGATConv(5, 3, 4, 2, num_heads=2)(graph, torch.randn(3, 5), torch.randn(3, 3))
    >>> nodes.shape, edges.shape
    (torch.Size([3, 2, 4]), torch.Size([3, 2, 2]))
    """

    def __init__(
        self, in_node_feats: Width, in_edge_feats: int, out_node_feats: int, out_edge_feats: int, num_heads: int,
        bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_heads, self.out_node_feats, self.out_edge_feats = num_heads, out_node_feats, out_edge_feats
        self.in_src, self.in_dst = both_widths(in_node_feats)
        self.fc_node_src = nn.Linear(self.in_src, out_node_feats * num_heads)
        self.fc_ni = nn.Linear(self.in_src, out_edge_feats * num_heads, bias=False)
        self.fc_nj = nn.Linear(self.in_dst, out_edge_feats * num_heads, bias=False)
        self.fc_fij = nn.Linear(in_edge_feats, out_edge_feats * num_heads, bias=False)
        self.attn = nn.Parameter(torch.empty(1, num_heads, out_edge_feats))
        self.bias = nn.Parameter(torch.empty(num_heads * out_edge_feats)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights are drawn from Glorot's normal distribution with the gain of a ReLU; biases are 0."""
        reset_glorot(self, self.attn)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self, graph: Graph, nfeats: Feat, efeats: Tensor, edge_weight: Tensor | None = None, get_attention: bool = False
    ) -> Attended:
        """[N, in], or a pair, and [E, in_edge] -> ([N_dst, heads, out], [E, heads, out_edge]); with `get_attention`
        also a, [E, heads, 1]. `edge_weight` [E] multiplies a."""
        src, dst = both_ends(nfeats, graph)
        with graph.local_scope():
            graph.srcdata["f_ni"], graph.dstdata["f_nj"] = self.fc_ni(src), self.fc_nj(dst)
            graph.srcdata["h"] = self.fc_node_src(src).view(-1, self.num_heads, self.out_node_feats)
            graph.apply_edges(fn.u_add_v("f_ni", "f_nj", "f"))
            f = graph.edata["f"] + self.fc_fij(efeats)
            f = functional.leaky_relu(f if self.bias is None else f + self.bias)
            f = f.view(-1, self.num_heads, self.out_edge_feats)
            a = edge_softmax(graph, (f * self.attn).sum(-1, keepdim=True))
            graph.edata["a"] = a if edge_weight is None else a * edge_weight.view(-1, 1, 1)
            graph.update_all(fn.u_mul_e("h", "a", "m"), fn.sum("m", "out"))
            out = graph.dstdata["out"]
            return (out, f, graph.edata["a"]) if get_attention else (out, f)
