"""Edge convolution with any network as message (DGCNN)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from graphweave.graph.graph import Graph
from graphweave.nn.ends import Feat, both_ends, one_of
from graphweave.nn.gin_conv import REDUCERS
from graphweave.udf.arguments import EdgeBatch


class EdgeMLPConv(nn.Module):
    """Edge convolution: Wang et al., "Dynamic Graph CNN for Learning on Point Clouds", ACM Transactions on Graphics
    2019 (https://arxiv.org/abs/1801.07829).

    h'_i = max over edges j -> i of mlp([h_i, h_j - h_i]).

    `mlp`: a module or function, [E, 2 in] -> [E, out]. `aggregator_type`: "max" (the paper's), "sum" or "mean".
    In a compiled model, an `mlp` of linear layers and pointwise functions is computed in tiles of edges that stay in
    cache, and its first layer is computed once for each node if that is less work; [E, out] is never stored.

    Nodes without incoming edges get 0. A self-loop is the message mlp([h_i, 0]).

    >>> graph = gw.graph(([0, 1, 2], [1, 2, 2]))
    >>> mlp = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 4))
    >>> EdgeMLPConv(mlp)(graph, torch.randn(3, 5)).shape
    torch.Size([3, 4])
    """

    def __init__(self, mlp: Callable[[Tensor], Tensor], aggregator_type: str = "max") -> None:
        super().__init__()
        self.mlp, self.aggregator_type = mlp, one_of("aggregator_type", aggregator_type, tuple(REDUCERS))

    def forward(self, graph: Graph, feat: Feat) -> Tensor:
        """[N, in], or a pair ([N_src, in], [N_dst, in]) -> [N_dst, out]."""
        src, dst = both_ends(feat, graph)
        with graph.local_scope():
            graph.srcdata["x"], graph.dstdata["x_dst"] = src, dst
            graph.update_all(self._message, REDUCERS[self.aggregator_type]("m", "h"))
            out: Tensor = graph.dstdata["h"]
        return out

    def _message(self, edges: EdgeBatch) -> dict[str, Tensor]:
        own = edges.dst["x_dst"]
        return {"m": self.mlp(torch.cat([own, edges.src["x"] - own], -1))}

    def extra_repr(self) -> str:
        return f"aggregator_type={self.aggregator_type!r}"
