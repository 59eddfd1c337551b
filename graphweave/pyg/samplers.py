"""Samplers, random walks and partitions by the signatures of pyg-lib, torch_sparse and torch_cluster. They draw by
`graphweave.sampling`, with PyTorch's generator as the source of seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graphweave.frontends.sparse.scatter_functions import gather_csr
from graphweave.sampling.adjacency import Adjacency
from graphweave.sampling.hgt_draws import HGTDraws
from graphweave.sampling.hops import HopSampler, NeighborBatch
from graphweave.sampling.induced import Numbering, edges_between
from graphweave.sampling.partition import found_clusters
from graphweave.sampling.undirected import undirected_of

_NODE = ""
_EDGE = (_NODE, "", _NODE)
_MANY = 1 << 40
"""The number of nodes of a type at which no edges end, of which only the edges' sources are known."""


def _seed() -> int:
    return int(torch.randint(1 << 62, (), device="cpu"))


def _grouped(
    colptr: Tensor, row: Tensor, num_src: int, weights: Tensor | None = None, edge_times: Tensor | None = None,
    node_times: Tensor | None = None,
) -> Adjacency:  # fmt: skip
    """The edges of a relation, which are given by destination."""
    edge_times, node_times = (None if t is None else t.long().contiguous() for t in (edge_times, node_times))
    weights = None if weights is None else weights.double().contiguous()
    sources = row.to(colptr.dtype).contiguous()
    return Adjacency(
        colptr.contiguous(), sources, None, weights, edge_times, node_times, num_src, colptr.numel() - 1
    )  # fmt: skip


# ---------------------------------------------------------------- neighbours, hop by hop


def neighbor_sample(
    rowptr: Tensor, col: Tensor, seed: Tensor, num_neighbors: Sequence[int], node_time: Tensor | None = None,
    edge_time: Tensor | None = None, seed_time: Tensor | None = None, edge_weight: Tensor | None = None,
    csc: bool = False, replace: bool = False, directed: bool = True, disjoint: bool = False,
    temporal_strategy: str = "uniform", return_edge_id: bool = True,
) -> tuple[Any, ...]:  # fmt: skip
    """The rows and columns of the edges drawn, the nodes found, the numbers of the edges, and how many nodes and edges
    each hop found. The edges of node v stand from rowptr[v] to rowptr[v + 1]; with `csc`, v is their destination."""
    graph = _grouped(rowptr, col, rowptr.numel() - 1, edge_weight, edge_time, node_time)
    sampler = HopSampler(
        {_EDGE: graph}, {_NODE: graph.num_src}, {_EDGE: tuple(num_neighbors)}, _seed(), replace, disjoint,
        "last" if temporal_strategy == "last" else "uniform",
    )  # fmt: skip
    seed_time = node_time[seed] if seed_time is None and node_time is not None else seed_time
    batch = sampler.sample({_NODE: seed}, None if seed_time is None else {_NODE: seed_time}, 0)
    nodes, (src, dst, edge) = _nodes(batch, _NODE), _edges(batch, _EDGE)
    row, column = (src, dst) if csc else (dst, src)
    hops = [chunk.numel() for chunk in batch.nodes[_NODE]], [hop.edge.numel() for hop in batch.edges[_EDGE]]
    return row, column, nodes, edge if return_edge_id else None, *hops


