"""The graphs of comparisons for C-GAT's constraints: pairs of edges, and pairs of an edge and a far node.

They depend only on edges and labels, so they are made once for a graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph.build import graph as make_graph
from graphweave.graph.build import heterograph
from graphweave.graph.graph import Graph

_ROUNDS = 16
"""Attempts to draw a far node before an edge is left without one. If the edge's destination is linked to half of all
nodes, all attempts fail once in 65,536 cases."""


def edge_pairs(
    graph: Graph, labels: Tensor, mask: Tensor | None = None, *, max_pairs_per_edge: int | None = None, seed: int = 0
) -> Graph:
    """The pairs of edges that C-GAT's class boundary compares, as a graph whose nodes are the edges of `graph`.

    Each edge of the result leads from an edge k -> i to an edge j -> i, where j has the label of i and k has another. A
    self-loop counts as an edge from a node of the same label. `labels` [N], integer, -1 for unknown; `mask` [N], bool:
    the labels that count. Nodes of unknown label are in no pair.

    A node with p neighbours of its label and q others has p q pairs. `max_pairs_per_edge` is an upper bound on the
    number of k with which each j is compared. If there are more, this many different ones are drawn, seeded by `seed`,
    and the field "weight" [pairs] says how many pairs each stands for. The expectation of the weighted sum is the full
    sum.
    """
    _check_labels(graph, labels)
    if max_pairs_per_edge is not None and max_pairs_per_edge < 1:
        raise DataError(
            f"max_pairs_per_edge must be at least 1, or None for all (got {max_pairs_per_edge}). Pass such a number."
        )
    generator = torch.Generator().manual_seed(seed)
    src, dst = (index.long().cpu() for index in graph.edges())
    same, other = _by_label(src, dst, labels, mask)
    other = other[torch.randperm(other.numel(), generator=generator)]
    other = other[torch.argsort(dst[other], stable=True)]
    rivals = torch.bincount(dst[other], minlength=graph.num_nodes())
    starts = (rivals.cumsum(0) - rivals)[dst[same]]
    rivals = rivals[dst[same]]
    taken = rivals if max_pairs_per_edge is None else rivals.clamp(max=max_pairs_per_edge)
    # Each j takes consecutive k of a random order, cyclically from a random start. So no k is taken twice, and all are
    # equally likely.
    first = (torch.rand(same.numel(), generator=generator) * rivals).long()
    place = torch.arange(int(taken.sum())) - (taken.cumsum(0) - taken).repeat_interleave(taken)
    offset = (first.repeat_interleave(taken) + place) % rivals.repeat_interleave(taken)
    rival = other[starts.repeat_interleave(taken) + offset]
    pairs = make_graph((rival, same.repeat_interleave(taken)), num_nodes=src.numel())
    if max_pairs_per_edge is not None:
        pairs.edata["weight"] = (rivals / taken).repeat_interleave(taken)
    return pairs.to(labels.device)


def far_nodes(
    graph: Graph, per_edge: int = 1, labels: Tensor | None = None, mask: Tensor | None = None, *, seed: int = 0
) -> Graph:
    """The nodes to which C-GAT's graph structure compares edges, as a bipartite graph from nodes to edges of `graph`.

    Each edge of the result leads from a node k to an edge j -> i, where k is neither i nor a neighbour of i. Each edge
    of `graph` gets `per_edge` nodes, drawn with repetition (negative sampling), seeded by `seed`; it may get fewer if i
    has edges from almost all nodes. With `labels` [N] (-1 for unknown) and `mask` [N], edges between nodes of different
    known labels get none.
    """
    generator = torch.Generator().manual_seed(seed)
    src, dst = (index.long().cpu() for index in graph.edges())
    count = graph.num_nodes()
    edges = torch.arange(src.numel())
    if labels is not None:
        _check_labels(graph, labels)
        kept = torch.ones(src.numel(), dtype=torch.bool)
        kept[_by_label(src, dst, labels, mask)[1]] = False
        edges = edges[kept]
    edges = edges.repeat_interleave(per_edge)
    known = torch.cat([dst * count + src, torch.arange(count) * (count + 1)]).sort().values
    far = torch.zeros_like(edges)
    wrong = torch.arange(edges.numel())
    for _ in range(_ROUNDS if count else 0):
        far[wrong] = torch.randint(count, (wrong.numel(),), generator=generator)
        wrong = wrong[_contains(known, dst[edges[wrong]] * count + far[wrong])]
    found = torch.ones_like(edges, dtype=torch.bool)
    found[wrong] = False
    far_graph = heterograph({("node", "far", "edge"): (far[found], edges[found])}, {"node": count, "edge": src.numel()})
    return far_graph.to(graph.device)


def _by_label(src: Tensor, dst: Tensor, labels: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The numbers of the edges between nodes of equal labels, and of those between nodes of different known labels."""
    known = labels if mask is None else torch.where(mask, labels, torch.full_like(labels, -1))
    at_src, at_dst = known.cpu()[src], known.cpu()[dst]
    both = (at_src >= 0) & (at_dst >= 0)
    return (both & (at_src == at_dst)).nonzero().squeeze(1), (both & (at_src != at_dst)).nonzero().squeeze(1)


def _contains(known: Tensor, keys: Tensor) -> Tensor:
    place = torch.searchsorted(known, keys).clamp(max=max(known.numel() - 1, 0))
    return known[place] == keys


def _check_labels(graph: Graph, labels: Tensor) -> None:
    if labels.shape != (graph.num_nodes(),) or labels.is_floating_point():
        raise DataError(
            f"labels must be integers, one for each of {graph.num_nodes()} nodes (got {labels.dtype}, shape "
            f"{tuple(labels.shape)}). Give nodes without a label -1."
        )
