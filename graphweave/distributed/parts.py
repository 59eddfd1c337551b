"""Parts of a graph in memory: own rows, halo rows, edges, and which rows each rank sends to which other one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.core.homogeneous import HOMOGENEOUS_ETYPE, HOMOGENEOUS_NTYPE
from graphweave.core.ranges import position, range_error
from graphweave.distributed.numbers import Ownership, SourceNumbers, ownership, part_nodes, readers
from graphweave.distributed.part import GraphPart, PartEdges
from graphweave.runtime.halo_room import with_room

NODES = HOMOGENEOUS_NTYPE
"""Node type of a graph without types."""
EDGES = (NODES, HOMOGENEOUS_ETYPE, NODES)
"""Edge type of a graph without types."""

EdgeType: TypeAlias = tuple[str, str, str]
"""Source type, relation, destination type."""
Fields: TypeAlias = Mapping[str, Tensor]
"""Tensors by name, each with a row for each node of a type or each edge of a type."""


def parts_of(
    edges: Tensor | Mapping[EdgeType, Tensor],
    num_nodes: int | Mapping[str, int],
    assignment: Tensor | Mapping[str, Tensor],
    num_parts: int,
    *,
    node_data: Fields | Mapping[str, Fields] | None = None,
    edge_data: Fields | Mapping[EdgeType, Fields] | None = None,
) -> list[GraphPart]:
    """The parts of a graph, one for each rank. A part may be empty.

    `edges`: integers [2, E], sources first; of a graph with types, a mapping from (source type, relation, destination
    type) to such tensors. Then `num_nodes`, `assignment` and `node_data` are mappings by node type, and `edge_data` is
    one by edge type. `assignment`: integers [num_nodes] in 0..num_parts-1, the rank that owns each node. `node_data`
    and `edge_data`: by name, tensors with a row for each node or edge; a part gets the rows of what it owns.

    An edge belongs to the owner of its destination. Of a part's own rows, those into which no edge leads from another
    part come first, then the others, each in rising order of their numbers; its halo rows are ordered by owner, then by
    the owner's local number. Its edges are sorted by destination; edges into one destination keep their order. A node
    without edges is a row of its owner. The work is O(E log E + num_parts * num_nodes).

    DataError for tensors that do not fit together, IndexRangeError for a node or part that there is not.
    """
    of_nodes: Any = node_data or {}
    of_edges: Any = edge_data or {}
    if isinstance(edges, Tensor):
        counts, owners = {NODES: num_nodes}, {NODES: assignment}
        return _typed_parts({EDGES: edges}, counts, owners, num_parts, {NODES: of_nodes}, {EDGES: of_edges})
    if not (isinstance(num_nodes, Mapping) and isinstance(assignment, Mapping)):
        raise DataError(
            "num_nodes and assignment must be mappings by node type where edges are a mapping by edge type (got"
            f" {type(num_nodes).__name__} and {type(assignment).__name__}). Pass such."
        )
    return _typed_parts(edges, num_nodes, assignment, num_parts, of_nodes, of_edges)


def _typed_parts(
    edges: Mapping[EdgeType, Tensor],
    num_nodes: Mapping[str, Any],
    assignment: Mapping[str, Any],
    num_parts: int,
    node_data: Mapping[str, Fields],
    edge_data: Mapping[EdgeType, Fields],
) -> list[GraphPart]:
    _check_assignment(num_nodes, assignment, num_parts)
    _check_edges(edges, num_nodes)
    _check_rows("node_data", node_data, num_nodes)
    _check_rows("edge_data", edge_data, {name: index.shape[1] for name, index in edges.items()})
    reading = readers(((name, index[0].long(), index[1].long()) for name, index in edges.items()), assignment)
    owned = {kind: ownership(assignment[kind].long(), num_parts, reading[kind]) for kind in num_nodes}
    split = {name: _by_destination(index.long(), owned[name[0]], owned[name[2]]) for name, index in edges.items()}
    halos: dict[str, list[Tensor]] = {kind: [] for kind in num_nodes}
    local: list[dict[EdgeType, PartEdges]] = []
    for rank in range(num_parts):
        numbers = {kind: SourceNumbers(owned[kind], rank) for kind in num_nodes}
        for name, placed in split.items():
            numbers[name[0]].mark(placed[rank].src)
        for kind, one in numbers.items():
            halos[kind].append(one.halo())
        local.append({})
        for name, placed in split.items():
            src, dst, ids = placed[rank]
            index = torch.stack([numbers[name[0]].local(src), dst - owned[name[2]].begins[rank]])
            data = _rows_at(edge_data.get(name, {}), ids)
            local[rank][name] = PartEdges(index, ids, edges[name].shape[1], data)
    parts = []
    for rank, of_rank in enumerate(local):
        nodes = {
            kind: part_nodes(of, rank, halos[kind], _own_rows(node_data.get(kind, {}), of.own(rank), halos[kind][rank]))
            for kind, of in owned.items()
        }
        parts.append(GraphPart(rank, num_parts, nodes, of_rank))
    return parts


class _Placed(NamedTuple):
    """Edges: the places of their ends and their numbers, int64 [E] each."""

    src: Tensor
    dst: Tensor
    ids: Tensor


def _by_destination(index: Tensor, sources: Ownership, destinations: Ownership) -> list[_Placed]:
    """The edges of each part, sorted by the place of the destination."""
    dst, ids = torch.sort(destinations.place[index[1]], stable=True)
    src = sources.place[index[0][ids]]
    sizes = destinations.counts(dst).tolist()
    return [_Placed(*one) for one in zip(src.split(sizes), dst.split(sizes), ids.split(sizes), strict=True)]


def _own_rows(fields: Fields, own: Tensor, halo: Tensor) -> dict[str, Tensor]:
    """The rows of a part. Floating ones have memory for halo rows, since these are what layers read of neighbours."""
    return {
        key: _beside_room(rows, own, halo.numel()) if rows.is_floating_point() else rows[own]
        for key, rows in fields.items()
    }


def _beside_room(rows: Tensor, index: Tensor, room: int) -> Tensor:
    """`rows[index]`, with memory for `room` further rows."""
    made = rows.new_empty(index.numel() + room, *rows.shape[1:])
    torch.index_select(rows, 0, index, out=made[: index.numel()])
    return with_room(made, index.numel())


def _rows_at(fields: Fields, index: Tensor) -> dict[str, Tensor]:
    return {key: rows[index] for key, rows in fields.items()}


def _check_assignment(num_nodes: Mapping[str, int], assignment: Mapping[str, Tensor], num_parts: int) -> None:
    if num_parts < 1:
        raise DataError(f"num_parts must be at least 1 (got {num_parts}). Pass such a number.")
    for kind, count in num_nodes.items():
        parts = assignment.get(kind)
        if parts is None or parts.shape != (count,) or parts.is_floating_point():
            got = "none" if parts is None else f"{parts.dtype} {list(parts.shape)}"
            raise DataError(f"assignment of {kind!r} must be integers [{count}] (got {got}). Pass one part a node.")
        _check_range(parts, num_parts, f"assignment of {kind!r}", "parts")


def _check_edges(edges: Mapping[EdgeType, Tensor], num_nodes: Mapping[str, int]) -> None:
    for name, index in edges.items():
        if index.dim() != 2 or index.shape[0] != 2 or index.is_floating_point():
            raise DataError(
                f"edges of {name} must be integers [2, edges] (got {index.dtype} {list(index.shape)}). Pass such."
            )
        for kind, ends, word in ((name[0], index[0], "sources"), (name[2], index[1], "destinations")):
            if kind not in num_nodes:
                raise DataError(
                    f"num_nodes must have every node type of edges (got {list(num_nodes)}, without {kind!r}). Add it."
                )
            _check_range(ends, num_nodes[kind], f"{word} of {name}", "nodes")


def _check_range(values: Tensor, count: int, what: str, word: str) -> None:
    at = position(values, count)
    if at is not None:
        raise range_error(values, count, at=at, what=what, of=word)


def _check_rows(what: str, given: Mapping[Any, Fields], sizes: Mapping[Any, int]) -> None:
    for kind, fields in given.items():
        if kind not in sizes:
            raise DataError(f"{what} must be of a type of the graph (got {kind!r}). Pass one of {list(sizes)}.")
        for key, rows in fields.items():
            if rows.dim() < 1 or rows.shape[0] != sizes[kind]:
                raise DataError(
                    f"{what} {key!r} of {kind!r} must have {sizes[kind]} rows (got {list(rows.shape)}). Pass such."
                )