def hetero_neighbor_sample(
    node_types: Sequence[str], edge_types: Sequence[tuple[str, str, str]], rowptr_dict: Mapping[str, Tensor],
    col_dict: Mapping[str, Tensor], seed_dict: Mapping[str, Tensor], num_neighbors_dict: Mapping[str, Sequence[int]],
    node_time_dict: Mapping[str, Tensor] | None = None, edge_time_dict: Mapping[str, Tensor] | None = None,
    seed_time_dict: Mapping[str, Tensor] | None = None, edge_weight_dict: Mapping[str, Tensor] | None = None,
    csc: bool = False, replace: bool = False, directed: bool = True, disjoint: bool = False,
    temporal_strategy: str = "uniform", return_edge_id: bool = True,
) -> tuple[Any, ...]:  # fmt: skip
    """Like `neighbor_sample`, but by types; an edge type is named "source__relation__destination"."""
    named = {"__".join(key): key if csc else key[::-1] for key in edge_types}
    times = node_time_dict or {}
    counts = {key[2]: rowptr_dict[name].numel() - 1 for name, key in named.items() if name in rowptr_dict}
    counts = {t: counts.get(t, times[t].numel() if t in times else _MANY) for t in node_types}
    weights, edge_times = edge_weight_dict or {}, edge_time_dict or {}
    graphs = {
        key: _grouped(
            rowptr_dict[name], col_dict[name], counts[key[0]], weights.get(name), edge_times.get(name),
            times.get(key[0]),
        )
        for name, key in named.items()
        if name in rowptr_dict
    }  # fmt: skip
    fanouts = {key: tuple(num_neighbors_dict[name]) for name, key in named.items()}
    strategy = "last" if temporal_strategy == "last" else "uniform"
    sampler = HopSampler(graphs, counts, fanouts, _seed(), replace, disjoint, strategy)  # type: ignore[arg-type]
    if seed_time_dict is None and times:
        seed_time_dict = {t: times[t][nodes] for t, nodes in seed_dict.items() if t in times}
    batch = sampler.sample(seed_dict, seed_time_dict, 0)
    edges = {name: _edges(batch, key) for name, key in named.items() if key in graphs}
    ends = ({name: found[end] for name, found in edges.items()} for end in ((0, 1) if csc else (1, 0)))
    numbers = {name: found[2] for name, found in edges.items()} if return_edge_id else None
    nodes = {t: _nodes(batch, t) for t in node_types}
    node_hops = {t: [chunk.numel() for chunk in batch.nodes[t]] for t in node_types}
    edge_hops = {n: [hop.edge.numel() for hop in batch.edges[key]] for n, key in named.items() if key in graphs}
    return *ends, nodes, numbers, node_hops, edge_hops


def _nodes(batch: NeighborBatch, of: str) -> Tensor:
    """The nodes of a type, [nodes], or with their trees, [nodes, 2]."""
    nodes = torch.cat(batch.nodes[of])
    return nodes if batch.trees is None else torch.stack([torch.cat(batch.trees[of]), nodes], 1)


def _edges(batch: NeighborBatch, key: tuple[str, str, str]) -> tuple[Tensor, Tensor, Tensor]:
    hops = batch.edges[key]
    return tuple(torch.cat([hop[part] for hop in hops]) for part in range(3))  # type: ignore[return-value]


def _one_relation(colptr: Tensor, row: Tensor, seeds: Tensor, fanouts: Sequence[int], replace: bool) -> Any:
    graph = _grouped(colptr, row, colptr.numel() - 1)
    sampler = HopSampler({_EDGE: graph}, {_NODE: graph.num_src}, {_EDGE: tuple(fanouts)}, _seed(), replace)
    return graph, sampler.sample({_NODE: seeds}, None, 0)


def sample_with_edges_between(
    colptr: Tensor, row: Tensor, seeds: Tensor, num_neighbors: Sequence[int], replace: bool, directed: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """torch_sparse's `neighbor_sample`: nodes, rows, columns and edges; all edges between the nodes unless
    `directed`."""
    graph, batch = _one_relation(colptr, row, seeds, num_neighbors, replace)
    nodes = _nodes(batch, _NODE)
    if directed:
        return nodes, *_edges(batch, _EDGE)
    with Numbering(graph.num_src).of(nodes) as numbers:
        return nodes, *edges_between(graph, numbers, nodes)


def sample_adj(
    rowptr: Tensor, col: Tensor, idx: Tensor, num_neighbors: int, replace: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The neighbours that the rows `idx` draw, as a compressed matrix: row pointers and columns, the node of each
    column, and the number of each entry."""
    _, batch = _one_relation(rowptr, col, idx, [num_neighbors], replace)
    nodes = _nodes(batch, _NODE)
    pointers, columns, edge = _compressed(*_edges(batch, _EDGE), idx.numel(), nodes.numel())
    return pointers, columns, nodes, edge


def _compressed(src: Tensor, dst: Tensor, edge: Tensor, rows: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Row pointers, columns and numbers of edges in the order of rows `dst`, then columns `src`."""
    order = (dst * count + src).argsort()
    return _pointer(torch.bincount(dst, minlength=rows)), src[order], edge[order]


def _pointer(counts: Tensor) -> Tensor:
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0))


