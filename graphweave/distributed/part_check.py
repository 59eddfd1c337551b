"""Whether the numbers in the arrays of a part fit together, so that no row is read that there is not."""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.distributed.part import GraphPart, PartEdges, PartNodes

_PIECE = 1 << 22
"""Numbers that are compared at a time, since arrays are mapped and need not fit into memory."""


def inconsistency(part: GraphPart) -> str | None:
    """The first inconsistency in `part`; None if all fits together. It reads all indices, and no data."""
    for kind, nodes in part.nodes.items():
        wrong = _of_nodes(nodes, part.rank)
        if wrong is not None:
            return f"{wrong} of node type {kind!r}"
    for name, edges in part.edges.items():
        wrong = _of_edges(edges, part.nodes[name[0]], part.nodes[name[2]])
        if wrong is not None:
            return f"{wrong} of edge type {name}"
    return None


def _of_nodes(nodes: PartNodes, rank: int) -> str | None:
    for what, numbers, below in (
        ("own nodes", nodes.own, nodes.total), ("halo nodes", nodes.halo, nodes.total),
        ("rows to send", nodes.send, nodes.num_own),
    ):  # fmt: skip
        if not _within(numbers, below):
            return f"{what} beyond {below}"
    for what, counts, total in (
        ("halo rows", nodes.halo_counts, nodes.num_halo), ("rows to send", nodes.send_counts, nodes.send.numel())
    ):  # fmt: skip
        if not _within(counts, total + 1) or int(counts.sum()) != total or int(counts[rank]):
            return f"counts by rank that do not add up to {total} {what}"
    return None


def _of_edges(edges: PartEdges, sources: PartNodes, destinations: PartNodes) -> str | None:
    src, dst = edges.edge_index
    for what, numbers, below in (
        ("sources", src, sources.num_own + sources.num_halo), ("destinations", dst, destinations.num_own),
        ("numbers of edges", edges.ids, edges.total),
    ):  # fmt: skip
        if not _within(numbers, below):
            return f"{what} beyond {below}"
    return None if _rises(dst) else "destinations that are not sorted"


def _within(numbers: Tensor, below: int) -> bool:
    """Whether all numbers are from 0 to `below` - 1."""
    bounds = (torch.aminmax(piece) for piece in numbers.split(_PIECE) if piece.numel())
    return all(int(low) >= 0 and int(high) < below for low, high in bounds)


def _rises(numbers: Tensor) -> bool:
    """Whether no number is smaller than the one before it."""
    begins = range(0, max(numbers.numel() - 1, 0), _PIECE)
    return not any(bool((numbers[at : at + _PIECE + 1].diff() < 0).any()) for at in begins)
