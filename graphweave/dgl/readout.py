"""Readouts and broadcasts of batches, as `graphweave` has them."""

from graphweave.graph.readout import (
    broadcast_edges,
    broadcast_nodes,
    max_edges,
    max_nodes,
    mean_edges,
    mean_nodes,
    readout_edges,
    readout_nodes,
    softmax_edges,
    softmax_nodes,
    sum_edges,
    sum_nodes,
    topk_edges,
    topk_nodes,
)

__all__ = [
    "broadcast_edges",
    "broadcast_nodes",
    "max_edges",
    "max_nodes",
    "mean_edges",
    "mean_nodes",
    "readout_edges",
    "readout_nodes",
    "softmax_edges",
    "softmax_nodes",
    "sum_edges",
    "sum_nodes",
    "topk_edges",
    "topk_nodes",
]
