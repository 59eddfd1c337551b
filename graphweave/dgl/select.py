"""Nodes and edges for which a function of their fields is true."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph import query
from graphweave.graph.argument_types import Etype
from graphweave.graph.messaging import _around, _around_nodes, _edge_numbers, _some, ends_of
from graphweave.graph.structure import Structure
from graphweave.udf.arguments import EdgeBatch, NodeBatch


def nodes(g: Structure, predicate: Callable[[NodeBatch], object], chosen: object, ntype: str | None) -> Tensor:
    """The ids among `chosen` for which `predicate(nodes)`, bool [k], is true. `nodes.data` holds their fields."""
    ntype = g.to_ntype(ntype)
    frame = g.node_frames[ntype]
    ids = query.as_selection(chosen, frame.num_rows, g.any_index(), "node")
    rows = ids.long()
    batch = NodeBatch(ids, frame.rows.index_select(0, rows), _around_nodes(g, ntype), frame.take(rows))
    return ids[_mask(predicate(batch), ids)]


def edges(g: Structure, predicate: Callable[[EdgeBatch], object], chosen: object, etype: Etype | None) -> Tensor:
    """The ids among `chosen` (or of the edges between two lists of nodes) for which `predicate(edges)` is true."""
    ids = _edge_numbers(g, chosen, etype)
    batch = EdgeBatch(_some(ends_of(g, etype), ids.long()), _around(g, etype))
    return ids[_mask(predicate(batch), ids)]


def _mask(found: object, ids: Tensor) -> Tensor:
    if not isinstance(found, Tensor) or found.reshape(-1).shape != ids.shape:
        got = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise DataError(f"the predicate must return a bool for each of {ids.shape[0]} rows (got {got}). Reduce it.")
    return found.reshape(-1).to(torch.bool)
