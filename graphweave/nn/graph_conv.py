"""Graph convolution (GCN)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import graphweave.function as fn
from graphweave.core.errors import DataError
from graphweave.graph.graph import Graph
from graphweave.nn.ends import Feat, both_ends, inverse_power, on_rows, one_of

NORMS = ("none", "both", "right", "left")


class GraphConv(nn.Module):
    """Graph convolution: Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR
    2017 (https://arxiv.org/abs/1609.02907).

    h'_i = activation(b + sum over edges j -> i of w_ji / c_ji h_j W), w_ji = 1 without edge weights, and with
    c_ji = sqrt(out_degree(j) in_degree(i)) for norm "both", in_degree(i) for "right" (a mean), out_degree(j) for "left"
    (a random walk), 1 for "none". Degrees count edges, whatever their weights; a degree of 0 counts as 1.

    `in_feats`, `out_feats`: numbers of features of h and h'. `weight`: if False, the layer has no W, but the call may
    pass one. `bias`: False leaves b out. `activation`: any function of the result. `allow_zero_in_degree`: DGL's
    argument, without effect.

    Nodes without incoming edges get activation(b). A node's own features enter only through a self-loop, so add
    self-loops (`graphweave.add_self_loop`), as the paper does.

    >>> graph = gw.add_self_loop(gw.graph(([0, 1, 2], [1, 2, 2])))
    >>> GraphConv(5, 4)(graph, torch.randn(3, 5)).shape
    torch.Size([3, 4])
    """

    def __init__(
        self, in_feats: int, out_feats: int, norm: str = "both", weight: bool = True, bias: bool = True,
        activation: Callable[[Tensor], Tensor] | None = None, allow_zero_in_degree: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.in_feats, self.out_feats, self.norm = in_feats, out_feats, one_of("norm", norm, NORMS)
        self.weight = nn.Parameter(torch.empty(in_feats, out_feats)) if weight else None
        self.bias = nn.Parameter(torch.empty(out_feats)) if bias else None
        self.activation = activation
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """W is drawn from Glorot's uniform distribution; b is 0."""
        if self.weight is not None:
            nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self, graph: Graph, feat: Feat, weight: Tensor | None = None, edge_weight: Tensor | None = None
    ) -> Tensor:
        """[N, in] (or a pair, whose second tensor is not read) -> [N_dst, out].

        `weight` [in, out] is W in a layer made with weight=False; DataError if the layer has its own W.
        `edge_weight`: [E] or [E, 1].
        """
        if weight is not None and self.weight is not None:
            raise DataError("a weight was given to a GraphConv that has its own. Make it with weight=False.")
        weight = self.weight if weight is None else weight
        x, _ = both_ends(feat, graph)
        power = 0.5 if self.norm == "both" else 1.0
        first = self.in_feats >= self.out_feats  # multiply before the sum if that makes the summed rows narrower
        with graph.local_scope():
            graph.srcdata["h"] = x  # raises if the graph has another number of nodes
            if weight is not None and first:
                x = x @ weight
            if self.norm in ("both", "left"):
                x = x * on_rows(inverse_power(graph.out_degrees(), power, x.dtype), x)
            graph.srcdata["h"] = x
            if edge_weight is None:
                graph.update_all(fn.copy_u("h", "m"), fn.sum("m", "h"))
            else:
                graph.edata["w"] = edge_weight
                graph.update_all(fn.u_mul_e("h", "w", "m"), fn.sum("m", "h"))
            x = graph.dstdata["h"]
            if weight is not None and not first:
                x = x @ weight
            if self.norm in ("both", "right"):
                x = x * on_rows(inverse_power(graph.in_degrees(), power, x.dtype), x)
        if self.bias is not None:
            x = x + self.bias
        return x if self.activation is None else self.activation(x)

    def extra_repr(self) -> str:
        return f"{self.in_feats}, {self.out_feats}, norm={self.norm!r}"
