"""`merge`: the edges of several graphs over the same nodes in one graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from graphweave.core.errors import DataError
from graphweave.dgl.graph import DGLGraph
from graphweave.graph.assemble import assemble
from graphweave.graph.frame import Frame


def merge(graphs: Sequence[DGLGraph]) -> DGLGraph:
    """One graph with the edges of all graphs, the first graph's first. Graphs have nodes of the same types; a type has
    as many as the graph with the most. Fields of nodes are those of the last graph in which a node has them.

    DataError for no graphs, or for graphs that differ in types, idtype, device or the names and rows of fields.
    """
    graphs = list(graphs)
    if not graphs:
        raise DataError("merge: expected one graph at least (got none). Pass a list of graphs.")
    first = graphs[0]
    for i, g in enumerate(graphs):
        if (list(g.node_frames), list(g.relations), g.idtype, g.device) != (
            list(first.node_frames), list(first.relations), first.idtype, first.device,
        ):  # fmt: skip
            raise DataError(f"merge: graphs must agree in types, idtype and device; graph {i} does not. Convert them.")
        if g.batch_size > 1:
            raise DataError(f"merge: expected graphs that are not batches (graph {i} is one). Pass unbatch(...) of it.")
    sizes, ndata, relations, edata = {}, {}, {}, {}
    for t in first.node_frames:
        frames = [g.node_frames[t] for g in graphs]
        sizes[t] = max(frame.num_rows for frame in frames)
        ndata[t] = _overlaid(frames, sizes[t])
    for key in first.relations:
        parts = [g.relations[key] for g in graphs]
        ends = torch.cat([r.src for r in parts]), torch.cat([r.dst for r in parts])
        relations[key] = replace(parts[0], src=ends[0], dst=ends[1])
        having = [g.edge_frames[key] for g in graphs if g.relations[key].num_edges]
        names = list(having[0]) if having else []
        if any(frame.schemes() != having[0].schemes() for frame in having):
            raise DataError(f"merge: edges of {key} must have the same fields in all graphs. Remove the others.")
        edata[key] = {name: torch.cat([frame[name] for frame in having]) for name in names}
    return assemble(type(first), sizes, relations, ndata, edata)


def _overlaid(frames: Sequence[Frame], num: int) -> dict[str, torch.Tensor]:
    fields: dict[str, torch.Tensor] = {}
    for frame in frames:
        for name, x in frame.items():
            old = fields.get(name)
            whole = x.new_zeros((num, *x.shape[1:])) if old is None else old
            fields[name] = torch.cat([x, whole[x.shape[0] :]])
    return fields
