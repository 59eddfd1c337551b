"""Graphs with fewer types or fewer nodes: `node_type_subgraph`, `edge_type_subgraph`, `compact_graphs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.dgl.graph import DGLGraph, on_device
from graphweave.graph import query, transform
from graphweave.graph.argument_types import Device
from graphweave.graph.assemble import counts
from graphweave.graph.frame import NID
from graphweave.graph.relation import Etype


def node_type_subgraph(g: DGLGraph, ntypes: Sequence[str], output_device: Device | None = None) -> DGLGraph:
    """The nodes of these types, and the relations between them. Fields are shared: set in one graph, they are set in
    both."""
    kept = [g.to_ntype(t) for t in ntypes]
    return _with(g, kept, [key for key in g.relations if key[0] in kept and key[2] in kept], output_device)


def edge_type_subgraph(g: DGLGraph, etypes: Sequence[Etype], output_device: Device | None = None) -> DGLGraph:
    """These relations, and the nodes of the types that they join. Fields are shared."""
    keys = [g.to_canonical_etype(etype) for etype in etypes]
    return _with(g, [t for key in keys for t in (key[0], key[2])], keys, output_device)


def _with(g: DGLGraph, ntypes: Sequence[str], keys: Sequence[object], device: Device | None) -> DGLGraph:
    if not keys:
        raise DataError(f"expected node types that a relation joins (got {list(ntypes)}). Name further types.")
    nodes, edges = [t for t in g.node_frames if t in ntypes], [key for key in g.relations if key in keys]
    out = transform.of_types(g, nodes, edges)
    return on_device(out, device)


def compact_graphs(
    graphs: Any, always_preserve: object = None, copy_ndata: bool = True, copy_edata: bool = True
) -> Any:
    """Graphs without the nodes that have no edge in any of them. Equal nodes have equal numbers in all of them.

    `always_preserve`: nodes that stay all the same, ids or node type -> ids. The field '_ID' of nodes holds the numbers
    that they had. A list of graphs gives a list. DataError if graphs disagree in the numbers of nodes of a type.
    """
    several = isinstance(graphs, Sequence)
    given = list(graphs) if several else [graphs]
    sizes: dict[str, int] = {}
    for g in given:
        for t, n in counts(g).items():
            if sizes.setdefault(t, n) != n:
                raise DataError(f"compact_graphs: graphs have {sizes[t]} and {n} nodes of type {t!r}. Make them equal.")
    first = given[0]
    stays = {t: torch.zeros(n, dtype=torch.bool, device=first.device) for t, n in sizes.items()}
    for t, ids in transform.by_ntype(first, always_preserve).items():
        stays[t][query.as_selection(ids, sizes[t], first.any_index(), "node").long()] = True
    for g in given:
        for r in g.relations.values():
            stays[r.srctype][r.src.long()] = True
            stays[r.dsttype][r.dst.long()] = True
    kept = {t: x.nonzero().squeeze(1) for t, x in stays.items()}
    place = {t: (x.cumsum(0) - 1).to(first.idtype) for t, x in stays.items()}
    found = [_compacted(g, kept, place, copy_ndata, copy_edata) for g in given]
    return found if several else found[0]


def _compacted(
    g: DGLGraph, kept: Mapping[str, Tensor], place: Mapping[str, Tensor], ndata: bool, edata: bool
) -> DGLGraph:
    relations = {
        key: replace(r, src=place[r.srctype][r.src.long()], dst=place[r.dsttype][r.dst.long()])
        for key, r in g.relations.items()
    }
    fields = {
        t: {**(frame.take(kept[t]) if ndata else {}), NID: kept[t].to(g.idtype)} for t, frame in g.node_frames.items()
    }
    of_edges = {key: g.edge_frames[key].take(None) for key in relations} if edata else None
    sizes = {t: len(kept[t]) for t in fields}
    return transform.replace_edges(g, relations, of_edges, num_nodes=sizes, ndata=fields)
