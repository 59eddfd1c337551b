"""One normalised sum along the edges, which layers of several hops repeat."""

from __future__ import annotations

import torch
from torch import Tensor

import graphweave.function as fn
from graphweave.graph.graph import Graph
from graphweave.nn.ends import inverse_power, on_rows

Norm = tuple[Tensor, Tensor]
"""Factors of rows before and after they are summed along edges, [N] each."""


def symmetric_norm(graph: Graph, x: Tensor, edge_weight: Tensor | None = None) -> Norm:
    """1 / sqrt(in_degree), twice. With edge weights, 1 / sqrt(sum of outgoing weights) and 1 / sqrt(sum of incoming
    weights).

    Degrees and sums of 0 count as 1. Factors of degrees have the dtype of `x` [N, ...].
    """
    if edge_weight is None:
        inverse_root = inverse_power(graph.in_degrees(), 0.5, x.dtype)
        return inverse_root, inverse_root
    src, dst = graph.edges()
    return _inverse_root_of_sums(edge_weight, src, x), _inverse_root_of_sums(edge_weight, dst, x)


def _inverse_root_of_sums(edge_weight: Tensor, at: Tensor, x: Tensor) -> Tensor:
    sums = edge_weight.new_zeros(x.shape[0]).index_add(0, at, edge_weight.flatten())
    return torch.where(sums == 0, torch.ones_like(sums), sums).rsqrt()


def hop(graph: Graph, x: Tensor, norm: Norm, edge_weight: Tensor | None = None) -> Tensor:
    """norm[1]_i times the sum over edges j -> i of w_ji norm[0]_j x_j, w_ji = 1 without weights. [N, F] -> [N, F]."""
    with graph.local_scope():
        graph.ndata["h"] = x  # raises if the graph has another number of nodes
        graph.ndata["h"] = x * on_rows(norm[0], x)
        if edge_weight is None:
            graph.update_all(fn.copy_u("h", "m"), fn.sum("m", "h"))
        else:
            graph.edata["w"] = edge_weight
            graph.update_all(fn.u_mul_e("h", "w", "m"), fn.sum("m", "h"))
        return graph.ndata["h"] * on_rows(norm[1], x)
