"""Heterogeneous graph transformer (HGT)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from graphweave.graph.graph import Graph
from graphweave.nn.ends import Feat, both_ends
from graphweave.nn.relations import checked_types
from graphweave.nn.typed_linear import TypedLinear
from graphweave.ops import gather_mm
from graphweave.udf.arguments import EdgeBatch, NodeBatch


class HGTConv(nn.Module):
    """Heterogeneous graph transformer: Hu et al., "Heterogeneous Graph Transformer", WWW 2020
    (https://arxiv.org/abs/2003.01332).

    For each head, with t(i) the type of a node, r = r(ji) the type of an edge, and k = K_t h, q = Q_t h, v = V_t h:
    a_ji = softmax of (k_j A_r . q_i) mu_r / sqrt(head_size) over the edges into i,
    m_i = sum over edges j -> i of a_ji v_j M_r,
    h'_i = norm(alpha dropout(O_t(i) activation(m_i)) + (1 - alpha) h_i), alpha = sigmoid(skip_t(i)),
    where h_i is mapped linearly if widths differ.

    `in_size`: features of nodes. The result has `num_heads` heads of `head_size`, joined. `num_ntypes`, `num_etypes`:
    numbers of types. `dropout`: rate of the dropout. `use_norm`: a layer norm of the result. `activation`: function of
    m_i. The paper has one, DGL has none (None), and PyG uses GELU.

    Nodes without incoming edges have m_i = 0. No self-loops are needed: the node itself is in the formula.

    >>> graph, types = gw.graph(([0, 1, 2], [1, 2, 2])), torch.tensor([0, 1, 1])
    >>> HGTConv(5, 4, num_heads=2, num_ntypes=2, num_etypes=3)(graph, torch.randn(3, 5), types, types).shape
    torch.Size([3, 8])
    """

    def __init__(
        self, in_size: int, head_size: int, num_heads: int, num_ntypes: int, num_etypes: int, dropout: float = 0.2,
        use_norm: bool = False, *, activation: Callable[[Tensor], Tensor] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.in_size, self.head_size, self.num_heads = in_size, head_size, num_heads
        self.num_ntypes, self.num_etypes, self.activation = num_ntypes, num_etypes, activation
        width = head_size * num_heads
        self.linear_k = TypedLinear(in_size, width, num_ntypes)
        self.linear_q = TypedLinear(in_size, width, num_ntypes)
        self.linear_v = TypedLinear(in_size, width, num_ntypes)
        self.linear_a = TypedLinear(width, width, num_ntypes)
        # One parameter for each head, as in DGL's state dicts.
        self.relation_pri = nn.ParameterList([nn.Parameter(torch.empty(num_etypes)) for _ in range(num_heads)])
        self.relation_att, self.relation_msg = (
            nn.ModuleList([TypedLinear(head_size, head_size, num_etypes) for _ in range(num_heads)]) for _ in range(2)
        )
        self.skip = nn.Parameter(torch.empty(num_ntypes))
        self.drop = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width) if use_norm else None
        self.residual_w = nn.Parameter(torch.empty(in_size, width)) if in_size != width else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Typed maps as in `TypedLinear`; mu and skip are 1; the map of h_i has Glorot's uniform distribution."""
        for child in self.modules():
            if isinstance(child, TypedLinear):
                child.reset_parameters()
        for prior in (*self.relation_pri, self.skip):
            nn.init.ones_(prior)
        if self.norm is not None:
            self.norm.reset_parameters()
        if self.residual_w is not None:
            nn.init.xavier_uniform_(self.residual_w)

    def forward(self, g: Graph, x: Feat, ntype: Feat, etype: Tensor, *, presorted: bool = False) -> Tensor:
        """[N, in], types of nodes [N] and of edges [E] -> [N_dst, heads * head_size].

        On a bipartite graph, `x` and `ntype` are pairs: ([N_src, in], [N_dst, in]) and ([N_src], [N_dst]). `presorted`:
        DGL's argument, without effect.
        """
        (x_src, x_dst), (src_type, dst_type) = both_ends(x, g), both_ends(ntype, g)
        checked_types("ntype", src_type, x_src.shape[0], "source nodes")
        checked_types("ntype", dst_type, x_dst.shape[0], "destination nodes")
        checked_types("etype", etype, g.num_edges(), "edges")
        shape = (-1, self.num_heads, self.head_size)
        with g.local_scope():
            g.srcdata["k"] = self.linear_k(x_src, src_type).view(shape)
            g.srcdata["v"] = self.linear_v(x_src, src_type).view(shape)
            g.dstdata["q"] = self.linear_q(x_dst, dst_type).view(shape)
            g.edata["type"] = etype
            g.update_all(self._message, self._reduce)
            h = g.dstdata["m"].flatten(1)
        h = h if self.activation is None else self.activation(h)
        h = self.linear_a(h, dst_type)
        h = self.drop(h) if self.drop.p > 0 else h
        alpha = torch.sigmoid(self.skip).index_select(0, dst_type).unsqueeze(-1)
        h = h * alpha + (x_dst if self.residual_w is None else x_dst @ self.residual_w) * (1 - alpha)
        return h if self.norm is None else self.norm(h)

    def _message(self, edges: EdgeBatch) -> dict[str, Tensor]:
        etype = edges.data["type"]
        scale = torch.stack(list(self.relation_pri), 1) / math.sqrt(self.head_size)
        att = _of_heads(self.relation_att) * scale.unsqueeze(-1).unsqueeze(-1)
        k = gather_mm(edges.src["k"], att, idx_b=etype)
        v = gather_mm(edges.src["v"], _of_heads(self.relation_msg), idx_b=etype)
        return {"e": (k * edges.dst["q"]).sum(-1, keepdim=True), "v": v}

    def _reduce(self, nodes: NodeBatch) -> dict[str, Tensor]:
        return {"m": (nodes.mailbox["e"].softmax(1) * nodes.mailbox["v"]).sum(1)}

    def extra_repr(self) -> str:
        return f"{self.in_size}, {self.head_size}, num_heads={self.num_heads}"


def _of_heads(linears: Any) -> Tensor:
    """The weights of one `TypedLinear` for each head as one tensor, [types, heads, in, out]."""
    return torch.stack([linear.get_weight() for linear in linears], 1)