def ego_k_hop_sample_adj(
    rowptr: Tensor, col: Tensor, idx: Tensor, depth: int, num_neighbors: int, replace: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """For each node of `idx` what `depth` hops from it draw, and all edges between these nodes: a compressed matrix of
    all parts, its nodes and edges, the pointers of the parts, and the place of each root."""
    parts, sizes = [], [0]
    for root in idx.view(-1, 1):
        nodes, src, dst, edge = sample_with_edges_between(rowptr, col, root, [num_neighbors] * depth, replace, False)
        parts.append((src + sizes[-1], dst + sizes[-1], edge, nodes))
        sizes.append(sizes[-1] + nodes.numel())
    src, dst, edge, nodes = (torch.cat(of) for of in zip(*parts, strict=True))
    pointer = torch.tensor(sizes, device="cpu")
    pointers, columns, edge = _compressed(src, dst, edge, sizes[-1], sizes[-1])
    return pointers, columns, nodes, edge, pointer, pointer[:-1]


def hgt_sample(
    colptr_dict: Mapping[str, Tensor], row_dict: Mapping[str, Tensor], input_node_dict: Mapping[str, Tensor],
    num_samples_dict: Mapping[str, Sequence[int]], num_hops: int,
) -> tuple[dict[str, Tensor], ...]:  # fmt: skip
    """The nodes of a batch by type, and the rows, columns and numbers of all edges between them by edge type."""
    named = {name: tuple(name.split("__")) for name in colptr_dict}
    counts = dict.fromkeys(num_samples_dict, 0)
    for name, (source, _, destination) in named.items():
        counts[destination] = colptr_dict[name].numel() - 1
        counts[source] = max(counts[source], int(row_dict[name].max()) + 1 if row_dict[name].numel() else 0)
    for t, nodes in input_node_dict.items():
        counts[t] = max(counts[t], int(nodes.max()) + 1)
    graphs: Any = {key: _grouped(colptr_dict[name], row_dict[name], counts[key[0]]) for name, key in named.items()}
    draws = HGTDraws(graphs, counts, {t: list(samples) for t, samples in num_samples_dict.items()})
    found, edges = draws.sample(input_node_dict, _seed())
    parts = ({name: edges[key][part] for name, key in named.items()} for part in range(3))  # type: ignore[index]
    return found, *parts


# ---------------------------------------------------------------- random walks


def random_walk(
    rowptr: Tensor, col: Tensor, start: Tensor, walk_length: int, p: float = 1.0, q: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The nodes [starts, walk_length + 1] and the edges [starts, walk_length] of walks; one at a node without edges
    stays there, by edge -1.

    A step back is chosen with a weight of 1 / p, one to a neighbour of the node before with 1, another one with 1 / q
    (Grover and Leskovec, "node2vec", 2016, section 3.2).
    """
    nodes = start.new_empty(start.numel(), walk_length + 1)
    edges = start.new_full((start.numel(), walk_length), -1)
    nodes[:, 0] = start
    pairs = None if p == q == 1 else _JoinedNodes(rowptr, col)
    most = max(1.0, 1 / p, 1 / q)
    for step in range(walk_length):
        here = nodes[:, step]
        nodes[:, step + 1] = here
        waiting = (rowptr[here + 1] > rowptr[here]).nonzero().view(-1)
        while waiting.numel():
            of = here[waiting]
            degree = rowptr[of + 1] - rowptr[of]
            edge = rowptr[of] + (torch.rand(of.shape, device=of.device, dtype=torch.float64) * degree).long()
            chosen = torch.ones(of.shape, dtype=torch.bool, device=of.device)
            if pairs is not None and step:  # a proposal that is kept in proportion to its weight
                before = nodes[waiting, step - 1]
                weight = torch.where(pairs.joined(before, col[edge]), 1.0, 1 / q)
                weight = torch.where(col[edge] == before, 1 / p, weight)
                chosen = torch.rand(of.shape, device=of.device) * most < weight
            done = waiting[chosen]
            edges[done, step], nodes[done, step + 1] = edge[chosen], col[edge[chosen]]
            waiting = waiting[~chosen]
    return nodes, edges


class _JoinedNodes:
    """The pairs of nodes that an edge joins."""

    def __init__(self, rowptr: Tensor, col: Tensor) -> None:
        self._count = rowptr.numel() - 1
        self._keys = (gather_csr(torch.arange(self._count, device=col.device), rowptr) * self._count + col).sort()[0]

    def joined(self, start: Tensor, end: Tensor) -> Tensor:
        keys = start * self._count + end
        return self._keys[torch.searchsorted(self._keys, keys).clamp(max=self._keys.numel() - 1)] == keys


def _walk_nodes(rowptr: Tensor, col: Tensor, start: Tensor, walk_length: int, p: float = 1.0, q: float = 1.0) -> Tensor:
    return random_walk(rowptr, col, start, walk_length, p, q)[0]


def _walk_along_edges(
    row: Tensor, col: Tensor, start: Tensor, walk_length: int, p: float = 1.0, q: float = 1.0, coalesced: bool = True,
    num_nodes: int | None = None, return_edge_indices: bool = False,
) -> object:  # fmt: skip
    """torch_cluster's `random_walk`, of edges in any order."""
    count = int(torch.cat([row, col, start]).max()) + 1 if num_nodes is None else num_nodes
    if coalesced:
        order = (row * count + col).argsort()
        row, col = row[order], col[order]
    found = random_walk(_pointer(torch.bincount(row, minlength=count)), col, start, walk_length, p, q)
    return found if return_edge_indices else found[0]


# ---------------------------------------------------------------- partitions


def metis(
    rowptr: Tensor, col: Tensor, num_partitions: int, node_weight: Tensor | None = None,
    edge_weight: Tensor | None = None, recursive: bool = False,
) -> Tensor:  # fmt: skip
    """int64 [num_nodes]: parts of about equal size with few edges between them, by METIS where `pymetis` is installed,
    else by label propagation. Edges weigh the same; parts are found at once, not by bisection."""
    count = rowptr.numel() - 1
    row = gather_csr(torch.arange(count, device="cpu"), rowptr.cpu())
    sizes = None if node_weight is None else node_weight.cpu().long()
    return found_clusters(undirected_of(row, col.cpu(), count, sizes), num_partitions, None, 0)[0].to(col.device)


def _partition(rowptr: Tensor, col: Tensor, weight: Tensor | None, num_parts: int, recursive: bool = False) -> Tensor:
    return metis(rowptr, col, num_parts)


def _rows_of_pointers(ptr: Tensor, count: int) -> Tensor:
    return torch.repeat_interleave(ptr.diff(), output_size=count)


# ---------------------------------------------------------------- where each of them is asked for

SAMPLER: dict[str, Callable[..., Any]] = {
    "neighbor_sample": neighbor_sample, "hetero_neighbor_sample": hetero_neighbor_sample, "random_walk": _walk_nodes,
}  # fmt: skip
"""Functions of `pyg_lib.sampler`, and the operators that PyG calls in their place."""

TORCH_SPARSE: dict[str, Callable[..., Any]] = {
    "neighbor_sample": sample_with_edges_between, "sample_adj": sample_adj, "random_walk": random_walk,
    "ego_k_hop_sample_adj": ego_k_hop_sample_adj, "hgt_sample": hgt_sample, "partition": _partition,
    "ptr2ind": _rows_of_pointers,
}  # fmt: skip
"""Operators of torch_sparse that PyG and `SparseTensor` call."""

TORCH_CLUSTER: dict[str, Callable[..., Any]] = {"random_walk": _walk_along_edges}
"""The functions that programs ask torch_cluster for."""
