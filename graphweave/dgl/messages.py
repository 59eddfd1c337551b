"""Messages as DGL has them: along several relations at once, and to one group of nodes or edges after the other."""

from __future__ import annotations

from collections.abc import Iterable

from graphweave.core.errors import DataError
from graphweave.graph import messaging, query
from graphweave.graph.graph import Graph
from graphweave.graph.messaging import EdgeFunction, NodeFunction
from graphweave.graph.relation import CanonicalEtype, Etype
from graphweave.graph.structure import Structure
from graphweave.udf.builtin import BinaryMessage, CopyMessage, ReduceMessages


def update_all(
    g: Structure, message: EdgeFunction, reduce: NodeFunction, apply: NodeFunction | None, etype: Etype | None
) -> None:
    """`update_all` along one relation. Nodes without messages keep what their initializer gives (`set_n_initializer`)
    from a reduce function of one's own, which DGL does not call for them."""
    r = g.relation(etype)
    frame = g.node_frames[r.dsttype]
    if not frame.initializers or isinstance(reduce, ReduceMessages):
        messaging.update_all(g, message, reduce, apply, etype)
        return
    messaging.pull(g, (query.degrees(r.dst, frame.num_rows) > 0).nonzero().squeeze(1), message, reduce, None, etype)
    if apply is not None:
        messaging.apply_nodes(g, apply, ntype=r.dsttype)


def update_all_relations(g: Structure, message: EdgeFunction, reduce: NodeFunction, apply: NodeFunction | None) -> None:
    """`update_all` along all relations whose types have the fields that `message` reads.

    Where several of them end in one node type, their results are reduced like messages. Built-in functions only, and
    not "mean": DataError otherwise, and if no relation has the fields.
    """
    if not isinstance(message, (CopyMessage, BinaryMessage)) or not isinstance(reduce, ReduceMessages):
        raise DataError(
            "update_all: expected built-in functions on a graph of several relations (got functions of one's own)."
            " Name a relation by etype=, or use multi_update_all."
        )
    if reduce.op == "mean":
        raise NotImplementedError("update_all: a mean over several relations has two meanings. Use multi_update_all.")
    relations = _with_fields(g, message)
    messaging.multi_update_all(g, {key: (message, reduce) for key in relations}, reduce.op)
    if apply is not None:
        for ntype in dict.fromkeys(g.relations[key].dsttype for key in relations):
            messaging.apply_nodes(g, apply, ntype=ntype)


def apply_edges_of_relations(g: Structure, function: object, edges: object) -> None:
    """`apply_edges` on all relations whose types have the fields that the built-in `function` reads."""
    if not isinstance(function, (CopyMessage, BinaryMessage)) or not (edges is None or query.is_all(edges)):
        raise DataError(
            "apply_edges: expected a built-in function of all edges on a graph of several relations (got another)."
            " Name a relation by etype=."
        )
    for key in _with_fields(g, function):
        messaging.apply_edges(g, function, etype=key)


def prop_nodes(
    graph: Graph, nodes_generator: Iterable[object], message_func: EdgeFunction, reduce_func: NodeFunction,
    apply_node_func: NodeFunction | None = None, etype: Etype | None = None,
) -> None:  # fmt: skip
    """`graph.pull` for each of the groups of nodes, one after the other."""
    for nodes in nodes_generator:
        graph.pull(nodes, message_func, reduce_func, apply_node_func, etype=etype)


def prop_edges(
    graph: Graph, edges_generator: Iterable[object], message_func: EdgeFunction, reduce_func: NodeFunction,
    apply_node_func: NodeFunction | None = None, etype: Etype | None = None,
) -> None:  # fmt: skip
    """`graph.send_and_recv` for each of the groups of edges, one after the other."""
    for edges in edges_generator:
        graph.send_and_recv(edges, message_func, reduce_func, apply_node_func, etype=etype)


def _with_fields(g: Structure, message: CopyMessage | BinaryMessage) -> list[CanonicalEtype]:
    found = [key for key in g.relations if all(_has(g, key, *field) for field in _read(message))]
    if not found:
        raise KeyError(f"no relation has the fields {[field for _, field in _read(message)]} that {message} reads.")
    return found


def _read(message: CopyMessage | BinaryMessage) -> list[tuple[str, str]]:
    if isinstance(message, CopyMessage):
        return [(message.target, message.field)]
    return [(message.lhs, message.lhs_field), (message.rhs, message.rhs_field)]


def _has(g: Structure, key: CanonicalEtype, target: str, field: str) -> bool:
    r = g.relations[key]
    frame = {"u": g.node_frames[r.srctype], "v": g.node_frames[r.dsttype], "e": g.edge_frames[key]}[target]
    return field in frame
