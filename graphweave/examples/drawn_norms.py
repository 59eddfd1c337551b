"""Norms of a graph convolution, and its sums over all neighbours estimated from those that were drawn.

A graph convolution divides what an edge u -> v carries by sqrt(d_u d_v), where d counts a node's incoming edges and
its self-loop. These are numbers of the whole graph. Counted among drawn edges, they would depend on which other seeds
are in the batch, or on this rank, and would not be those that the model has on the whole graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphweave.sampling.hops import HopEdges


@dataclass(frozen=True, eq=False)
class GraphNorms:
    """1 / sqrt(d_u d_v) for each edge of a graph and each self-loop, as Kipf and Welling weigh them ("Semi-Supervised
    Classification with Graph Convolutional Networks", ICLR 2017, equation 2). An edge that is a self-loop weighs 0,
    since each node has one already."""

    edge_index: Tensor
    """[2, E + N]: the edges of the graph, then a self-loop for each node."""
    weight: Tensor
    """[E + N]"""
    in_degree: Tensor
    """[N], of the edges alone."""

    def drawn(self, hop: HopEdges, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """The edges [2, D + n] that a hop drew, with a self-loop for each node of the batch, and their weights.

        `nodes` [n] are the numbers in the graph of the batch's nodes. A node that drew k of its d edges weighs each by
        d / k more, so that the expected sum is that over all (Chen, Zhu and Song, "Stochastic Training of Graph
        Convolutional Networks with Variance Reduction", ICML 2018). Where all edges are drawn, the weights are those of
        the graph.
        """
        each = torch.arange(nodes.numel())
        num_drawn = torch.bincount(hop.dst, minlength=nodes.numel()).clamp(min=1)
        share = (self.in_degree[nodes] / num_drawn).to(self.weight.dtype)
        of_edges = self.weight[hop.edge] * share[hop.dst]
        of_loops = self.weight[self.edge_index.size(1) - self.in_degree.numel() + nodes]
        ends = torch.stack([torch.cat([hop.src, each]), torch.cat([hop.dst, each])])
        return ends, torch.cat([of_edges, of_loops])


def graph_norms(edge_index: Tensor, num_nodes: int, dtype: torch.dtype) -> GraphNorms:
    """The norms of a graph with the edges [2, E], in the float type `dtype`."""
    src, dst = edge_index
    loop, each = src == dst, torch.arange(num_nodes)
    degree = torch.bincount(dst[~loop], minlength=num_nodes).to(dtype) + 1
    root = degree.rsqrt()
    weight = torch.cat([(root[src] * root[dst]).masked_fill(loop, 0), 1 / degree])
    with_loops = torch.cat([edge_index, torch.stack([each, each])], 1)
    return GraphNorms(with_loops, weight, torch.bincount(dst, minlength=num_nodes))
