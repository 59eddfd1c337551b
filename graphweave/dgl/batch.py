"""`batch`, `unbatch` and `slice_batch`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from graphweave.core.errors import DataError, IndexRangeError
from graphweave.dgl.graph import DGLGraph
from graphweave.graph import batch as graphs_in_batch
from graphweave.graph import query, transform
from graphweave.graph.frame import EID, NID
from graphweave.graph.relation import Relation
from graphweave.graph.structure import G


def batch(graphs: Sequence[DGLGraph], ndata: object = query.ALL, edata: object = query.ALL) -> DGLGraph:
    """`graphweave.batch`: one graph of all these graphs, one after the other. DataError for blocks, which have no
    batch."""
    graphs = list(graphs)
    if any(g.is_block for g in graphs):
        raise DataError("batch: expected graphs (got a block). Convert it with block_to_graph.")
    for names in (ndata, edata):
        if not (names is None or query.is_all(names) or isinstance(names, list)):
            raise DataError(
                f"batch: expected a list of names of fields, ALL or None (got {names!r}). Pass one of these."
            )
    return graphs_in_batch.batch(graphs, ndata, edata)


def unbatch(g: DGLGraph, node_split: object = None, edge_split: object = None) -> list[DGLGraph]:
    """`graphweave.unbatch`: the graphs of a batch. If one of the two splits is given, the other must be."""
    if (node_split is None) != (edge_split is None):
        raise DataError("unbatch: expected both splits or none (got one). Pass node_split and edge_split.")
    return graphs_in_batch.unbatch(g, node_split, edge_split)


def slice_batch(g: G, gid: int, store_ids: bool = False) -> G:
    """Graph number `gid` of a batch, with its fields. With `store_ids` the field '_ID' holds the numbers that nodes and
    edges have in the batch. IndexRangeError for a number that is not in the batch."""
    if not 0 <= gid < g.batch_size:
        raise IndexRangeError(f"slice_batch: expected a graph in 0..{g.batch_size} (got {gid}). Pass another.")
    starts, sizes, ndata, relations, edata = {}, {}, {}, {}, {}
    for t, frame in g.node_frames.items():
        counts = g.batch_num_nodes(t)
        starts[t], sizes[t] = int(counts[:gid].sum()), int(counts[gid])
        rows = torch.arange(starts[t], starts[t] + sizes[t], device=g.device)
        ndata[t] = frame.take(rows)
        if store_ids:
            ndata[t][NID] = rows.to(g.idtype)
    for key, r in g.relations.items():
        counts = g.batch_num_edges(key)
        start = int(counts[:gid].sum())
        rows = torch.arange(start, start + int(counts[gid]), device=g.device)
        relations[key] = Relation(*key, r.src[rows] - starts[r.srctype], r.dst[rows] - starts[r.dsttype])
        edata[key] = g.edge_frames[key].take(rows)
        if store_ids:
            edata[key][EID] = rows.to(g.idtype)
    out = transform.replace_edges(g, relations, edata, num_nodes=sizes, ndata=ndata)
    return transform.with_type_fields(g, out, lambda t: t)
