"""`prop_nodes` and `prop_edges`: messages to one group of nodes, or along one group of edges, after the other."""

from __future__ import annotations

from collections.abc import Iterable

from graphweave.dgl.graph import DGLGraph
from graphweave.graph.messaging import EdgeFunction, NodeFunction


def prop_nodes(
    graph: DGLGraph,
    nodes_generator: Iterable[object],
    message_func: EdgeFunction,
    reduce_func: NodeFunction,
    apply_node_func: NodeFunction | None = None,
) -> None:
    """`graph.pull` for each group of nodes."""
    graph.prop_nodes(nodes_generator, message_func, reduce_func, apply_node_func)


def prop_edges(
    graph: DGLGraph,
    edges_generator: Iterable[object],
    message_func: EdgeFunction,
    reduce_func: NodeFunction,
    apply_node_func: NodeFunction | None = None,
) -> None:
    """`graph.send_and_recv` for each group of edges."""
    graph.prop_edges(edges_generator, message_func, reduce_func, apply_node_func)
