"""The objects `g.nodes` and `g.edges`. Calling one returns ids; indexing one returns the data of a type, or of rows."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph import query
from graphweave.graph.frame import Frame
from graphweave.graph.relation import Etype
from graphweave.graph.structure import Form, Structure


class ChosenFields(MutableMapping[str, Tensor]):
    """The fields of some rows of a frame: name -> tensor [k, ...], a copy.

    Setting a field writes these rows: others keep their values, or are zeros if the field did not exist. DataError for
    a tensor with another number of rows, or rows of another shape than the field's.
    """

    def __init__(self, frame: Frame, rows: Tensor) -> None:
        self._frame, self._rows = frame, rows.long()

    def __getitem__(self, name: str) -> Tensor:
        return self._frame[name].index_select(0, self._rows)

    def __setitem__(self, name: str, value: object) -> None:
        value = torch.as_tensor(value, device=self._rows.device)
        old = self._frame.get(name)
        row = value.shape[1:] if old is None else old.shape[1:]
        if value.dim() == 0 or value.shape[0] != self._rows.shape[0] or value.shape[1:] != row:
            raise DataError(
                f"field {name!r} of {self._rows.shape[0]} rows must have shape {[self._rows.shape[0], *row]} "
                f"(got {list(value.shape)}). Give it a row for each."
            )
        base = self._frame.initial(name, value) if old is None else old
        self._frame[name] = base.index_copy(0, self._rows, value.to(base.dtype))

    def __delitem__(self, name: str) -> None:
        raise DataError(f"field {name!r} cannot be deleted from some rows only. Delete it from the whole type.")

    def __iter__(self) -> Iterator[str]:
        return iter(self._frame)

    def __len__(self) -> int:
        return len(self._frame)

    def __repr__(self) -> str:
        return repr(dict(self))


class RowsView(NamedTuple):
    """Nodes or edges of one type."""

    data: Frame | ChosenFields


class NodeView:
    """`g.nodes(ntype)` returns ids [num_nodes], increasing; `g.nodes[ntype].data` holds the fields of the type.

    `g.nodes[ids].data` and `g.nodes[ids, ntype].data` hold the fields of these nodes only.
    """

    def __init__(self, graph: Structure, types: tuple[str, ...]) -> None:
        self._graph = graph
        self._types = types

    def __call__(self, ntype: str | None = None) -> Tensor:
        return self._graph._ids_of(self._graph.to_ntype(ntype, self._types))

    def __getitem__(self, key: object) -> RowsView:
        if isinstance(key, tuple) and len(key) == 2 and (key[1] is None or isinstance(key[1], str)):
            rows, ntype = key
        else:
            rows, ntype = (None, key) if key is None or isinstance(key, str) else (key, None)
        frame = self._graph.node_frames[self._graph.to_ntype(ntype, self._types)]
        if rows is None or _is_every(rows):
            return RowsView(frame)
        return RowsView(ChosenFields(frame, query.as_selection(rows, frame.num_rows, self._graph.any_index(), "node")))


class EdgeView:
    """`g.edges(...)` is `g.all_edges(...)`; `g.edges[etype].data` holds the fields of the relation.

    `g.edges[ids].data` and `g.edges[sources, destinations].data` hold the fields of these edges of the only relation.
    """

    def __init__(self, graph: Structure) -> None:
        self._graph = graph

    def __call__(self, form: Form = "uv", order: str | None = "eid", etype: Etype | None = None) -> Any:
        return self._graph.all_edges(form, order, etype)

    def __getitem__(self, key: object) -> RowsView:
        if key is None or isinstance(key, str) or (isinstance(key, tuple) and len(key) == 3):
            return RowsView(self._graph.edge_frame(key))
        frame = self._graph.edge_frame(None)
        if _is_every(key):
            return RowsView(frame)
        like = self._graph.any_index()
        if isinstance(key, tuple) and len(key) == 2:
            key = torch.as_tensor(self._graph.edge_ids(*key), device=like.device).reshape(-1)
        return RowsView(ChosenFields(frame, query.as_selection(key, frame.num_rows, like, "edge")))


def _is_every(rows: object) -> bool:
    if isinstance(rows, slice) and rows != slice(None):
        raise DataError(f"expected ids, a mask or ':' (got {rows!r}). Pass the ids themselves.")
    return isinstance(rows, slice) or query.is_all(rows)
