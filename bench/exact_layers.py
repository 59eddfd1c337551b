"""References in float64 for models whose messages do not fit all at once: sums without messages, or of some at a time.

Sums of rows times numbers are products of sparse matrices (bench/exact_sums.py). Other messages, and their sums or
maxima, are computed for `PIECE` edges at a time, and again in the backward pass.
"""

from __future__ import annotations

import math
from functools import partial, reduce
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.utils import degree

from bench.exact_sums import PIECE, dot_in_pieces, weighted_sum

WEIGHTED_SUMS = (pyg.GCNConv, pyg.SAGEConv, pyg.GINConv)
"""Layers whose message is a row of `x`, or that row times the number `edge_weight`."""

IN_PIECES = {pyg.GMMConv: "edge_attr", pyg.GATConv: "alpha"}
"""Layers whose message takes a row of `x` and a row of this argument, which has one for each edge."""


class ExactAlong:
    """`Along` of bench/papers/tasks.py. An index is an edge index [2, E]."""

    def total(self, x: Tensor, index: Tensor, weight: Tensor, rows: int) -> Tensor:
        return weighted_sum(x, index, weight, rows)

    def dot(self, left: Tensor, right: Tensor, index: Tensor) -> Tensor:
        return dot_in_pieces(left, right, index)


def exact(model: nn.Module) -> nn.Module:
    """The model, whose layers of the kinds above do not store one message for each edge."""
    layer: Any
    for layer in model.modules():
        if type(layer) in WEIGHTED_SUMS:
            layer.propagate = partial(_by_product, layer)
        elif type(layer) in IN_PIECES:
            layer.propagate = partial(_by_pieces, layer, IN_PIECES[type(layer)])
        elif type(layer) is pyg.EdgeConv:
            layer.propagate = partial(_largest, layer)
    return model


def _rows(x: Any, size: tuple[int, int] | None) -> tuple[Tensor, int]:
    """The rows of sources, and the number of destinations."""
    given, target = x if isinstance(x, tuple) else (x, x)
    return given, target.size(0) if size is None else size[1]


def _reduced(total: Tensor, layer: pyg.MessagePassing, dst: Tensor) -> Tensor:
    """The sum or mean of messages, as the layer's aggregator has it, from their sum `total`."""
    if isinstance(layer.aggr_module, pyg.MeanAggregation):
        return total / degree(dst, total.size(0), total.dtype).clamp(min=1)[:, None]
    assert isinstance(layer.aggr_module, pyg.SumAggregation)
    return total


def _by_product(
    layer: pyg.MessagePassing, edge_index: Tensor, x: Any, edge_weight: Tensor | None = None,
    size: tuple[int, int] | None = None,
) -> Tensor:  # fmt: skip
    """`propagate` of one of WEIGHTED_SUMS."""
    x, rows = _rows(x, size)
    weight = x.new_ones(edge_index.size(1)) if edge_weight is None else edge_weight
    return _reduced(weighted_sum(x, edge_index, weight, rows), layer, edge_index[1])


def _by_pieces(
    layer: pyg.MessagePassing, per_edge: str, edge_index: Tensor, x: Any, size: tuple[int, int] | None = None,
    **given: Tensor,
) -> Tensor:  # fmt: skip
    """`propagate` of one of IN_PIECES: the layer's own `message`, for some edges at a time."""
    x, rows = _rows(x, size)

    def total(x: Tensor, src: Tensor, dst: Tensor, part: Tensor) -> Tensor:
        messages = layer.message(x[src], part)
        return x.new_zeros(rows, *messages.shape[1:]).index_add(0, dst, messages)

    pieces = zip(edge_index.split(PIECE, 1), given[per_edge].split(PIECE), strict=True)
    parts = (checkpoint(total, x, src, dst, part, use_reentrant=False) for (src, dst), part in pieces)
    return _reduced(reduce(torch.add, parts), layer, edge_index[1])


def _largest(layer: pyg.EdgeConv, edge_index: Tensor, x: Any, size: tuple[int, int] | None = None) -> Tensor:
    """`propagate` of EdgeConv: the maxima of the layer's own `message`, for some edges at a time."""
    assert isinstance(layer.aggr_module, pyg.MaxAggregation)
    (sources, destinations), (_, rows) = x, _rows(x, size)

    def largest(sources: Tensor, destinations: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        messages = layer.message(destinations[dst], sources[src])
        least = messages.new_full((rows, messages.size(1)), -math.inf)
        return least.scatter_reduce(0, dst[:, None].expand_as(messages), messages, "amax")

    pieces = (
        checkpoint(largest, sources, destinations, src, dst, use_reentrant=False)
        for src, dst in edge_index.split(PIECE, 1)
    )
    found = reduce(torch.maximum, pieces)
    return found.masked_fill(found == -math.inf, 0.0)  # of nodes without edges
