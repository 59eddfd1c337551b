"""Edge weights divided by their sums at nodes."""

from __future__ import annotations

from torch import Tensor, nn

import graphweave.function as fn
from graphweave.core.errors import DataError
from graphweave.graph.graph import Graph
from graphweave.nn.ends import one_of


class EdgeWeightNorm(nn.Module):
    """Weights of edges w by `norm`: "both": w_ji / sqrt(sum of j's outgoing w, times sum of i's incoming w), the
    weights of `GraphConv` with norm "none"; "right": w_ji / sum of i's incoming w; "none": w. `eps` is added to each
    sum.

    Source: Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR 2017.

    >>> graph = gw.graph(([0, 1, 2], [1, 2, 2]))
    >>> EdgeWeightNorm("right")(graph, torch.tensor([1.0, 1.0, 3.0]))
    tensor([1.0000, 0.2500, 0.7500])
    """

    def __init__(self, norm: str = "both", eps: float = 0.0) -> None:
        super().__init__()
        self.norm, self.eps = one_of("norm", norm, ("none", "both", "right")), eps

    def forward(self, graph: Graph, edge_weight: Tensor) -> Tensor:
        """[E] or [E, 1] -> the same shape. DataError for "both" and a weight that is not above 0."""
        if edge_weight.dim() > 2 or (edge_weight.dim() == 2 and edge_weight.shape[1] != 1):
            raise DataError(
                f"expected edge weights [E] or [E, 1] (got {list(edge_weight.shape)}). Pass one number an edge."
            )
        if self.norm == "both" and bool((edge_weight <= 0).any()):
            raise DataError("norm 'both' needs weights above 0 (got one that is not). Pass norm='right' or 'none'.")
        with graph.local_scope():
            graph.edata["w"] = edge_weight
            if self.norm == "none":
                return edge_weight
            graph.update_all(fn.copy_e("w", "m"), fn.sum("m", "in"))
            graph.dstdata["in"] = 1 / (graph.dstdata["in"] + self.eps)
            if self.norm == "right":
                graph.apply_edges(fn.e_mul_v("w", "in", "out"))
                return graph.edata["out"]
            back = graph.reverse(copy_edata=True)
            back.edata["w"] = edge_weight
            back.update_all(fn.copy_e("w", "m"), fn.sum("m", "out"))
            graph.srcdata["left"] = (1 / (back.dstdata["out"] + self.eps)) ** 0.5
            graph.dstdata["right"] = graph.dstdata["in"] ** 0.5
            graph.apply_edges(fn.u_mul_v("left", "right", "both"))
            return graph.edata["both"] * edge_weight
