"""Relational graph convolution (R-GCN)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

import graphweave.function as fn
from graphweave.core.errors import DataError
from graphweave.graph.graph import Graph
from graphweave.nn.ends import Feat, Width, both_ends, both_widths
from graphweave.nn.relations import checked_types, into_pairs
from graphweave.nn.typed_linear import Regularizer, TypedLinear
from graphweave.udf.arguments import EdgeBatch


class RelGraphConv(nn.Module):
    """Relational graph convolution: Schlichtkrull et al., "Modeling Relational Data with Graph Convolutional Networks",
    ESWC 2018 (https://arxiv.org/abs/1703.06103).

    h'_i = dropout(activation(norm(sum over edges j -> i of w_ji W_r(ji) h_j) + b + W_0 h_i)), with r(ji) the relation
    of the edge.

    `in_feat`: a number, or a pair (of sources, of destinations). `regularizer`, `num_bases`: how weights of relations
    are tied (`TypedLinear`): "basis" (the paper's equation 3) or "bdd" (blocks, equation 4). `bias`: False leaves b
    out. `self_loop`: False leaves W_0 out. `layer_norm`: norm is a layer norm; False leaves it out. `activation`:
    function of the result. `dropout`: rate of the dropout.

    Nodes without incoming edges have a sum of 0. No self-loops are needed: the node itself is in the formula.

    >>> graph = gw.graph(([0, 1, 2], [1, 2, 2]))
    >>> RelGraphConv(5, 4, num_rels=2)(graph, torch.randn(3, 5), torch.tensor([0, 1, 0]), norm="mean").shape
    torch.Size([3, 4])
    """

    def __init__(
        self, in_feat: Width, out_feat: int, num_rels: int, regularizer: Regularizer = None,
        num_bases: int | None = None, bias: bool = True, activation: Callable[[Tensor], Tensor] | None = None,
        self_loop: bool = True, dropout: float = 0.0, layer_norm: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.in_src, self.in_dst = both_widths(in_feat)
        self.out_feat, self.num_rels, self.activation = out_feat, num_rels, activation
        self.linear_r = TypedLinear(self.in_src, out_feat, num_rels, regularizer, num_bases)
        self.h_bias = nn.Parameter(torch.zeros(out_feat)) if bias else None
        self.layer_norm_weight = nn.LayerNorm(out_feat) if layer_norm else None
        self.loop_weight = nn.Parameter(torch.empty(self.in_dst, out_feat)) if self_loop else None
        self.dropout = nn.Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """W_r as in `TypedLinear`; W_0 is drawn from Glorot's uniform distribution with the gain of a ReLU; b is 0."""
        self.linear_r.reset_parameters()
        if self.loop_weight is not None:
            nn.init.xavier_uniform_(self.loop_weight, gain=nn.init.calculate_gain("relu"))
        if self.h_bias is not None:
            nn.init.zeros_(self.h_bias)
        if self.layer_norm_weight is not None:
            self.layer_norm_weight.reset_parameters()

    def forward(
        self, g: Graph, feat: Feat | None, etypes: Tensor, norm: Tensor | Literal["mean"] | None = None, *,
        presorted: bool = False,
    ) -> Tensor:  # fmt: skip
        """[N, in], or a pair ([N_src, in_src], [N_dst, in_dst]), and relations [E] -> [N_dst, out].

        If `feat` is integers [N], h_j W is row feat[j] of W, so that weights are embeddings of nodes. None stands for
        the numbers of the nodes (then in_feat is the number of nodes). Both raise DataError with "bdd".

        `norm`: w_ji, a tensor [E] or [E, 1]; "mean": 1 / number of edges into i of the relation (the paper's 1 / c_ir);
        None: 1. `presorted`: DGL's argument, without effect.
        """
        if isinstance(norm, str) and norm != "mean":
            raise DataError(f"norm must be a tensor [E], 'mean' or None (got {norm!r}). Pass one of these.")
        checked_types("etypes", etypes, g.num_edges(), "edges")
        src, dst = _numbers(g) if feat is None else both_ends(feat, g)
        if self.linear_r.regularizer == "bdd" and _are_ids(src):
            raise DataError("numbers of nodes as features have no blocks. Use regularizer None or 'basis'.")
        with g.local_scope():
            g.srcdata["h"], g.edata["type"] = src, etypes
            if isinstance(norm, Tensor):
                g.edata["norm"] = norm.reshape(-1, 1)
            elif norm == "mean":
                pair, counts = into_pairs(g, etypes, self.num_rels)
                g.edata["norm"] = (1 / counts.to(self.linear_r.W.dtype)).index_select(0, pair).unsqueeze(-1)
            g.update_all(self._message if norm is None else self._weighted, fn.sum("m", "h"))
            x: Tensor = g.dstdata["h"]
        return self._finished(x, dst)

    def _message(self, edges: EdgeBatch) -> dict[str, Tensor]:
        h, etype = edges.src["h"], edges.data["type"]
        return {"m": self.linear_r.get_weight()[etype, h] if _are_ids(h) else self.linear_r(h, etype)}

    def _weighted(self, edges: EdgeBatch) -> dict[str, Tensor]:
        return {"m": self._message(edges)["m"] * edges.data["norm"]}

    def _finished(self, x: Tensor, dst: Tensor) -> Tensor:
        if self.layer_norm_weight is not None:
            x = self.layer_norm_weight(x)
        if self.h_bias is not None:
            x = x + self.h_bias
        if self.loop_weight is not None:
            x = x + (self.loop_weight.index_select(0, dst) if _are_ids(dst) else dst @ self.loop_weight)
        x = x if self.activation is None else self.activation(x)
        return self.dropout(x) if self.dropout.p > 0 else x

    def extra_repr(self) -> str:
        return f"{self.in_src}, {self.out_feat}, num_rels={self.num_rels}"


def _are_ids(x: Tensor) -> bool:
    return not x.is_floating_point()


def _numbers(g: Graph) -> tuple[Tensor, Tensor]:
    """The numbers of the source nodes and of the destination nodes."""
    src, dst = (torch.arange(n, device=g.device) for n in (g.num_src_nodes(), g.num_dst_nodes()))
    return src, dst
