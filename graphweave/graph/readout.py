"""Readouts reduce the nodes or edges of each graph to one row for each graph of a batch; broadcasts copy such rows
back.

A graph that was not batched counts as a batch of one graph. Empty graphs get zeros.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph.frame import Frame
from graphweave.graph.graph import Graph
from graphweave.graph.relation import Etype
from graphweave.graph.softmax import softmax
from graphweave.udf import run
from graphweave.udf.mailbox import Mailbox, Received, grown

_OPS = ("sum", "mean", "max", "min")


def readout_nodes(
    graph: Graph, feat: str, weight: str | None = None, *, op: str = "sum", ntype: str | None = None
) -> Tensor:
    """out[b] = op of weight[v] feat[v] over the nodes v of graph b. [nodes, ...] -> [graphs, ...].

    `feat`, `weight`: fields of the nodes; `weight` has one number for each node, or the shape of `feat`. `op`: "sum",
    "mean" (divided by the number of nodes), "max" or "min". A graph without nodes gets 0.
    """
    return _readout(graph.node_frame(ntype), nodes_to_graphs(graph, ntype), feat, weight, op)


def readout_edges(
    graph: Graph, feat: str, weight: str | None = None, *, op: str = "sum", etype: Etype | None = None
) -> Tensor:
    """`readout_nodes` over the edges of each graph. [edges, ...] -> [graphs, ...]."""
    return _readout(graph.edge_frame(etype), edges_to_graphs(graph, etype), feat, weight, op)


def sum_nodes(graph: Graph, feat: str, weight: str | None = None, *, ntype: str | None = None) -> Tensor:
    """`readout_nodes` with op sum."""
    return readout_nodes(graph, feat, weight, op="sum", ntype=ntype)


def mean_nodes(graph: Graph, feat: str, weight: str | None = None, *, ntype: str | None = None) -> Tensor:
    """`readout_nodes` with op mean."""
    return readout_nodes(graph, feat, weight, op="mean", ntype=ntype)


def max_nodes(graph: Graph, feat: str, weight: str | None = None, *, ntype: str | None = None) -> Tensor:
    """`readout_nodes` with op max."""
    return readout_nodes(graph, feat, weight, op="max", ntype=ntype)


def sum_edges(graph: Graph, feat: str, weight: str | None = None, *, etype: Etype | None = None) -> Tensor:
    """`readout_edges` with op sum."""
    return readout_edges(graph, feat, weight, op="sum", etype=etype)


def mean_edges(graph: Graph, feat: str, weight: str | None = None, *, etype: Etype | None = None) -> Tensor:
    """`readout_edges` with op mean."""
    return readout_edges(graph, feat, weight, op="mean", etype=etype)


def max_edges(graph: Graph, feat: str, weight: str | None = None, *, etype: Etype | None = None) -> Tensor:
    """`readout_edges` with op max."""
    return readout_edges(graph, feat, weight, op="max", etype=etype)


def softmax_nodes(graph: Graph, feat: str, *, ntype: str | None = None) -> Tensor:
    """Softmax of each feature over the nodes of each graph. [nodes, ...] -> [nodes, ...]."""
    return _softmax(graph.node_frame(ntype)[feat], nodes_to_graphs(graph, ntype))


def softmax_edges(graph: Graph, feat: str, *, etype: Etype | None = None) -> Tensor:
    """Softmax of each feature over the edges of each graph. [edges, ...] -> [edges, ...]."""
    return _softmax(graph.edge_frame(etype)[feat], edges_to_graphs(graph, etype))


def broadcast_nodes(graph: Graph, graph_feat: Tensor, *, ntype: str | None = None) -> Tensor:
    """out[v] = graph_feat[graph of v]. [graphs, ...] -> [nodes, ...]."""
    return _broadcast(graph_feat, nodes_to_graphs(graph, ntype))


def broadcast_edges(graph: Graph, graph_feat: Tensor, *, etype: Etype | None = None) -> Tensor:
    """out[e] = graph_feat[graph of e]. [graphs, ...] -> [edges, ...]."""
    return _broadcast(graph_feat, edges_to_graphs(graph, etype))


def topk_nodes(
    graph: Graph, feat: str, k: int, *, descending: bool = True, sortby: int | None = None, ntype: str | None = None
) -> tuple[Tensor, Tensor]:
    """The `k` largest (or smallest) rows of each graph. [nodes, F] -> values [graphs, k, F] and their positions.

    With `sortby`, rows are ordered by that feature, and positions are [graphs, k]. Without it, every feature is ordered
    by itself, and positions are [graphs, k, F]. Positions count the nodes of a graph from 0; equal values keep the
    order of nodes. A graph of fewer than k nodes is padded with zeros (its positions, too).
    """
    return _topk(graph.node_frame(ntype)[feat], nodes_to_graphs(graph, ntype), k, descending, sortby)


def topk_edges(
    graph: Graph,
    feat: str,
    k: int,
    *,
    descending: bool = True,
    sortby: int | None = None,
    etype: Etype | None = None,
) -> tuple[Tensor, Tensor]:
    """`topk_nodes` over the edges of each graph. [edges, F] -> values [graphs, k, F] and their positions."""
    return _topk(graph.edge_frame(etype)[feat], edges_to_graphs(graph, etype), k, descending, sortby)


def nodes_to_graphs(graph: Graph, ntype: str | None) -> Received:
    """The map from nodes to the graphs of the batch."""
    return owners(graph.batch_num_nodes(ntype), graph.node_frame(ntype).rows, graph.batch_size)


def edges_to_graphs(graph: Graph, etype: Etype | None) -> Received:
    """The map from edges to the graphs of the batch."""
    return owners(graph.batch_num_edges(etype), graph.edge_frame(etype).rows, graph.batch_size)


def owners(counts: Tensor, rows: Tensor, graphs: int) -> Received:
    """The map from rows to graphs, from the number of rows of each graph.

    Rows are sorted by graph, so the graph of a row is a cumulative sum of ones that are placed at the first row of each
    graph. This is arithmetic on indices alone, which the compiler hoists into the prelude.
    """
    starts = counts.cumsum(0)[:-1]
    steps = counts.new_zeros(rows.shape[0] + 1).index_add(0, starts, torch.ones_like(starts))
    return Received(steps.cumsum(0)[:-1], counts.new_zeros((graphs, 0)))


def _readout(frame: Frame, to: Received, feat: str, weight: str | None, op: str) -> Tensor:
    if op not in _OPS:
        raise DataError(f"op must be one of {', '.join(_OPS)} (got {op!r}). Pass one of these.")
    x: Tensor = frame[feat]
    return run.call(reduce_rows, x, None if weight is None else frame[weight], to, op)


def reduce_rows(x: Tensor, weight: Tensor | None, to: Received, op: str) -> Tensor:
    if weight is not None:
        x = x * grown(weight, x.dim())
    box: Any = Mailbox(x, to)
    if op == "sum":
        return box.sum(1)
    if op == "mean":
        return box.mean(1)
    return box.amax(1) if op == "max" else box.amin(1)


def _softmax(x: Tensor, to: Received) -> Tensor:
    out: Tensor = run.call(softmax, x, to.dst, to.rows)
    return out


def _broadcast(x: Tensor, to: Received) -> Tensor:
    if x.shape[0] != to.num_rows():
        raise DataError(
            f"graph_feat has {x.shape[0]} rows (shape {tuple(x.shape)}), but the batch has {to.num_rows()} graphs."
            " Give it a row for each graph."
        )
    return to.pull(x)


def _topk(x: Tensor, to: Received, k: int, descending: bool, sortby: int | None) -> tuple[Tensor, Tensor]:
    if x.dim() != 2:
        raise DataError(
            f"top-k expects a field of shape [rows, features] (got {tuple(x.shape)}). Reshape the field first."
        )
    if sortby is None:
        columns = [_topk_by(x[:, i : i + 1], x[:, i], to, k, descending) for i in range(x.shape[1])]
        return torch.cat([v for v, _ in columns], 2), torch.stack([p for _, p in columns], 2)
    return _topk_by(x, x[:, sortby], to, k, descending)


def _topk_by(x: Tensor, key: Tensor, to: Received, k: int, descending: bool) -> tuple[Tensor, Tensor]:
    """The first k rows of each graph, after a sort by `key` and then a stable sort by graph."""
    graphs = to.num_rows()
    by_key = torch.argsort(key, descending=descending, stable=True)
    order = by_key[torch.argsort(to.dst[by_key], stable=True)]
    counts = torch.bincount(to.dst.long(), minlength=graphs)
    starts = counts.cumsum(0) - counts
    owner = to.dst[order].long()
    rank = torch.arange(order.shape[0], device=x.device) - starts[owner]
    kept = rank < k
    row = owner[kept] * k + rank[kept]
    values = x.new_zeros((graphs * k, x.shape[1])).index_copy(0, row, x[order[kept]])
    positions = order.new_zeros(graphs * k).index_copy(0, row, order[kept] - starts[owner[kept]])
    return values.view(graphs, k, x.shape[1]), positions.view(graphs, k)
