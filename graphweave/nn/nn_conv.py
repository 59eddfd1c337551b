"""Messages by matrices that a network makes of edge features."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from graphweave.graph.graph import Graph
from graphweave.nn.ends import Feat, Width, both_ends, both_widths, one_of
from graphweave.nn.gin_conv import REDUCERS
from graphweave.udf.arguments import EdgeBatch


class NNConv(nn.Module):
    """h'_i = aggregate over edges e = j -> i of h_j M(x_e), + W_res h_i, + b.

    `edge_func`: M, a module from edge features to [E, in * out]; what it gives is stored. `aggregator_type`: "sum",
    "mean" or "max". `residual`: adds W_res h_i, or h_i where widths are equal. Nodes without incoming edges aggregate
    to 0. Source: Gilmer et al., "Neural Message Passing for Quantum Chemistry", ICML 2017, section 5.1.

    >>> graph = gw.graph(([0, 1, 2], [1, 2, 2]))
    >>> NNConv(5, 4, nn.Linear(2, 20))(graph, torch.randn(3, 5), torch.randn(3, 2)).shape
    torch.Size([3, 4])
    """

    def __init__(
        self, in_feats: Width, out_feats: int, edge_func: Callable[[Tensor], Tensor], aggregator_type: str = "mean",
        residual: bool = False, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.in_src, self.in_dst = both_widths(in_feats)
        self.out_feats, self.edge_func = out_feats, edge_func
        self.aggregator_type = one_of("aggregator_type", aggregator_type, tuple(REDUCERS))
        self.res_fc: nn.Module | None = None
        if residual:
            self.res_fc = nn.Identity() if self.in_dst == out_feats else nn.Linear(self.in_dst, out_feats, bias=False)
        self.bias = nn.Parameter(torch.empty(out_feats)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """W_res is drawn from Glorot's normal distribution with the gain of a ReLU; b is 0."""
        if isinstance(self.res_fc, nn.Linear):
            nn.init.xavier_normal_(self.res_fc.weight, gain=nn.init.calculate_gain("relu"))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, graph: Graph, feat: Feat, efeat: Tensor) -> Tensor:
        """[N, in], or a pair ([N_src, in_src], [N_dst, in_dst]), and edge features [E, ...] -> [N_dst, out]."""
        src, dst = both_ends(feat, graph)
        with graph.local_scope():
            graph.srcdata["h"] = src.unsqueeze(-1)
            graph.edata["w"] = self.edge_func(efeat).view(-1, self.in_src, self.out_feats)
            graph.update_all(_product, REDUCERS[self.aggregator_type]("m", "neigh"))
            out = graph.dstdata["neigh"]
        if self.res_fc is not None:
            out = out + self.res_fc(dst)
        return out if self.bias is None else out + self.bias


def _product(edges: EdgeBatch) -> dict[str, Tensor]:
    return {"m": (edges.src["h"] * edges.data["w"]).sum(1)}
