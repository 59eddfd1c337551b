"""Functions that make a graph from a graph: subgraphs, reversal, self-loops added or removed, both directions.

Nodes and edges that are kept keep their fields. If nodes or edges are selected, the field '_ID' holds the numbers that
they had before. A batch stays a batch under `local_var`, `moved`, `with_idtype`, `relation_slice` and
`remove_self_loop`; the other functions return a graph that is not a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph import query
from graphweave.graph.argument_types import Device
from graphweave.graph.assemble import Counts, assemble, counts
from graphweave.graph.frame import EID, NID, Frame
from graphweave.graph.relation import CanonicalEtype, Etype, Relation
from graphweave.graph.structure import G, Structure

_REDUCTIONS = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin"}
"""Reductions that `add_self_loop` takes as `fill_data`, and their names in `scatter_reduce`."""


def local_var(g: G) -> G:
    """A graph with the same structure and fields. Setting a field of one graph does not change the other."""
    nodes = {ntype: frame.copy() for ntype, frame in g.node_frames.items()}
    edges = {key: frame.copy() for key, frame in g.edge_frames.items()}
    return with_type_fields(g, type(g)(g.relations, nodes, edges, g.batch_counts), lambda t: t)


def moved(g: G, device: Device) -> G:
    """The graph with structure and fields on `device`; the graph itself if they are already there."""
    if torch.device(device) == g.device:
        return g

    def move(t: Tensor) -> Tensor:
        return t.to(device)

    nodes = {ntype: frame.map(move, move(_like(frame))) for ntype, frame in g.node_frames.items()}
    relations = {key: Relation(*key, move(r.src), move(r.dst)) for key, r in g.relations.items()}
    edges = {key: frame.map(move, relations[key].src) for key, frame in g.edge_frames.items()}
    batch = None
    if g.batch_counts is not None:
        num_nodes, num_edges = g.batch_counts
        batch = {t: move(n) for t, n in num_nodes.items()}, {key: move(n) for key, n in num_edges.items()}
    return with_type_fields(g, type(g)(relations, nodes, edges, batch), move)


def with_idtype(g: G, dtype: torch.dtype) -> G:
    """The graph with ids of `dtype`; the graph itself if its ids already have it. DataError if an id would not fit."""
    if g.idtype == dtype:
        return g
    if max((*counts(g).values(), *(r.num_edges for r in g.relations.values()))) > torch.iinfo(dtype).max:
        raise DataError(
            f"expected at most {torch.iinfo(dtype).max} nodes and edges for {dtype} (got {g!r})."
            " Convert the graph with .long()."
        )
    relations = {key: Relation(*key, r.src.to(dtype), r.dst.to(dtype)) for key, r in g.relations.items()}
    nodes = {ntype: frame.copy() for ntype, frame in g.node_frames.items()}
    edges = {key: frame.map(lambda t: t, relations[key].src) for key, frame in g.edge_frames.items()}
    return with_type_fields(g, type(g)(relations, nodes, edges, g.batch_counts), lambda t: t)


def relation_slice(g: G, etype: str | tuple[object, object, object]) -> G:
    """One relation as a graph that shares the fields of `g`: a field set in one of them is set in the other.

    `etype`: a name, or (source type, name, destination type), where ":" stands for any.
    """
    if isinstance(etype, tuple):
        every = slice(None)
        found = [
            key for key in g.relations if all(want in (every, have) for want, have in zip(etype, key, strict=True))
        ]
        if len(found) != 1:
            raise DataError(
                f"{etype!r} names {len(found)} relations, expected one of {', '.join(map(str, g.relations))}."
                " Name one of these."
            )
        key = found[0]
    else:
        key = g.to_canonical_etype(etype)
    return of_types(g, dict.fromkeys((key[0], key[2])), [key])


def of_types(g: G, ntypes: Iterable[str], etypes: Iterable[CanonicalEtype]) -> G:
    """The nodes of these types and the edges of these relations, in this order. Fields are shared with `g`."""
    nodes = {ntype: g.node_frames[ntype] for ntype in ntypes}
    edges = {key: g.edge_frames[key] for key in etypes}
    batch = None
    if g.batch_counts is not None:
        batch = {t: g.batch_counts[0][t] for t in nodes}, {key: g.batch_counts[1][key] for key in edges}
    return type(g)({key: g.relations[key] for key in edges}, nodes, edges, batch)


def shared(kind: type[G], g: Structure) -> G:
    """A graph of class `kind` with the structure of `g`. Fields are shared: a field set in one is set in the other."""
    out = kind(g.relations, g.node_frames, g.edge_frames, g.batch_counts)
    out._ntype_data, out._etype_data = g._ntype_data, g._etype_data
    return out


def replace_edges(
    g: G,
    relations: Mapping[CanonicalEtype, Relation],
    edata: Mapping[CanonicalEtype, Mapping[str, Tensor]] | None = None,
    *,
    num_nodes: Mapping[str, int] | None = None,
    ndata: Mapping[str, Mapping[str, Tensor]] | None = None,
    batch: Counts | None = None,
) -> G:
    """The graph with these relations, whose edges have the fields `edata`, instead of its own.

    Nodes stay, with their fields, unless `num_nodes` and `ndata` say by type how many there are and which fields they
    have. The result is a batch if `batch` has its numbers of nodes and edges. Indices and fields are not checked.
    """
    sizes = counts(g) if num_nodes is None else num_nodes
    return assemble(type(g), sizes, relations, fields_of_nodes(g) if ndata is None else ndata, edata, batch)


def subgraph(g: G, nodes: object, *, relabel_nodes: bool = True, store_ids: bool = True) -> G:
    """The given nodes and all edges between them. Edges are sorted by source, in the order of `nodes`, then by number.

    `nodes`: distinct ids or a mask [num_nodes]; with several types a dict, type -> ids, in which types may be missing.
    Node i of the result is nodes[i]; without `relabel_nodes` all nodes stay and keep their numbers. `store_ids`:
    whether the result has the field '_ID'.
    """
    kept = _nodes_by_type(g, nodes)
    numbers: dict[str, Tensor] = {}
    for ntype, num in counts(g).items():
        number = torch.full((num,), -1, dtype=g.idtype, device=g.device)
        number[kept[ntype]] = torch.arange(kept[ntype].shape[0], dtype=g.idtype, device=g.device)
        if int((number >= 0).sum()) != kept[ntype].shape[0]:
            raise DataError(
                f"subgraph: expected distinct nodes (got one of type {ntype!r} twice). Pass each node once."
            )
        numbers[ntype] = number
    edges: dict[CanonicalEtype, Tensor] = {}
    for key, relation in g.relations.items():
        out, _ = query.edges_of_rows(relation.src, g.num_sources(relation), kept[relation.srctype])
        edges[key] = out[numbers[relation.dsttype][relation.dst[out]] >= 0]
    return _of_edges(g, edges, (kept, numbers) if relabel_nodes else None, store_ids)


def edge_subgraph(g: G, edges: object, *, relabel_nodes: bool = True, store_ids: bool = True) -> G:
    """The given edges, in the given order, and the nodes at their ends.

    `edges`: ids or a mask [num_edges]; with several relations a dict, relation -> ids, in which relations may be
    missing. Nodes are numbered in the order in which they first occur in the sources and then the destinations of the
    first relation, then of the second, and so on; without `relabel_nodes` all nodes stay and keep their numbers.
    """
    given = _dict_of(edges, g.relations, "relations")
    chosen = {g.to_canonical_etype(key): value for key, value in given.items()}
    kept = {
        key: query.as_selection(chosen.get(key, []), relation.num_edges, relation.src, "edge")
        for key, relation in g.relations.items()
    }
    return _of_edges(g, kept, _nodes_met(g, kept) if relabel_nodes else None, store_ids)


def in_subgraph(g: G, nodes: object, *, relabel_nodes: bool = False, store_ids: bool = True) -> G:
    """The edges that end in the given nodes (as in `subgraph`), node after node, by number within a node.

    All nodes stay, or with `relabel_nodes` only the nodes at the ends of these edges.
    """
    kept = _nodes_by_type(g, nodes)
    edges = {
        key: query.edges_of_rows(relation.dst, g.num_destinations(relation), kept[relation.dsttype])[0]
        for key, relation in g.relations.items()
    }
    return _of_edges(g, edges, _nodes_met(g, edges) if relabel_nodes else None, store_ids)


def out_subgraph(g: G, nodes: object, *, relabel_nodes: bool = False, store_ids: bool = True) -> G:
    """Like `in_subgraph`, for the edges that start in the given nodes."""
    kept = _nodes_by_type(g, nodes)
    edges = {
        key: query.edges_of_rows(relation.src, g.num_sources(relation), kept[relation.srctype])[0]
        for key, relation in g.relations.items()
    }
    return _of_edges(g, edges, _nodes_met(g, edges) if relabel_nodes else None, store_ids)


def reverse(g: G, copy_ndata: bool = True, copy_edata: bool = False) -> G:
    """The graph with edges dst[e] -> src[e]; a relation (a, r, b) becomes (b, r, a). DataError if two relations would
    become one."""
    relations = {
        (r.dsttype, r.etype, r.srctype): Relation(r.dsttype, r.etype, r.srctype, r.dst, r.src) for r in _all(g)
    }
    if len(relations) != len(g.relations):
        raise DataError(
            f"reverse: two relations would have the same name (got {', '.join(map(str, g.relations))})."
            " Rename one of them first."
        )
    edata = {(d, r, s): g.edge_frames[s, r, d].take(None) for s, r, d in g.relations} if copy_edata else None
    return assemble(type(g), counts(g), relations, fields_of_nodes(g) if copy_ndata else None, edata)


def add_self_loop(
    g: G,
    edge_feat_names: list[str] | None = None,
    fill_data: float | str = 1.0,
    etype: Etype | None = None,
) -> G:
    """The graph with an edge v -> v for each node v, after the other edges of the relation `etype`. Existing self-loops
    stay.

    The fields `edge_feat_names` (all by default) are kept, others are dropped. In the added edges they hold the number
    `fill_data`, or, if that is "sum", "mean", "max" or "min", this reduction over the node's incoming edges (0 without
    any).
    """
    relation = g.relation(etype)
    if relation.srctype != relation.dsttype:
        raise DataError(
            f"add_self_loop: relation {relation.key} joins two node types; a loop needs one."
            " Name another relation by etype=."
        )
    num = g.num_destinations(relation)
    loops = torch.arange(num, dtype=g.idtype, device=g.device)
    frame = g.edge_frames[relation.key]
    names = list(frame) if edge_feat_names is None else edge_feat_names
    fields = {name: torch.cat([frame[name], _filling(frame[name], fill_data, relation, num)]) for name in names}
    ends = torch.cat([relation.src, loops]), torch.cat([relation.dst, loops])
    return _with_relation(g, Relation(*relation.key, *ends), fields)


def _filling(field: Tensor, fill: float | str, relation: Relation, num: int) -> Tensor:
    shape = (num, *field.shape[1:])
    if not isinstance(fill, str):
        return field.new_full(shape, fill)
    if fill not in _REDUCTIONS:
        raise DataError(
            f"add_self_loop: expected a number or one of {', '.join(_REDUCTIONS)} as fill_data (got {fill!r})."
            " Pass one of these."
        )
    index = relation.dst.long().reshape(-1, *[1] * (field.dim() - 1)).expand_as(field)
    return field.new_zeros(shape).scatter_reduce(0, index, field, _REDUCTIONS[fill], include_self=False)


def remove_self_loop(g: G, etype: Etype | None = None) -> G:
    """The graph without the edges v -> v of relation `etype`. Other edges keep their order. A batch stays one."""
    relation = g.relation(etype)
    if relation.srctype != relation.dsttype:
        raise DataError(
            f"remove_self_loop: relation {relation.key} joins two node types and has no loops."
            " Name another relation by etype=."
        )
    keep = relation.src != relation.dst
    out = _with_relation(
        g, Relation(*relation.key, relation.src[keep], relation.dst[keep]), g.edge_frames[relation.key].take(keep)
    )
    if g.batch_counts is not None:
        nodes, edges = g.batch_counts
        graph = torch.repeat_interleave(edges[relation.key])
        left = torch.zeros_like(edges[relation.key]).index_add(0, graph, keep.long())
        out.batch_counts = dict(nodes), {**edges, relation.key: left}
    return out


def to_bidirected(g: G, copy_ndata: bool = False) -> G:
    """A graph with one edge u -> v and one edge v -> u for every edge u -> v, sorted by source, then destination. Edges
    have no fields."""
    relations: dict[CanonicalEtype, Relation] = {}
    for r in _all(g):
        if r.srctype != r.dsttype:
            raise DataError(f"to_bidirected: relation {r.key} joins two node types. Take out that relation first.")
        num = max(g.num_sources(r), 1)
        u, v = torch.cat([r.src, r.dst]).long(), torch.cat([r.dst, r.src]).long()
        keys = torch.unique(u * num + v)
        src = torch.div(keys, num, rounding_mode="floor")
        relations[r.key] = Relation(*r.key, src.to(g.idtype), (keys - src * num).to(g.idtype))
    return assemble(type(g), counts(g), relations, fields_of_nodes(g) if copy_ndata else None)


def _all(g: Structure) -> list[Relation]:
    return list(g.relations.values())


def fields_of_nodes(g: Structure) -> dict[str, dict[str, Tensor]]:
    """Node type -> the fields of its nodes."""
    return {ntype: frame.take(None) for ntype, frame in g.node_frames.items()}


def _like(frame: Frame) -> Tensor:
    assert frame._like is not None
    return frame._like


def with_type_fields(g: G, out: G, fn: Callable[[Tensor], Tensor]) -> G:
    """`out` with `fn` applied to the fields that `g` has for types (`ntype_data`, `etype_data`)."""
    out._ntype_data, out._etype_data = g._ntype_data.map(fn, None), g._etype_data.map(fn, None)
    return out


def _with_relation(g: G, relation: Relation, fields: Mapping[str, Tensor]) -> G:
    """g with its relation of that name replaced by `relation`, which has the edge fields `fields`."""
    relations = {**g.relations, relation.key: relation}
    edata = {key: frame.take(None) for key, frame in g.edge_frames.items() if key != relation.key}
    return with_type_fields(
        g,
        assemble(type(g), counts(g), relations, fields_of_nodes(g), {**edata, relation.key: dict(fields)}),
        lambda t: t,
    )


def by_ntype(g: Structure, given: object) -> dict[str, Any]:
    """Node type -> value, from a mapping of types or from the value of the only type; empty for None. DataError for
    another type, and for one value where there are several."""
    named = {} if given is None else given if isinstance(given, Mapping) else {None: given}
    return {g.to_ntype(t): value for t, value in named.items()}


def by_relation(g: Structure, given: object) -> dict[CanonicalEtype, Any]:
    """Like `by_ntype`, for relations, which a mapping may name in any way."""
    named = {} if given is None else given if isinstance(given, Mapping) else {None: given}
    return {g.to_canonical_etype(etype): value for etype, value in named.items()}


def _dict_of(value: object, types: Iterable[object], what: str) -> dict[Any, object]:
    if isinstance(value, Mapping):
        return dict(value)
    types = list(types)
    if len(types) > 1:
        raise DataError(
            f"the graph has several {what}, {', '.join(map(str, types))}; give a dict of type -> ids. Name the types."
        )
    return dict.fromkeys(types, value)


def _nodes_by_type(g: Structure, nodes: object) -> dict[str, Tensor]:
    """Node ids by type, for every type. A type that `nodes` leaves out has no ids."""
    given = {g.to_ntype(t): value for t, value in _dict_of(nodes, g.node_frames, "node types").items()}
    like = g.any_index()
    return {t: query.as_selection(given.get(t, []), num, like, "node") for t, num in counts(g).items()}


def _nodes_met(g: Structure, edges: Mapping[CanonicalEtype, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """By type, the nodes at the ends of `edges` in the order in which they first occur, and for each node of g its
    position among these (-1 for other nodes)."""
    ends: dict[str, list[Tensor]] = {ntype: [] for ntype in g.node_frames}
    for key, relation in g.relations.items():
        ends[relation.srctype].append(relation.src[edges[key]])
        ends[relation.dsttype].append(relation.dst[edges[key]])
    kept: dict[str, Tensor] = {}
    numbers: dict[str, Tensor] = {}
    for ntype, num in counts(g).items():
        met = torch.cat([g.any_index().new_empty(0), *ends[ntype]]).long()
        first = torch.full((num,), met.shape[0], dtype=torch.int64, device=g.device)
        first.scatter_reduce_(0, met, torch.arange(met.shape[0], device=g.device), "amin")
        kept[ntype] = met[first[met] == torch.arange(met.shape[0], device=g.device)].to(g.idtype)
        numbers[ntype] = torch.full((num,), -1, dtype=g.idtype, device=g.device)
        numbers[ntype][kept[ntype]] = torch.arange(kept[ntype].shape[0], dtype=g.idtype, device=g.device)
    return kept, numbers


def _of_edges(
    g: G,
    edges: Mapping[CanonicalEtype, Tensor],
    nodes: tuple[dict[str, Tensor], dict[str, Tensor]] | None,
    store_ids: bool,
) -> G:
    """The graph of the given edges. `nodes` are, by type, the nodes to keep and the position of each node of g among
    these; None keeps all nodes."""
    relations: dict[CanonicalEtype, Relation] = {}
    edata: dict[CanonicalEtype, dict[str, Tensor]] = {}
    for key, r in g.relations.items():
        src, dst = r.src[edges[key]], r.dst[edges[key]]
        if nodes is not None:
            src, dst = nodes[1][r.srctype][src], nodes[1][r.dsttype][dst]
        relations[key] = Relation(*key, src, dst)
        edata[key] = g.edge_frames[key].take(edges[key])
        if store_ids:
            edata[key][EID] = edges[key]
    if nodes is None:
        return with_type_fields(g, assemble(type(g), counts(g), relations, fields_of_nodes(g), edata), lambda t: t)
    ndata = {ntype: frame.take(nodes[0][ntype]) for ntype, frame in g.node_frames.items()}
    if store_ids:
        for ntype, ids in nodes[0].items():
            ndata[ntype][NID] = ids
    sizes = {ntype: ids.shape[0] for ntype, ids in nodes[0].items()}
    return with_type_fields(g, assemble(type(g), sizes, relations, ndata, edata), lambda t: t)
