"""Structure and data of a graph: its types, sizes, fields, and queries about nodes and edges."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph import query
from graphweave.graph.frame import Frame, TypedFrames, described_fields
from graphweave.graph.relation import CanonicalEtype, Etype, Relation

Form = Literal["uv", "eid", "all"]


class Structure:
    """The base of `Graph`: structure, data and queries, without message passing and conversions.

    The functions that implement the methods of `Graph` take and return this class, because `Graph` imports them.
    """

    def __init__(
        self,
        relations: Mapping[CanonicalEtype, Relation],
        node_frames: Mapping[str, Frame],
        edge_frames: Mapping[CanonicalEtype, Frame],
        batch: tuple[dict[str, Tensor], dict[CanonicalEtype, Tensor]] | None = None,
    ) -> None:
        """Called by the functions that make graphs. Arguments are not checked: the keys of `node_frames` are the node
        types, those of `relations` and `edge_frames` are the same."""
        self.relations: dict[CanonicalEtype, Relation] = dict(relations)
        """(source type, name, destination type) -> the relation's maps. Read it; `replace_edges` makes other graphs."""
        self.node_frames: dict[str, Frame] = dict(node_frames)
        """Node type -> the fields of its nodes, which are `nodes[type].data`."""
        self.edge_frames: dict[CanonicalEtype, Frame] = dict(edge_frames)
        """Relation -> the fields of its edges, which are `edges[relation].data`."""
        self.batch_counts = batch
        """By type, the numbers of nodes and of edges of each batched graph, int64 [batch_size]. It is None if the graph
        is not a batch."""
        self._ntype_data = Frame("ntype_data", None, "types")
        self._etype_data = Frame("etype_data", None, "types")

    # Types

    @property
    def ntypes(self) -> list[str]:
        """Names of the node types, sorted."""
        return list(self.node_frames)

    @property
    def etypes(self) -> list[str]:
        """Names of the relations, in the order of `canonical_etypes`; they may repeat."""
        return [etype for _, etype, _ in self.relations]

    @property
    def canonical_etypes(self) -> list[CanonicalEtype]:
        """(source type, name, destination type) of every relation. `heterograph` sorts them."""
        return list(self.relations)

    @property
    def srctypes(self) -> list[str]:
        """The node types at which no edge ends, if the graph is bipartite; else all node types."""
        return list(self._sides()[0])

    @property
    def dsttypes(self) -> list[str]:
        """The node types at which edges end, if the graph is bipartite; else all node types."""
        return list(self._sides()[1])

    @property
    def is_homogeneous(self) -> bool:
        """Whether there is one node type and one relation."""
        return len(self.node_frames) == 1 and len(self.relations) == 1

    @property
    def is_unibipartite(self) -> bool:
        """Whether no node type has both edges that start there and edges that end there."""
        ends = {dsttype for _, _, dsttype in self.relations}
        return all(srctype not in ends for srctype, _, _ in self.relations)

    def to_canonical_etype(self, etype: Etype | None) -> CanonicalEtype:
        """(source type, name, destination type) of a relation. DataError if no relation has the name, or several do."""
        if isinstance(etype, tuple) and etype in self.relations:
            return etype
        found = [key for key in self.relations if etype is None or key[1] == etype]
        if len(found) == 1:
            return found[0]
        known = ", ".join(map(str, self.relations))
        if etype is None:
            raise DataError(f"the graph has {len(found)} relations. Name one of {known}.")
        if found:
            raise DataError(f"relation {etype!r} is ambiguous. Name one of {', '.join(map(str, found))}.")
        raise DataError(f"the graph has no relation {etype!r}; it has {known}. Name one of these.")

    def to_ntype(self, ntype: str | None, among: tuple[str, ...] | None = None) -> str:
        """A node type of the graph, or of `among`; None is the only one. DataError if there is no such type."""
        types = tuple(self.node_frames) if among is None else among
        if ntype is None and len(types) == 1:
            return types[0]
        if ntype is None:
            raise DataError(f"the graph has {len(types)} node types. Name one of {', '.join(types)}.")
        if not isinstance(ntype, str) or ntype not in types:
            raise DataError(f"the graph has no node type {ntype!r}; it has {', '.join(types)}. Name one of these.")
        return ntype

    def _sides(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        every = tuple(self.node_frames)
        if not self.is_unibipartite:
            return every, every
        ends = {dsttype for _, _, dsttype in self.relations}
        return tuple(t for t in every if t not in ends), tuple(t for t in every if t in ends)

    def relation_key(self, etype: Etype | None) -> CanonicalEtype:
        """The key of a relation in `relations` and `edge_frames`. DataError as in `to_canonical_etype`."""
        return self.to_canonical_etype(etype)

    def relation(self, etype: Etype | None = None) -> Relation:
        """The maps of a relation: `src` and `dst` [num_edges]. DataError as in `to_canonical_etype`."""
        return self.relations[self.relation_key(etype)]

    def only_relation(self) -> Relation:
        """The only relation of a graph that is an argument called `graph`. DataError if there are several, or none."""
        if len(self.relations) != 1:
            raise DataError(
                f"graph must have one relation (got {len(self.relations)}: {', '.join(map(str, self.relations))})."
                " Pass one of them: graph[relation]."
            )
        return self.relation()

    # Data

    def node_frame(self, ntype: str | None = None) -> Frame:
        """The fields of the nodes of a type."""
        return self.node_frames[self.to_ntype(ntype)]

    def edge_frame(self, etype: Etype | None = None) -> Frame:
        """The fields of the edges of a relation."""
        return self.edge_frames[self.relation_key(etype)]

    def _node_data(self, where: str, types: tuple[str, ...]) -> Frame | TypedFrames:
        if len(types) == 1:
            return self.node_frames[types[0]]
        return TypedFrames(where, {ntype: self.node_frames[ntype] for ntype in types})

    @property
    def ndata(self) -> Any:
        """Fields of nodes: name -> [num_nodes, ...], or name -> {type: tensor} if there are several node types."""
        return self._node_data("ndata", tuple(self.node_frames))

    @property
    def srcdata(self) -> Any:
        """Like `ndata`, for the node types at which edges start."""
        return self._node_data("srcdata", self._sides()[0])

    @property
    def dstdata(self) -> Any:
        """Like `ndata`, for the node types at which edges end."""
        return self._node_data("dstdata", self._sides()[1])

    @property
    def edata(self) -> Any:
        """Fields of edges: name -> [num_edges, ...], or name -> {relation: tensor} if there are several relations."""
        if len(self.edge_frames) == 1:
            return self.edge_frame()
        return TypedFrames("edata", self.edge_frames)

    @property
    def ntype_data(self) -> Frame:
        """Fields of node types: name -> [types, ...]. Row i belongs to the nodes whose `ndata['_TYPE']` is i."""
        return self._ntype_data

    @property
    def etype_data(self) -> Frame:
        """Fields of edge types: name -> [types, ...]. Row i belongs to the edges whose `edata['_TYPE']` is i."""
        return self._etype_data

    def local_scope(self) -> LocalScope:
        """At the end of `with g.local_scope():`, the graph has the same fields as at the beginning.

        Edits in place of a field's tensor are not undone.
        """
        return LocalScope(self._frames())

    def _frames(self) -> list[Frame]:
        return [*self.node_frames.values(), *self.edge_frames.values(), self._ntype_data, self._etype_data]

    # Sizes

    def num_nodes(self, ntype: str | None = None) -> int:
        """The number of nodes of a type, or of all types (None)."""
        if ntype is not None:
            return self.node_frame(ntype).num_rows
        return sum([frame.num_rows for frame in self.node_frames.values()])

    def num_src_nodes(self, ntype: str | None = None) -> int:
        """Like `num_nodes`, for the types at which edges start."""
        types = self._sides()[0] if ntype is None else (self.to_ntype(ntype, self._sides()[0]),)
        return sum([self.node_frames[t].num_rows for t in types])

    def num_dst_nodes(self, ntype: str | None = None) -> int:
        """Like `num_nodes`, for the types at which edges end."""
        types = self._sides()[1] if ntype is None else (self.to_ntype(ntype, self._sides()[1]),)
        return sum([self.node_frames[t].num_rows for t in types])

    def num_edges(self, etype: Etype | None = None) -> int:
        """The number of edges of a relation, or of all relations (None)."""
        if etype is not None:
            return self.relation(etype).num_edges
        return sum([relation.num_edges for relation in self.relations.values()])

    @property
    def idtype(self) -> torch.dtype:
        """The dtype of all ids: torch.int64 or torch.int32."""
        return self.any_index().dtype

    @property
    def device(self) -> torch.device:
        """The device of structure and data."""
        return self.any_index().device

    def any_index(self) -> Tensor:
        """An index tensor of the graph, of its idtype and on its device."""
        return next(iter(self.relations.values())).src

    def _ids_of(self, ntype: str) -> Tensor:
        return torch.arange(self.node_frames[ntype].num_rows, dtype=self.idtype, device=self.device)

    # Queries

    def has_nodes(self, vid: object, ntype: str | None = None) -> Any:
        """Whether each id names a node: bool [k], or a bool for one integer. IndexRangeError for a negative id."""
        num = self.node_frame(ntype).num_rows
        ids, single = query.as_ids(vid, torch.iinfo(self.idtype).max, self.any_index(), "node")
        found = ids < num
        return bool(found) if single else found

    def has_edges_between(self, u: object, v: object, etype: Etype | None = None) -> Any:
        """Whether there is an edge u[i] -> v[i]: bool [k], or a bool for two integers.

        If u or v is a single node, it is paired with every node of the other.
        """
        relation, u, v, single = self._pairs(u, v, etype)
        found = query.has_edges(relation, u, v, self.num_destinations(relation))
        return bool(found) if single else found

    def edge_ids(self, u: object, v: object, return_uv: bool = False, etype: Etype | None = None) -> Any:
        """The number of the edge u[i] -> v[i], the smallest if there are several: [k], or an int for two integers.

        With `return_uv` the result is (u, v, number), [m] each, of all edges u[i] -> v[i], pair after pair. DataError
        if a pair has no edge.
        """
        relation, u, v, single = self._pairs(u, v, etype)
        if return_uv:
            return query.all_edges_between(relation, u, v, self.num_destinations(relation))
        found = query.first_edges(relation, u, v, self.num_destinations(relation))
        return int(found) if single else found

    def find_edges(self, eid: object, etype: Etype | None = None) -> tuple[Tensor, Tensor]:
        """(sources, destinations), [k] each, of the edges with the numbers `eid`."""
        relation = self.relation(etype)
        ids, _ = query.as_ids(eid, relation.num_edges, relation.src, "edge")
        return relation.src[ids], relation.dst[ids]

    def all_edges(self, form: Form = "uv", order: str | None = "eid", etype: Etype | None = None) -> Any:
        """All edges: (src, dst) for form "uv", numbers for "eid", (src, dst, numbers) for "all", [num_edges] each.

        Edges are sorted by number (order "eid" or None), or by source, then destination, then number ("srcdst").
        """
        relation = self.relation(etype)
        if order not in (None, "eid", "srcdst"):
            raise DataError(f"expected order 'eid' or 'srcdst' (got {order!r}). Pass one of these.")
        if order == "srcdst":
            return _formed(relation, query.source_order(relation, self.num_destinations(relation)), form)
        if form == "uv":
            return relation.src, relation.dst
        eids = torch.arange(relation.num_edges, dtype=self.idtype, device=self.device)
        return eids if form == "eid" else (relation.src, relation.dst, eids) if form == "all" else _no_form(form)

    def in_edges(self, v: object, form: Form = "uv", etype: Etype | None = None) -> Any:
        """The edges that end in the nodes v, node after node, by number within a node; forms as in `all_edges`."""
        relation = self.relation(etype)
        ids, _ = query.as_ids(v, self.num_destinations(relation), relation.dst, "node")
        return _formed(relation, query.edges_of_rows(relation.dst, self.num_destinations(relation), ids)[0], form)

    def out_edges(self, u: object, form: Form = "uv", etype: Etype | None = None) -> Any:
        """The edges that start in the nodes u, node after node, by number within a node; forms as in `all_edges`."""
        relation = self.relation(etype)
        ids, _ = query.as_ids(u, self.num_sources(relation), relation.src, "node")
        return _formed(relation, query.edges_of_rows(relation.src, self.num_sources(relation), ids)[0], form)

    def predecessors(self, v: int, etype: Etype | None = None) -> Tensor:
        """Sources of the edges that end in node v, by edge number. A source occurs once for each of its edges."""
        return self.in_edges(v, "uv", etype)[0]

    def successors(self, v: int, etype: Etype | None = None) -> Tensor:
        """Destinations of the edges that start in node v, by edge number. A node occurs once for each of its edges."""
        return self.out_edges(v, "uv", etype)[1]

    def in_degrees(self, v: object = None, etype: Etype | None = None) -> Any:
        """The number of edges that end in each node: [num_nodes], [k] for nodes v, an int for one integer."""
        relation = self.relation(etype)
        return _degrees(relation.dst, self.num_destinations(relation), v)

    def out_degrees(self, u: object = None, etype: Etype | None = None) -> Tensor:
        """The number of edges that start in each node: [num_nodes], [k] for nodes u, an int for one integer."""
        relation = self.relation(etype)
        return _degrees(relation.src, self.num_sources(relation), u)

    def num_sources(self, relation: Relation) -> int:
        """The number of nodes of the type at which the relation's edges start."""
        return self.node_frames[relation.srctype].num_rows

    def num_destinations(self, relation: Relation) -> int:
        """The number of nodes of the type at which the relation's edges end."""
        return self.node_frames[relation.dsttype].num_rows

    def _pairs(self, u: object, v: object, etype: Etype | None) -> tuple[Relation, Tensor, Tensor, bool]:
        relation = self.relation(etype)
        u, one_u = query.as_ids(u, self.num_sources(relation), relation.src, "node")
        v, one_v = query.as_ids(v, self.num_destinations(relation), relation.dst, "node")
        u, v = query.pairs(u, v, (one_u, one_v))
        return relation, u, v, one_u and one_v

    def edge_index(self, etype: Etype | None = None) -> Tensor:
        """Sources and destinations as PyG has them: a copy, [2, num_edges], of the graph's idtype."""
        relation = self.relation(etype)
        return torch.stack([relation.src, relation.dst])

    # Batches

    @property
    def batch_size(self) -> int:
        """The number of graphs in the batch; 1 for a graph that is not a batch."""
        return 1 if self.batch_counts is None else next(iter(self.batch_counts[0].values())).shape[0]

    def batch_num_nodes(self, ntype: str | None = None) -> Tensor:
        """The number of nodes of each batched graph: int64 [batch_size]."""
        frame = self.node_frame(ntype)
        if self.batch_counts is None:
            return torch.full((1,), frame.num_rows, dtype=torch.int64, device=self.device)
        return self.batch_counts[0][self.to_ntype(ntype)]

    def batch_num_edges(self, etype: Etype | None = None) -> Tensor:
        """The number of edges of each batched graph: int64 [batch_size]."""
        relation = self.relation(etype)
        if self.batch_counts is None:
            return torch.full((1,), relation.num_edges, dtype=torch.int64, device=self.device)
        return self.batch_counts[1][relation.key]

    def __repr__(self) -> str:
        if self.is_homogeneous:
            return (
                f"Graph(num_nodes={self.num_nodes()}, num_edges={self.num_edges()}, "
                f"ndata={described_fields(self.node_frame())}, edata={described_fields(self.edge_frame())})"
            )
        nodes = {ntype: frame.num_rows for ntype, frame in self.node_frames.items()}
        edges = {key: relation.num_edges for key, relation in self.relations.items()}
        return f"Graph(num_nodes={nodes}, num_edges={edges})"


G = TypeVar("G", bound=Structure)


class LocalScope:
    """Restores the fields of frames at the end of a `with` block."""

    def __init__(self, frames: list[Frame]) -> None:
        self._frames = frames
        self._saved: list[dict[str, Tensor]] = []

    def __enter__(self) -> None:
        self._saved = [frame._fields for frame in self._frames]
        for frame in self._frames:
            frame._fields = dict(frame._fields)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for frame, saved in zip(self._frames, self._saved, strict=True):
            frame._fields = saved


def _degrees(index: Tensor, num_rows: int, rows: object) -> Any:
    if rows is None or query.is_all(rows):
        return query.degrees(index, num_rows)
    ids, single = query.as_ids(rows, num_rows, index, "node")
    found = query.degrees(index, num_rows)[ids]
    return int(found) if single else found


def _formed(relation: Relation, eids: Tensor, form: str) -> Tensor | tuple[Tensor, ...]:
    if form == "eid":
        return eids
    if form not in ("uv", "all"):
        _no_form(form)
    ends = relation.src[eids], relation.dst[eids]
    return ends if form == "uv" else (*ends, eids)


def _no_form(form: str) -> object:
    raise DataError(f"expected form 'uv', 'eid' or 'all' (got {form!r}). Pass one of these.")
