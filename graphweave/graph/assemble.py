"""`assemble`, the last step of all functions that make graphs. It takes relations, numbers of nodes, and fields."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from graphweave.graph.frame import Frame
from graphweave.graph.relation import CanonicalEtype, Relation
from graphweave.graph.structure import G, Structure

Counts = tuple[dict[str, Tensor], dict[CanonicalEtype, Tensor]]
"""Numbers of nodes and of edges of each batched graph, int64 [batch_size], by type."""


def assemble(
    kind: type[G],
    num_nodes: Mapping[str, int],
    relations: Mapping[CanonicalEtype, Relation],
    ndata: Mapping[str, Mapping[str, Tensor]] | None = None,
    edata: Mapping[CanonicalEtype, Mapping[str, Tensor]] | None = None,
    batch: Counts | None = None,
) -> G:
    """A graph of type `kind` with these numbers of nodes by type, relations and fields, all on the device of the
    relations.

    Arguments are not checked: indices must be in range, and fields must have a row for each node or edge.
    """
    device = next(iter(relations.values())).src.device
    nodes = {
        ntype: node_frame(ntype, len(num_nodes), torch.empty((num, 0), dtype=torch.uint8, device=device))
        for ntype, num in num_nodes.items()
    }
    edges = {key: edge_frame(relation, len(relations)) for key, relation in relations.items()}
    for ntype, fields in (ndata or {}).items():
        nodes[ntype]._fields.update(fields)
    for key, fields in (edata or {}).items():
        edges[key]._fields.update(fields)
    return kind(relations, nodes, edges, batch)


def node_frame(ntype: str, num_types: int, rows: Tensor) -> Frame:
    """An empty frame for the nodes of a type. `rows` [num_nodes, 0] holds no bytes; its length, which is a symbol under
    tracing, is the number of rows."""
    where = "ndata" if num_types == 1 else f"nodes[{ntype!r}].data"
    return Frame(where, rows, "nodes" if num_types == 1 else f"nodes of type {ntype!r}")


def edge_frame(relation: Relation, num_relations: int) -> Frame:
    where = "edata" if num_relations == 1 else f"edges[{relation.key}].data"
    return Frame(where, relation.src, "edges" if num_relations == 1 else f"edges of relation {relation.key}")


def counts(graph: Structure) -> dict[str, int]:
    """Node type -> number of nodes."""
    return {ntype: frame.num_rows for ntype, frame in graph.node_frames.items()}
