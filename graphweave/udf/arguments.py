"""The arguments of user-defined functions: edges with the data of both ends, nodes with what they received."""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping
from typing import Any

import torch
from torch import Tensor

from graphweave.udf.mailbox import Mailbox

TYPE = "_TYPE"
"""The field that holds the types of nodes and edges in a graph made by `to_homogeneous`."""


class FieldReader:
    """Feature tensors by name. A tensor is read when it is requested, at the rows `index` if that is given.

    `what` names the data in errors ("edges.src").
    """

    def __init__(self, what: str, data: Mapping[str, Any], index: Tensor | None = None) -> None:
        self._what, self._data, self._index = what, data, index

    def __getitem__(self, name: str) -> Any:
        if name not in self._data:
            known = ", ".join(repr(k) for k in self._data) or "none"
            raise KeyError(f"{self._what}[{name!r}]: no such field. Fields that exist: {known}.")
        x = self._data[name]
        if torch.compiler.is_compiling() and isinstance(x, Tensor):
            fix_sizes(x)
        return x if self._index is None else x.index_select(0, self._index)

    def __contains__(self, name: object) -> bool:
        return name in self._data

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def keys(self) -> KeysView[str]:
        return self._data.keys()

    def items(self) -> list[tuple[str, Any]]:
        return [(name, self[name]) for name in self._data]

    def values(self) -> list[Any]:
        return [self[name] for name in self._data]

    def get(self, name: str, default: object = None) -> object:
        return self[name] if name in self._data else default


def fix_sizes(x: Tensor) -> None:
    """Make the feature sizes of `x` constants of a trace, using that Dynamo fixes the symbolic length of a range in a
    loop."""
    for size in x.shape[1:]:
        for _ in range(size):
            break


class RelationEdges:
    """The edges of one relation: `src`, `dst` [edges], and tensors of shapes [sources, 0] and [destinations, 0].

    `eids` [edges] are their numbers, None for all edges of the relation.
    """

    def __init__(self, src: Tensor, dst: Tensor, src_rows: Tensor, dst_rows: Tensor, eids: Tensor | None) -> None:
        self.src, self.dst, self.src_rows, self.dst_rows, self.eids = src, dst, src_rows, dst_rows, eids


class Frames:
    """The data of one relation: fields of sources, destinations and edges, and of their types."""

    def __init__(
        self, src: Mapping[str, Tensor], dst: Mapping[str, Tensor], edge: Mapping[str, Tensor],
        ntype: Mapping[str, Tensor], etype: Mapping[str, Tensor], relation: tuple[str, str, str],
    ) -> None:  # fmt: skip
        self.src, self.dst, self.edge, self.ntype, self.etype, self.relation = src, dst, edge, ntype, etype, relation


class EdgeBatch:
    """Edges, as message functions and `apply_edges` see them.

    `src`, `dst`, `data`: features [edges, ...] of the source, the destination and the edge itself. `srctype`, `dsttype`
    and `type`: data of types (`g.ntype_data`, `g.etype_data`), by the types in the field '_TYPE' (Graphiler, Table 1).
    """

    def __init__(self, ends: RelationEdges, frames: Frames) -> None:
        self._ends = ends
        self.src = FieldReader("edges.src", frames.src, ends.src)
        self.dst = FieldReader("edges.dst", frames.dst, ends.dst)
        self.data = FieldReader("edges.data", frames.edge, ends.eids)
        self.srctype = TypeFields("edges.srctype", frames.ntype, frames.src, ends.src)
        self.dsttype = TypeFields("edges.dsttype", frames.ntype, frames.dst, ends.dst)
        self.type = TypeFields("edges.type", frames.etype, frames.edge, ends.eids)
        self.canonical_etype = frames.relation

    def edges(self) -> tuple[Tensor, Tensor, Tensor]:
        """Sources, destinations and numbers of the edges."""
        eids = self._ends.eids
        if eids is None:
            eids = torch.arange(self._ends.src.shape[0], dtype=self._ends.src.dtype, device=self._ends.src.device)
        return self._ends.src, self._ends.dst, eids

    def batch_size(self) -> int:
        return self._ends.src.shape[0]

    def __len__(self) -> int:
        return self._ends.src.shape[0]


class NodeBatch:
    """Nodes, as reduce functions and `apply_nodes` see them, with `data` [nodes, ...] and `mailbox` [nodes, messages,
    ...]."""

    def __init__(
        self, nodes: Tensor | None, rows: Tensor, frames: Frames, data: Mapping[str, Tensor],
        mailbox: Mapping[str, Mailbox | Tensor] | None = None,
    ) -> None:  # fmt: skip
        self._nodes, self._rows = nodes, rows
        self.data = FieldReader("nodes.data", data)
        self.type = TypeFields("nodes.type", frames.ntype, data, None)
        self.mailbox = FieldReader("nodes.mailbox", {} if mailbox is None else mailbox)
        self.ntype = frames.relation[2]

    def nodes(self) -> Tensor:
        """Numbers of the nodes."""
        return torch.arange(self._rows.shape[0], device=self._rows.device) if self._nodes is None else self._nodes

    def batch_size(self) -> int:
        return self._rows.shape[0]

    def __len__(self) -> int:
        return self._rows.shape[0]


class TypeFields:
    """Data with a row for each type, read as rows of nodes or edges by their types, which are field '_TYPE' of
    `frame`."""

    def __init__(
        self, what: str, data: Mapping[str, Tensor], frame: Mapping[str, Tensor], index: Tensor | None
    ) -> None:
        self._fields, self._what, self._frame, self._index = FieldReader(what, data), what, frame, index

    def __getitem__(self, name: str) -> Any:
        if TYPE not in self._frame:
            raise KeyError(
                f"{self._what}[{name!r}] needs the types in the field {TYPE!r}, which this data has not. "
                "graphweave.to_homogeneous puts them there."
            )
        types = self._frame[TYPE]
        if self._index is not None:
            types = types.index_select(0, self._index)
        out: Tensor = self._fields[name].index_select(0, types)
        return out
