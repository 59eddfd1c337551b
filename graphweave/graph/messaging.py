"""Message passing on a graph: `update_all` and the other methods that DGL's graphs have, over `graphweave.udf`.

A message function takes the edges (`edges.src`, `edges.dst`, `edges.data`), a reduce function the destinations with
their messages (`nodes.mailbox`, `nodes.data`), an apply function the nodes (`nodes.data`). Each returns a dict of
tensors. The functions of `graphweave.function` may take their place. Inside a compiled model all of them are traced
with the model; outside, each pair is compiled at its first call (GRAPHWEAVE_EAGER_KERNELS=0 runs PyTorch's own calls).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph import query
from graphweave.graph.frame import Frame
from graphweave.graph.relation import ByRelation, Etype
from graphweave.graph.structure import Structure
from graphweave.udf import run
from graphweave.udf.arguments import EdgeBatch, Frames, NodeBatch, RelationEdges
from graphweave.udf.builtin import ReduceMessages
from graphweave.udf.mailbox import grown

EdgeFunction = Callable[[EdgeBatch], Mapping[str, Any]]
NodeFunction = Callable[[NodeBatch], Mapping[str, Any]]
CrossReducer: TypeAlias = str | Callable[[list[Tensor]], Tensor]


def across_types(
    values: Sequence[Tensor], reducer: CrossReducer, arrived: Sequence[Tensor | None] | None = None
) -> Tensor:
    """Combine what k relations give to a destination type: k times [nodes, ...] -> [nodes, ...], or [nodes, k, ...] for
    "stack".

    `arrived` says for each relation in which rows its values take part in a maximum or minimum: bool [nodes], or None
    for all rows. The result is 0 where no relation takes part.
    """
    if callable(reducer):
        return reducer(list(values))
    if reducer in ("max", "min") and arrived is not None and any(rows is not None for rows in arrived):
        return _extreme(values, reducer == "max", arrived)
    stacked = torch.stack(list(values), 1)
    match reducer:
        case "stack":
            return stacked
        case "sum":
            return stacked.sum(1)
        case "mean":
            return stacked.mean(1)
        case "max":
            return stacked.amax(1)
        case "min":
            return stacked.amin(1)
    raise DataError(
        f"cross_reducer must be sum, mean, max, min, stack or a function (got {reducer!r}). Pass one of these."
    )


def _extreme(values: Sequence[Tensor], largest: bool, arrived: Sequence[Tensor | None]) -> Tensor:
    """The largest or smallest of the values [nodes, ...] that `arrived` marks in each row; 0 where none is marked."""
    first = values[0]
    if first.dtype.is_floating_point:
        lowest, highest = -torch.inf, torch.inf
    else:
        lowest, highest = torch.iinfo(first.dtype).min, torch.iinfo(first.dtype).max
    beaten = torch.full_like(first, lowest if largest else highest)
    everywhere = torch.ones(first.shape[0], dtype=torch.bool, device=first.device)
    rows = [everywhere if a is None else a for a in arrived]
    stacked = torch.stack([torch.where(grown(a, x.dim()), x, beaten) for a, x in zip(rows, values, strict=True)], 1)
    found = stacked.amax(1) if largest else stacked.amin(1)
    return torch.where(grown(torch.stack(rows, 1).any(1), found.dim()), found, torch.zeros_like(found))


def update_all(
    graph: Structure, message_func: EdgeFunction, reduce_func: NodeFunction,
    apply_node_func: NodeFunction | None = None, etype: Etype | None = None,
) -> None:  # fmt: skip
    """Send messages along all edges of a relation, reduce them at their destinations, then call `apply_node_func`.

    out[v] = apply(reduce({message(e) : dst[e] = v})); nodes that receive nothing get zeros from the reduction. Every
    field becomes [destinations, ...] in `dstdata`. `reduce_func` is called once, with the mailboxes of all nodes. If it
    does more with them than reduce along dim 1, it is called once for each number of messages, as in DGL.

    `etype`: the relation, needed where there are several. Raises DataError for results that are no tensors or have
    another number of rows, KeyError for a field that does not exist.
    """
    ends, frames = ends_of(graph, etype), _around(graph, etype)
    graph.node_frame(frames.relation[2]).update(
        run.update_all(ends, frames, message_func, reduce_func, apply_node_func)
    )


def multi_update_all(
    graph: Structure, etype_dict: ByRelation[Sequence[Any]], cross_reducer: CrossReducer,
    apply_node_func: NodeFunction | None = None,
) -> None:  # fmt: skip
    """`update_all` for several relations. `cross_reducer` combines what a node type gets in the same field.

    `etype_dict`: relation -> (message_func, reduce_func) or (message_func, reduce_func, apply_node_func).
    `cross_reducer`: "sum", "mean", "max", "min", "stack" (relations become dim 1), or a function of the list of
    tensors. With "max" and "min", a relation that is itself reduced by the built-in max or min is left out at nodes to
    which it sends nothing. Nodes that receive nothing from any relation get 0.
    """
    found = run.on_relations(lambda g: _received(g, etype_dict, cross_reducer), graph)
    for ntype, fields in found.items():
        graph.node_frame(ntype).update(fields)
        if apply_node_func is not None:
            apply_nodes(graph, apply_node_func, ntype=ntype)


def _received(
    graph: Structure, etype_dict: ByRelation[Sequence[Callable[..., Mapping[str, Tensor]]]], cross_reducer: CrossReducer
) -> dict[str, dict[str, Tensor]]:
    """The fields that `multi_update_all` gives to nodes, by type."""
    found: dict[str, dict[str, list[tuple[Tensor, Tensor | None]]]] = {}
    for etype, functions in etype_dict.items():
        ends, frames = ends_of(graph, etype), _around(graph, etype)
        fields = found.setdefault(frames.relation[2], {})
        arrived = mask_of_rows(ends.dst_rows, ends.dst) if _is_extreme(functions[1]) else None
        for name, x in run.update_all(ends, frames, *functions).items():
            fields.setdefault(name, []).append((x, arrived))
    return {
        ntype: {
            name: across_types([x for x, _ in xs], cross_reducer, [a for _, a in xs]) for name, xs in fields.items()
        }
        for ntype, fields in found.items()
    }


def _is_extreme(reduce_func: NodeFunction) -> bool:
    """Whether this is the built-in max or min, whose result for a node without messages is no maximum or minimum."""
    return isinstance(reduce_func, ReduceMessages) and reduce_func.op in ("max", "min")


def send_and_recv(
    graph: Structure, edges: object, message_func: EdgeFunction, reduce_func: NodeFunction,
    apply_node_func: NodeFunction | None = None, etype: Etype | None = None,
) -> None:  # fmt: skip
    """`update_all` along the given edges only: numbers [k], or a pair (sources, destinations).

    Only destinations of these edges change. Other rows keep their values, or are zeros if the field did not exist.
    """
    eids = _edge_numbers(graph, edges, etype)
    all_edges = ends_of(graph, etype)
    reached = mask_of_rows(all_edges.dst_rows, all_edges.dst.index_select(0, eids))
    _update_rows(graph, _some(all_edges, eids), reached, message_func, reduce_func, apply_node_func, etype)


def pull(
    graph: Structure, v: object, message_func: EdgeFunction, reduce_func: NodeFunction,
    apply_node_func: NodeFunction | None = None, etype: Etype | None = None,
) -> None:  # fmt: skip
    """`update_all` along all edges that end in the nodes `v` [k]. Other nodes keep their values."""
    all_edges, frames = ends_of(graph, etype), _around(graph, etype)
    wanted = mask_of_rows(all_edges.dst_rows, _node_numbers(graph, v, frames.relation[2]))
    eids = wanted.index_select(0, all_edges.dst).nonzero().squeeze(1)
    _update_rows(graph, _some(all_edges, eids), wanted, message_func, reduce_func, apply_node_func, etype)


def push(
    graph: Structure, u: object, message_func: EdgeFunction, reduce_func: NodeFunction,
    apply_node_func: NodeFunction | None = None, etype: Etype | None = None,
) -> None:  # fmt: skip
    """`send_and_recv` along all edges that start in the nodes `u` [k]."""
    all_edges, frames = ends_of(graph, etype), _around(graph, etype)
    sending = mask_of_rows(all_edges.src_rows, _node_numbers(graph, u, frames.relation[0]))
    eids = sending.index_select(0, all_edges.src).nonzero().squeeze(1)
    send_and_recv(graph, eids, message_func, reduce_func, apply_node_func, etype)


def apply_edges(graph: Structure, func: EdgeFunction, edges: object = None, etype: Etype | None = None) -> None:
    """Compute fields of edges from the fields of edges and of their ends: out[e] = func(e), [edges, ...] in `edata`.

    `edges` names the edges to compute: numbers [k], or a pair (sources, destinations). Other rows keep their values, or
    are zeros if the field did not exist.
    """
    ends, frames = ends_of(graph, etype), _around(graph, etype)
    if edges is None or query.is_all(edges):
        graph.edge_frame(etype).update(run.apply_edges(ends, frames, func))
        return
    eids = _edge_numbers(graph, edges, etype)
    fields = run.apply_edges(_some(ends, eids), frames, func)
    frame = graph.edge_frame(etype)
    for name, x in fields.items():
        frame[name] = _with_rows(frame, name, eids, x)


def apply_nodes(graph: Structure, func: NodeFunction, v: object = None, ntype: str | None = None) -> None:
    """Compute fields of nodes from their fields: out[v] = func(v), [nodes, ...] in the data of `ntype`.

    With `v` [k] only these nodes are computed. Other rows keep their values, or are zeros if the field did not exist.
    """
    frames, frame = _around_nodes(graph, ntype), graph.node_frame(ntype)
    rows = frame.rows
    if v is None or query.is_all(v):
        frame.update(run.apply_nodes(rows, frames, frame, func))
        return
    nodes = _node_numbers(graph, v, graph.to_ntype(ntype))
    data = {name: x.index_select(0, nodes) for name, x in frame.items()}
    for name, x in run.apply_nodes(rows.index_select(0, nodes), frames, data, func).items():
        frame[name] = _with_rows(frame, name, nodes, x)


def ends_of(graph: Structure, etype: Etype | None) -> RelationEdges:
    """The edges of a relation, in the form that the functions of `graphweave.udf` take."""
    r = graph.relation(etype)
    return RelationEdges(r.src, r.dst, graph.node_frame(r.srctype).rows, graph.node_frame(r.dsttype).rows, None)


def _around(graph: Structure, etype: Etype | None) -> Frames:
    """The data that messages along a relation may read."""
    r = graph.relation(etype)
    src, dst, edge = graph.node_frame(r.srctype), graph.node_frame(r.dsttype), graph.edge_frame(r.key)
    return Frames(src, dst, edge, graph.ntype_data, graph.etype_data, r.key)


def _around_nodes(graph: Structure, ntype: str | None) -> Frames:
    t = graph.to_ntype(ntype)
    frame = graph.node_frame(t)
    return Frames(frame, frame, {}, graph.ntype_data, graph.etype_data, (t, "", t))


def _node_numbers(graph: Structure, nodes: object, ntype: str) -> Tensor:
    rows = graph.node_frame(ntype).rows
    return query.as_selection(nodes, rows.shape[0], graph.any_index(), "node")


def _edge_numbers(graph: Structure, edges: object, etype: Etype | None) -> Tensor:
    """Numbers of edges [k] from numbers, a bool mask, or a pair (sources, destinations)."""
    r = graph.relation(etype)
    if isinstance(edges, tuple) and len(edges) == 2:
        return torch.as_tensor(graph.edge_ids(*edges, etype=r.key), device=r.src.device).reshape(-1)
    return query.as_selection(edges, r.num_edges, r.src, "edge")


def _update_rows(
    graph: Structure, ends: RelationEdges, rows: Tensor, message: EdgeFunction, reduce: NodeFunction,
    apply: NodeFunction | None, etype: Etype | None,
) -> None:  # fmt: skip
    """`update_all` along `ends`. Only the destinations where `rows` [destinations] (bool) is true are written."""
    frames = _around(graph, etype)
    frame = graph.node_frame(frames.relation[2])
    for name, x in run.update_all(ends, frames, message, reduce, apply).items():
        old = frame[name] if name in frame else _initial(frame, name, x)
        frame[name] = torch.where(grown(rows, x.dim()), x, old)


def _some(ends: RelationEdges, eids: Tensor) -> RelationEdges:
    return RelationEdges(
        ends.src.index_select(0, eids), ends.dst.index_select(0, eids), ends.src_rows, ends.dst_rows, eids
    )


def mask_of_rows(rows: Tensor, chosen: Tensor) -> Tensor:
    """Which of `rows` are in `chosen` [k]: bool [rows]."""
    return torch.zeros(rows.shape[0], dtype=torch.bool, device=chosen.device).index_fill(0, chosen.long(), True)


def _with_rows(frame: Frame, name: str, rows: Tensor, x: Tensor) -> Tensor:
    """The field `name`, or what it would hold initially, with `x` [k, ...] in `rows` [k]."""
    base = frame[name] if name in frame else _initial(frame, name, x)
    return base.index_copy(0, rows.long(), x)


def _initial(frame: Frame, name: str, x: Tensor) -> Tensor:
    if frame.initializers:
        return frame.initial(name, x)
    return x.new_zeros((frame.rows.shape[0], *x.shape[1:]))
