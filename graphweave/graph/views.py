"""The objects `g.nodes` and `g.edges`. Calling one returns ids; indexing one with a type returns the data of that
type."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from graphweave.graph.frame import Frame
from graphweave.graph.structure import Structure


class RowsView(NamedTuple):
    """Nodes or edges of one type."""

    data: Frame


class NodeView:
    """`g.nodes(ntype)` returns ids [num_nodes], increasing; `g.nodes[ntype].data` holds the fields of the type."""

    def __init__(self, graph: Structure, types: tuple[str, ...]) -> None:
        self._graph = graph
        self._types = types

    def __call__(self, ntype: str | None = None) -> Tensor:
        return self._graph._ids_of(self._graph._ntype(ntype, self._types))

    def __getitem__(self, ntype: str | None) -> RowsView:
        return RowsView(self._graph._node_frame(self._graph._ntype(ntype, self._types)))


class EdgeView:
    """`g.edges(...)` is `g.all_edges(...)`; `g.edges[etype].data` holds the fields of the relation."""

    def __init__(self, graph: Structure) -> None:
        self._graph = graph

    def __call__(self, form: Any = "uv", order: str | None = "eid", etype: Any = None) -> Any:
        return self._graph.all_edges(form, order, etype)

    def __getitem__(self, etype: Any) -> RowsView:
        return RowsView(self._graph._edge_frame(etype))
