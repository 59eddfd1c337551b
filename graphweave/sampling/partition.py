"""Partitions of a graph into clusters of about equal size with few edges between them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.core.log import logger, warn_once
from graphweave.sampling.hops import fold_numbers
from graphweave.sampling.undirected import Undirected

_log = logger(__name__)

IMBALANCE = 0.05
"""A cluster of label propagation has at most this share of nodes more than the mean, rounded up."""

_COARSE_NODES = 24
"""Label propagation coarsens a graph until it has about this many nodes for each cluster."""
_COARSEST = 200
"""Graphs of fewer nodes than this are not coarsened."""
_PARTS = 4
"""A mean cluster has at least this many nodes of any coarsened graph."""
_COARSEN_ROUNDS = 4
_REFINE_ROUNDS = 12
_STARTS = 4
"""First partitions that are made of the coarsest graph; the best one is refined."""


def metis(graph: Undirected, num_clusters: int, seed: int) -> Tensor | None:
    """int64 [num_nodes]: clusters of about equal total size, found by METIS (Karypis and Kumar, "A fast and high
    quality multilevel scheme for partitioning irregular graphs", 1998); None where `pymetis` is not installed. METIS
    is serial."""
    try:
        import pymetis
    except ImportError:
        return None
    if num_clusters == 1 or not graph.neighbours.numel():  # there is nothing to cut
        return torch.arange(graph.num_nodes, device="cpu") % num_clusters
    whole = pymetis.zero_copy_dtype()
    if graph.neighbours.numel() > torch.iinfo(torch.int32).max and whole.itemsize == 4:
        raise DataError(
            f"METIS was built for fewer than 2^31 ends of edges (got {graph.neighbours.numel()}). Pass method='labels'."
        )
    arrays = (graph.indptr, graph.neighbours, graph.weights, graph.sizes)
    indptr, neighbours, weights, sizes = (t.numpy().astype(whole, copy=False) for t in arrays)
    options = pymetis.Options(seed=fold_numbers(seed, [num_clusters]) & 0x7FFFFFFF)
    adjacency = pymetis.CSRAdjacency(indptr, neighbours)
    _, found = pymetis.part_graph(num_clusters, adjacency, vweights=sizes, eweights=weights, options=options)
    return torch.tensor(found, dtype=torch.int64, device="cpu")


def label_propagation(graph: Undirected, num_clusters: int, seed: int) -> Tensor:
    """int64 [num_nodes]: clusters of at most 1.05 n / k nodes, rounded up, by multilevel label propagation (Meyerhenke,
    Sanders and Schulz, "Partitioning complex networks via size-constrained clustering", 2014).

    The graph is contracted along small clusters again and again; the coarsest graph is cut into pieces of the order in
    which a search in breadth finds its nodes; on the way back, label propagation moves nodes on the border of clusters
    wherever that cuts fewer edges and leaves the sizes balanced. A function of the graph and of `seed`.
    """
    most = math.ceil((1 + IMBALANCE) * graph.num_nodes / num_clusters)
    levels, maps = [graph], []
    wanted = max(_COARSEST, _COARSE_NODES * num_clusters)
    while levels[-1].num_nodes > wanted:
        fine = levels[-1]
        limit = max(graph.num_nodes // wanted, 2 * int(fine.sizes.max()))
        limit = max(1, min(limit, graph.num_nodes // (_PARTS * num_clusters)))
        labels, totals = torch.arange(fine.num_nodes, device="cpu"), fine.sizes.clone()
        for turn in range(_COARSEN_ROUNDS):
            fine.propagate(labels, totals, _shuffled(fine, seed, [len(levels), turn]), limit, 0)
        coarse, part_of = fine.contracted(labels)
        if coarse.num_nodes > 0.95 * fine.num_nodes:
            break
        levels.append(coarse)
        maps.append(part_of)
    labels = _first(levels[-1], num_clusters, most, seed)
    for level in reversed(range(len(levels))):
        if level < len(maps):
            labels = labels[maps[level]]
        labels = _refined(levels[level], labels, num_clusters, most, seed, level)
    return labels


def found_clusters(graph: Undirected, num_clusters: int, method: str | None, seed: int) -> tuple[Tensor, str]:
    """Clusters and how they were found: "metis" or "labels". `method` None: METIS, or label propagation with one
    warning where `pymetis` is not installed. DataError for another `method`, and for METIS where it is absent."""
    if method not in (None, "metis", "labels"):
        raise DataError(f"expected method 'metis', 'labels' or None (got {method!r}). Pass one of these.")
    found = None if method == "labels" else metis(graph, num_clusters, seed)
    if found is not None:
        return found, "metis"
    if method == "metis":
        raise DataError("method 'metis' needs the package pymetis (not found). Install it, or pass method='labels'.")
    if method is None:
        warn_once("pymetis is not installed: label propagation finds clusters, which cuts more. Install pymetis.", _log)
    return label_propagation(graph, num_clusters, seed), "labels"


def _first(graph: Undirected, num_clusters: int, most: int, seed: int) -> Tensor:
    """The best of some partitions into consecutive pieces of the nodes in the order of a search in breadth."""
    best, least_cut = None, math.inf
    for start in range(_STARTS):
        order = graph.breadth_first(_shuffled(graph, seed, [0, start]))
        sizes = graph.sizes[order]
        middles = sizes.cumsum(0) - (sizes + 1) // 2
        labels = torch.empty_like(order)
        labels[order] = middles * num_clusters // max(int(sizes.sum()), 1)
        labels = _refined(graph, labels, num_clusters, most, seed, -1 - start)
        if (cut := graph.cut(labels)) < least_cut:
            best, least_cut = labels, cut
    assert best is not None
    return best


def _refined(graph: Undirected, labels: Tensor, num_clusters: int, most: int, seed: int, number: int) -> Tensor:
    labels = labels.clone()
    totals = torch.zeros(num_clusters, dtype=torch.int64, device="cpu").scatter_add_(0, labels, graph.sizes)
    least = graph.num_nodes and int(graph.sizes.sum()) // (2 * num_clusters)
    for turn in range(_REFINE_ROUNDS):
        moved = graph.propagate(labels, totals, _shuffled(graph, seed, [1 << 32, number, turn]), most, least)
        if not moved:
            break
    return labels


def _shuffled(graph: Undirected, seed: int, numbers: list[int]) -> Tensor:
    return torch.randperm(
        graph.num_nodes, generator=torch.Generator().manual_seed(fold_numbers(seed, numbers)), device="cpu"
    )
