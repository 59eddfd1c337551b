"""Nodes and edges for which a function of their fields is true."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph import query
from graphweave.graph.messaging import _around, _around_nodes, _edge_numbers, _some, ends_of
from graphweave.graph.relation import Etype
from graphweave.graph.structure import Structure
from graphweave.udf.arguments import EdgeBatch, NodeBatch


def filter_nodes(
    g: Structure, predicate: Callable[[NodeBatch], object], nodes: object = query.ALL, ntype: str | None = None
) -> Tensor:
    """The ids among `nodes` for which `predicate(batch)`, bool [k], is true. `batch.data` holds their fields."""
    ntype = g.to_ntype(ntype)
    frame = g.node_frames[ntype]
    ids = query.as_selection(nodes, frame.num_rows, g.any_index(), "node")
    rows = ids.long()
    batch = NodeBatch(ids, frame.rows.index_select(0, rows), _around_nodes(g, ntype), frame.take(rows))
    return ids[_mask(predicate(batch), ids)]


def filter_edges(
    g: Structure, predicate: Callable[[EdgeBatch], object], edges: object = query.ALL, etype: Etype | None = None
) -> Tensor:
    """The ids among `edges` (or of the edges between two lists of nodes) for which `predicate(batch)` is true."""
    ids = _edge_numbers(g, edges, etype)
    batch = EdgeBatch(_some(ends_of(g, etype), ids.long()), _around(g, etype))
    return ids[_mask(predicate(batch), ids)]


def _mask(found: object, ids: Tensor) -> Tensor:
    if not isinstance(found, Tensor) or found.reshape(-1).shape != ids.shape:
        got = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise DataError(f"the predicate must return a bool for each of {ids.shape[0]} rows (got {got}). Reduce it.")
    return found.reshape(-1).to(torch.bool)
