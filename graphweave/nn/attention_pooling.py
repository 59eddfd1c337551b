"""Readouts with learnt weights: one row for each graph of a batch."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from graphweave.graph.graph import Graph
from graphweave.graph.readout import softmax_nodes, sum_nodes
from graphweave.nn.ends import Attended


class WeightAndSum(nn.Module):
    """r_b = sum over the nodes v of graph b of sigmoid(w . h_v + c) h_v; 0 for a graph without nodes.

    `in_feats`: number of features of h.

    >>> graph = gw.batch([gw.graph(([0, 1], [1, 2])), gw.graph(([0], [1]))])
    >>> WeightAndSum(4)(graph, torch.randn(5, 4)).shape
    torch.Size([2, 4])
    """

    def __init__(self, in_feats: int) -> None:
        super().__init__()
        self.atom_weighting = nn.Sequential(nn.Linear(in_feats, 1), nn.Sigmoid())

    def forward(self, graph: Graph, feat: Tensor) -> Tensor:
        """[N, F] -> [graphs, F]."""
        with graph.local_scope():
            graph.ndata["h"], graph.ndata["w"] = feat, self.atom_weighting(feat)
            return sum_nodes(graph, "h", "w")


class GlobalAttentionPooling(nn.Module):
    """Attention over nodes: Li, Tarlow, Brockschmidt and Zemel, "Gated Graph Sequence Neural Networks", ICLR 2016
    (https://arxiv.org/abs/1511.05493).

    r_b = sum over the nodes v of graph b of a_v feat_nn(h_v), with a the softmax of gate_nn(h_v) over these nodes; 0
    for a graph without nodes.

    `gate_nn`: [N, F] -> [N, 1] (or a gate for each feature). `feat_nn`: [N, F] -> [N, out]; None stands for h itself.

    >>> graph = gw.batch([gw.graph(([0, 1], [1, 2])), gw.graph(([0], [1]))])
    >>> GlobalAttentionPooling(nn.Linear(4, 1))(graph, torch.randn(5, 4)).shape
    torch.Size([2, 4])
    """

    def __init__(self, gate_nn: Callable[[Tensor], Tensor], feat_nn: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.gate_nn, self.feat_nn = gate_nn, feat_nn

    def forward(self, graph: Graph, feat: Tensor, get_attention: bool = False) -> Attended:
        """[N, F] -> [graphs, out]. With `get_attention` the result is a pair: this result and the attention [N, 1]."""
        with graph.local_scope():
            graph.ndata["gate"] = self.gate_nn(feat)
            graph.ndata["h"] = feat if self.feat_nn is None else self.feat_nn(feat)
            graph.ndata["a"] = attention = softmax_nodes(graph, "gate")
            out = sum_nodes(graph, "h", "a")
        return (out, attention) if get_attention else out
