"""Graphs in another order: `reorder_graph`, `sort_csr_by_tag`, `sort_csc_by_tag`; and `norm_by_dst`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.core.locality import cuthill_mckee
from graphweave.dgl.graph import DGLGraph
from graphweave.dgl.hops import one_relation
from graphweave.graph import transform
from graphweave.graph.frame import EID, NID
from graphweave.graph.relation import Etype, Relation
from graphweave.sampling.partition import found_clusters
from graphweave.sampling.undirected import undirected_of

_NODES, _EDGES = ("rcmk", "metis", "custom"), ("src", "dst", "custom")


def reorder_graph(
    g: DGLGraph,
    node_permute_algo: str | None = None,
    edge_permute_algo: str = "src",
    store_ids: bool = True,
    permute_config: Mapping[str, object] | None = None,
) -> DGLGraph:
    """The graph with its nodes and edges renumbered.

    `node_permute_algo`: None keeps the nodes in order, "rcmk" is the reverse Cuthill-McKee order, "metis" puts the
    nodes of each of `permute_config["k"]` clusters one after the other (label propagation's where pymetis is absent),
    and with "custom" node i is the node `permute_config["nodes_perm"][i]` of g. `edge_permute_algo`: edges by their
    sources, by their destinations, or "custom": `permute_config["edges_perm"]`. With `store_ids` the field '_ID' holds
    the old numbers. DataError for another algorithm, a missing or wrong entry of `permute_config`, and for graphs with
    several types.
    """
    r, config = one_relation(g, "reorder_graph"), dict(permute_config or {})
    num = g.num_destinations(r)
    if node_permute_algo not in (None, *_NODES):
        raise DataError(
            f"reorder_graph: expected one of {', '.join(_NODES)} or None (got {node_permute_algo!r}). Pass one."
        )
    if edge_permute_algo not in _EDGES:
        raise DataError(
            f"reorder_graph: expected one of {', '.join(_EDGES)} (got {edge_permute_algo!r}). Pass one of them."
        )
    nodes = torch.arange(num)
    if node_permute_algo == "rcmk":
        nodes = torch.argsort(cuthill_mckee(r.dst.cpu(), r.src.cpu(), num, num, one_space=True)[0])
    elif node_permute_algo == "metis":
        joined = undirected_of(r.src, r.dst, num)
        nodes = torch.argsort(found_clusters(joined, int(_entry(config, "k")), None, 0)[0], stable=True)
    elif node_permute_algo == "custom":
        nodes = _permutation(config, "nodes_perm", num)
    nodes = nodes.to(g.device)
    place = torch.empty_like(nodes).index_put((nodes,), torch.arange(num, device=g.device)).to(g.idtype)
    src, dst = place[r.src.long()], place[r.dst.long()]
    if edge_permute_algo == "custom":
        edges = _permutation(config, "edges_perm", r.num_edges).to(g.device)
    else:
        edges = torch.argsort(src if edge_permute_algo == "src" else dst, stable=True)
    ndata, edata = g.node_frames[r.srctype].take(nodes), g.edge_frames[r.key].take(edges)
    if store_ids:
        ndata[NID], edata[EID] = nodes.to(g.idtype), edges.to(g.idtype)
    reordered = Relation(*r.key, src[edges], dst[edges])
    return transform.replace_edges(g, {r.key: reordered}, {r.key: edata}, ndata={r.srctype: ndata})


def _entry(config: Mapping[str, object], name: str) -> Any:
    if name not in config:
        raise DataError(f"reorder_graph: permute_config lacks {name!r}. Add it.")
    return config[name]


def _permutation(config: Mapping[str, object], name: str, num: int) -> Tensor:
    found = torch.as_tensor(_entry(config, name)).long()
    if not torch.equal(found.sort().values, torch.arange(num)):
        raise DataError(
            f"reorder_graph: {name!r} must hold each number below {num} once (got {list(found.shape)} numbers)."
            " Pass such a list."
        )
    return found


def norm_by_dst(g: DGLGraph, etype: Etype | None = None) -> Tensor:
    """1 / (the number of edges that end where edge e ends), float32 [num_edges]."""
    r = g.relation(etype)
    degree = torch.bincount(r.dst.long(), minlength=g.num_destinations(r))
    return 1 / degree[r.dst.long()].float()


def sort_csr_by_tag(g: DGLGraph, tag: Tensor, tag_offset_name: str = "_TAG_OFFSET", tag_type: str = "node") -> DGLGraph:
    """The graph with its edges sorted by source, then by tag, so that the edges of a source with one tag lie together.

    `tag`: int [num_dst] ("node"), or [num_edges] ("edge"), from 0 up. The field `tag_offset_name` of sources, int
    [num_src, tags + 1], says where among a source's edges those of each tag begin. (DGL keeps the numbers of the edges,
    and sorts a format alone.)
    """
    return _sorted_by_tag(g, tag, tag_offset_name, tag_type, rows="src")


def sort_csc_by_tag(g: DGLGraph, tag: Tensor, tag_offset_name: str = "_TAG_OFFSET", tag_type: str = "node") -> DGLGraph:
    """Like `sort_csr_by_tag`, by destination, with the tags of sources."""
    return _sorted_by_tag(g, tag, tag_offset_name, tag_type, rows="dst")


def _sorted_by_tag(g: DGLGraph, tag: Tensor, name: str, tag_type: str, rows: str) -> DGLGraph:
    r = g.relation(None)
    row, other = (r.src, r.dst) if rows == "src" else (r.dst, r.src)
    num_rows, num_others = g.num_sources(r), g.num_destinations(r)
    if rows == "dst":
        num_rows, num_others = num_others, num_rows
    expected = num_others if tag_type == "node" else r.num_edges
    if tag_type not in ("node", "edge") or len(tag) != expected:
        raise DataError(
            f"expected a tag for each of {expected} nodes (tag_type='node') or edges ('edge') (got {len(tag)} tags of"
            f" {tag_type!r}). Pass as many."
        )
    tag = tag.to(g.device).long()
    tags = tag[other.long()] if tag_type == "node" else tag
    num_tags = int(tag.max()) + 1 if len(tag) else 0
    edges = torch.argsort(row.long() * max(num_tags, 1) + tags, stable=True)
    many = torch.bincount(row.long() * max(num_tags, 1) + tags, minlength=num_rows * num_tags).view(num_rows, num_tags)
    offsets = torch.nn.functional.pad(many.cumsum(1), (1, 0)).to(g.idtype)
    ndata = {t: frame.take(None) for t, frame in g.node_frames.items()}
    ndata[r.srctype if rows == "src" else r.dsttype][name] = offsets
    reordered = replace(r, src=r.src[edges], dst=r.dst[edges])
    return transform.replace_edges(g, {r.key: reordered}, {r.key: g.edge_frames[r.key].take(edges)}, ndata=ndata)
