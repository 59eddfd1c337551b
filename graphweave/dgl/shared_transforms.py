"""Functions that make a graph from a graph, where `graphweave` has them with DGL's meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphweave.dgl.graph import DGLGraph
from graphweave.graph import hetero
from graphweave.graph.frame import ETYPE, NTYPE
from graphweave.graph.transform import subgraph as node_subgraph

__all__ = ["node_subgraph", "to_heterogeneous"]


def to_heterogeneous(
    g: DGLGraph,
    ntypes: Sequence[str],
    etypes: Sequence[str],
    ntype_field: str = NTYPE,
    etype_field: str = ETYPE,
    metagraph: Any = None,
) -> Any:
    """`graphweave`'s function, with types of nodes and edges in the fields of these names. `metagraph`: canonical
    relations, or a networkx graph of node types with relations as keys of its edges."""
    if (ntype_field, etype_field) != (NTYPE, ETYPE):
        g = g.local_var()
        g.ndata[NTYPE], g.edata[ETYPE] = g.ndata.pop(ntype_field), g.edata.pop(etype_field)
    if hasattr(metagraph, "edges"):
        metagraph = [(src, name, dst) for src, dst, name in metagraph.edges(keys=True)]
    return hetero.to_heterogeneous(g, ntypes, etypes, metagraph)
