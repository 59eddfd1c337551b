"""Functions that make a changed copy of a graph, in place of the methods that change it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from graphweave.dgl.graph import DGLGraph
from graphweave.graph.argument_types import Etype


def add_nodes(g: DGLGraph, num: int, data: Mapping[str, Tensor] | None = None, ntype: str | None = None) -> DGLGraph:
    """A graph with `num` further nodes of `ntype`. Fields in `data` [num, ...] are appended; in other fields the new
    rows are zeros, and so are the old rows of a field that did not exist. DataError for a negative number."""
    out = g.clone()
    out.add_nodes(num, data, ntype)
    return out


def add_edges(
    g: DGLGraph, u: object, v: object, data: Mapping[str, Tensor] | None = None, etype: Etype | None = None
) -> DGLGraph:
    """A graph with further edges u[i] -> v[i], after the others. If one of u and v is a single node, it is repeated.
    Nodes that do not exist yet are added; `data` as in `add_nodes`."""
    out = g.clone()
    out.add_edges(u, v, data, etype)
    return out


def remove_edges(g: DGLGraph, eids: object, etype: Etype | None = None, store_ids: bool = False) -> DGLGraph:
    """A graph without the edges `eids`. With `store_ids` the field '_ID' holds the numbers that edges had."""
    out = g.clone()
    out.remove_edges(eids, etype, store_ids)
    return out


def remove_nodes(g: DGLGraph, nids: object, ntype: str | None = None, store_ids: bool = False) -> DGLGraph:
    """A graph without the nodes `nids` and without the edges at them. `store_ids` as in `remove_edges`, for both."""
    out = g.clone()
    out.remove_nodes(nids, ntype, store_ids)
    return out
