"""Readouts without parameters: one row for each graph of a batch."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from graphweave.graph.graph import Graph
from graphweave.graph.readout import max_nodes, mean_nodes, sum_nodes, topk_nodes


class _Readout(nn.Module):
    """A readout of one field of the nodes."""

    readout: Callable[[Graph, str], Tensor]

    def forward(self, graph: Graph, feat: Tensor) -> Tensor:
        """[N, ...] -> [graphs, ...]."""
        with graph.local_scope():
            graph.ndata["h"] = feat
            return self.readout(graph, "h")


class SumPooling(_Readout):
    """r_b = sum of h_v over the nodes v of graph b; 0 for a graph without nodes.

    >>> graph = gw.batch([gw.graph(([0, 1], [1, 2])), gw.graph(([0], [1]))])
    >>> SumPooling()(graph, torch.randn(5, 4)).shape
    torch.Size([2, 4])
    """

    readout = staticmethod(sum_nodes)


class AvgPooling(_Readout):
    """r_b = mean of h_v over the nodes v of graph b; 0 for a graph without nodes.

    >>> graph = gw.batch([gw.graph(([0, 1], [1, 2])), gw.graph(([0], [1]))])
    >>> AvgPooling()(graph, torch.randn(5, 4)).shape
    torch.Size([2, 4])
    """

    readout = staticmethod(mean_nodes)


class MaxPooling(_Readout):
    """r_b = maximum of h_v over the nodes v of graph b, feature by feature; 0 for a graph without nodes.

    >>> graph = gw.batch([gw.graph(([0, 1], [1, 2])), gw.graph(([0], [1]))])
    >>> MaxPooling()(graph, torch.randn(5, 4)).shape
    torch.Size([2, 4])
    """

    readout = staticmethod(max_nodes)


class SortPooling(nn.Module):
    """Pooling by sorting: Zhang, Cui, Neumann and Chen, "An End-to-End Deep Learning Architecture for Graph
    Classification", AAAI 2018 (DGCNN), in DGL's variant.

    The features of each node are sorted in increasing order. The result for a graph is the concatenation of the `k`
    nodes with the largest last feature, in decreasing order of it; if the graph has fewer nodes, zeros follow.

    >>> graph = gw.batch([gw.graph(([0, 1], [1, 2])), gw.graph(([0], [1]))])
    >>> SortPooling(k=2)(graph, torch.randn(5, 4)).shape
    torch.Size([2, 8])
    """

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def forward(self, graph: Graph, feat: Tensor) -> Tensor:
        """[N, F] -> [graphs, k F]."""
        with graph.local_scope():
            graph.ndata["h"] = feat.sort(-1).values
            values, _ = topk_nodes(graph, "h", self.k, sortby=-1)
        return values.flatten(1)

    def extra_repr(self) -> str:
        return f"k={self.k}"
