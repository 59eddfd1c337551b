"""Changes of a graph's structure: each makes a graph with other relations, which the changed one takes over."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph import query, transform
from graphweave.graph.assemble import counts
from graphweave.graph.frame import EID, NID, Frame
from graphweave.graph.relation import CanonicalEtype, Etype, Relation
from graphweave.graph.structure import G, Structure


def with_nodes(g: G, num: int, data: Mapping[str, Tensor] | None, ntype: str | None) -> G:
    if num < 0:
        raise DataError(f"add_nodes: expected a number of nodes >= 0 (got {num}). Use remove_nodes to remove nodes.")
    ntype = g.to_ntype(ntype)
    sizes, ndata = counts(g), {**transform.fields_of_nodes(g), ntype: _grown("node", g.node_frames[ntype], num, data)}
    sizes[ntype] += num
    return transform.replace_edges(g, g.relations, _edata(g), num_nodes=sizes, ndata=ndata, batch=g.batch_counts)


def with_edges(g: G, u: object, v: object, data: Mapping[str, Tensor] | None, etype: Etype | None) -> G:
    key = g.relation_key(etype)
    relation = g.relations[key]
    most = torch.iinfo(g.idtype).max
    u, one_u = query.as_ids(u, most, relation.src, "node")
    v, one_v = query.as_ids(v, most, relation.dst, "node")
    if not u.numel() or not v.numel():
        return g
    u, v = query.pairs(u, v, (one_u, one_v))
    for ntype, ids in ((relation.srctype, u), (relation.dsttype, v)):
        missing = int(ids.max()) + 1 - g.node_frames[ntype].num_rows
        if missing > 0:
            g = with_nodes(g, missing, None, ntype)
    edata = _edata(g)
    edata[key] = _grown("edge", g.edge_frames[key], u.shape[0], data)
    joined = Relation(*key, torch.cat([relation.src, u]), torch.cat([relation.dst, v]))
    return transform.replace_edges(g, {**g.relations, key: joined}, edata, batch=g.batch_counts)


def without_edges(g: G, eids: object, etype: Etype | None, store_ids: bool) -> G:
    key = g.relation_key(etype)
    num = g.relations[key].num_edges
    removed = query.as_selection(eids, num, g.any_index(), "edge").long()
    every = {k: torch.arange(r.num_edges, dtype=g.idtype, device=g.device) for k, r in g.relations.items()}
    left = torch.ones(num, dtype=torch.bool, device=g.device).index_fill(0, removed, False)
    every[key] = every[key][left]
    out = transform.edge_subgraph(g, every, relabel_nodes=False, store_ids=store_ids)
    if g.batch_counts is not None:
        nodes, edges = g.batch_counts
        out.batch_counts = nodes, {**edges, key: _counted(edges[key], left)}
    return out


def without_nodes(g: G, nids: object, ntype: str | None, store_ids: bool) -> G:
    ntype = g.to_ntype(ntype)
    num = g.node_frames[ntype].num_rows
    removed = query.as_selection(nids, num, g.any_index(), "node").long()
    left = torch.ones(num, dtype=torch.bool, device=g.device).index_fill(0, removed, False)
    place = left.cumsum(0).sub(1).to(g.idtype)
    relations: dict[CanonicalEtype, Relation] = {}
    edata, kept_edges = _edata(g), {}
    for key, r in g.relations.items():
        kept = torch.ones(r.num_edges, dtype=torch.bool, device=g.device)
        if r.srctype == ntype:
            kept &= left[r.src.long()]
        if r.dsttype == ntype:
            kept &= left[r.dst.long()]
        src, dst = r.src[kept], r.dst[kept]
        relations[key] = Relation(
            *key, place[src.long()] if r.srctype == ntype else src, place[dst.long()] if r.dsttype == ntype else dst
        )
        kept_edges[key] = kept
        edata[key] = g.edge_frames[key].take(kept)
        if store_ids:
            edata[key][EID] = kept.nonzero().squeeze(1).to(g.idtype)
    ndata = transform.fields_of_nodes(g)
    ndata[ntype] = g.node_frames[ntype].take(left)
    if store_ids:
        for t, frame in g.node_frames.items():
            rows = left if t == ntype else torch.ones(frame.num_rows, dtype=torch.bool, device=g.device)
            ndata[t][NID] = rows.nonzero().squeeze(1).to(g.idtype)
    batch = None
    if g.batch_counts is not None:
        nodes, edges = g.batch_counts
        batch = (
            {**nodes, ntype: _counted(nodes[ntype], left)},
            {key: _counted(edges[key], kept_edges[key]) for key in g.relations},
        )
    sizes = {**counts(g), ntype: int(left.sum())}
    return transform.replace_edges(g, relations, edata, num_nodes=sizes, ndata=ndata, batch=batch)


def _counted(sizes: Tensor, left: Tensor) -> Tensor:
    """How many rows of each graph are left, from the sizes [batch_size] and a mask of the rows."""
    graphs = torch.repeat_interleave(torch.arange(sizes.shape[0], device=left.device), sizes.to(left.device).long())
    return torch.zeros_like(sizes, device=left.device).index_add(0, graphs, left.to(sizes.dtype))


def _grown(kind: str, frame: Frame, num: int, data: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """The fields with `num` further rows: those of `data`, else what the frame's initializers give, else zeros."""
    given = {name: torch.as_tensor(x, device=frame.rows.device) for name, x in (data or {}).items()}
    for name, x in given.items():
        row = frame[name].shape[1:] if name in frame else x.shape[1:]
        if x.dim() == 0 or x.shape[0] != num or x.shape[1:] != row:
            raise DataError(
                f"expected data of shape {[num, *row]} for field {name!r} (got {list(x.shape)})."
                f" Give each new {kind} a row."
            )
    fields: dict[str, Tensor] = {}
    for name in {**dict.fromkeys(frame), **dict.fromkeys(given)}:
        rows = frame.num_rows
        old = frame[name] if name in frame else frame.initial(name, given[name])
        new = given[name] if name in given else frame.initial(name, old, slice(rows, rows + num))
        fields[name] = torch.cat([old, new.to(old.dtype)])
    return fields


def _edata(g: Structure) -> dict[CanonicalEtype, dict[str, Tensor]]:
    return {key: frame.take(None) for key, frame in g.edge_frames.items()}
