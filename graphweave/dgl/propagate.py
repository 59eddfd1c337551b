"""`prop_nodes` and `prop_edges`: messages to one group of nodes, or along one group of edges, after the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def prop_nodes(
    graph: Any,
    nodes_generator: Iterable[object],
    message_func: object,
    reduce_func: object,
    apply_node_func: object = None,
) -> None:
    """`graph.pull` for each group of nodes."""
    graph.prop_nodes(nodes_generator, message_func, reduce_func, apply_node_func)


def prop_edges(
    graph: Any,
    edges_generator: Iterable[object],
    message_func: object,
    reduce_func: object,
    apply_node_func: object = None,
) -> None:
    """`graph.send_and_recv` for each group of edges."""
    graph.prop_edges(edges_generator, message_func, reduce_func, apply_node_func)
