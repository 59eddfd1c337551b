"""Traversals of a graph in layers, each of which messages can take at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.dgl.graph import DGLGraph
from graphweave.dgl.hops import one_relation
from graphweave.graph import query
from graphweave.graph.messaging import EdgeFunction, NodeFunction

FORWARD, REVERSE, NONTREE = 0, 1, 2
"""Labels of `dfs_labeled_edges_generator`."""


def bfs_nodes_generator(graph: DGLGraph, source: object, reverse: bool = False) -> tuple[Tensor, ...]:
    """The layers of a breadth-first search: the sources, then the nodes that one edge leads to, and so on. `reverse`
    follows edges backwards."""
    return tuple(nodes for nodes, _ in _layers(graph, source, reverse))


def bfs_edges_generator(graph: DGLGraph, source: object, reverse: bool = False) -> tuple[Tensor, ...]:
    """The edges by which a breadth-first search first reaches the nodes of each layer but the first."""
    return tuple(edges for _, edges in _layers(graph, source, reverse))[1:]


def _layers(graph: DGLGraph, source: object, reverse: bool) -> Iterator[tuple[Tensor, Tensor]]:
    r, sources = one_relation(graph, "a breadth-first search"), _sources(graph, source)
    starts, ends = (r.dst, r.src) if reverse else (r.src, r.dst)
    num = graph.num_nodes()
    seen = torch.zeros(num, dtype=torch.bool, device=graph.device)
    layer, edges = torch.unique(sources), graph.any_index().new_empty(0)
    while len(layer):
        yield layer, edges
        seen[layer.long()] = True
        now = torch.zeros_like(seen).index_fill(0, layer.long(), True)
        walked = (now[starts.long()] & ~seen[ends.long()]).nonzero().squeeze(1)
        first = torch.full((num,), len(starts), device=graph.device)
        first = first.scatter_reduce(0, ends[walked].long(), walked, "amin")
        edges = walked[first[ends[walked].long()] == walked]
        layer, edges = ends[edges], edges.to(graph.idtype)


def topological_nodes_generator(graph: DGLGraph, reverse: bool = False) -> tuple[Tensor, ...]:
    """Layers of nodes, each of which has all its incoming edges from earlier layers. DataError if the graph has a
    cycle."""
    r = one_relation(graph, "a topological order")
    starts, ends = (r.dst, r.src) if reverse else (r.src, r.dst)
    left = torch.bincount(ends.long(), minlength=graph.num_nodes())
    done, out = torch.zeros_like(left, dtype=torch.bool), []
    while True:
        layer = ((left == 0) & ~done).nonzero().squeeze(1)
        if not len(layer):
            break
        out.append(layer.to(graph.idtype))
        done[layer] = True
        now = torch.zeros_like(done).index_fill(0, layer, True)
        left -= torch.bincount(ends[now[starts.long()]].long(), minlength=len(left))
    if not bool(done.all()):
        raise DataError("a topological order needs a graph without cycles (got one with a cycle). Remove edges of it.")
    return tuple(out)


def dfs_edges_generator(graph: DGLGraph, source: object, reverse: bool = False) -> tuple[Tensor, ...]:
    """The edges of depth-first searches from each source, in their order: layer i has edge i of each search."""
    return tuple(edges for edges, _ in _side_by_side(graph, source, reverse, (FORWARD,)))


def dfs_labeled_edges_generator(
    graph: DGLGraph,
    source: object,
    reverse: bool = False,
    has_reverse_edge: bool = False,
    has_nontree_edge: bool = False,
    return_labels: bool = True,
) -> Any:
    """Like `dfs_edges_generator`, with labels: 0 where the search goes along an edge, 1 where it comes back
    (`has_reverse_edge`), 2 where it sees a node that it knows (`has_nontree_edge`).

    Each source has a search of its own, which leaves out what the searches before it have seen. Returns layers of
    edges, and with `return_labels` layers of labels.
    """
    wanted = (FORWARD, *((REVERSE,) if has_reverse_edge else ()), *((NONTREE,) if has_nontree_edge else ()))
    layers = _side_by_side(graph, source, reverse, wanted)
    edges = tuple(edges for edges, _ in layers)
    return (edges, tuple(labels for _, labels in layers)) if return_labels else edges


def _side_by_side(graph: DGLGraph, source: object, reverse: bool, wanted: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    r = one_relation(graph, "a depth-first search")
    starts, ends = (r.dst, r.src) if reverse else (r.src, r.dst)
    indptr, perm = query.grouped(starts, graph.num_nodes())
    order = (torch.arange(r.num_edges) if perm is None else perm).tolist()
    begin, to = indptr.tolist(), ends.tolist()
    seen: set[int] = set()
    searches = [
        [found for found in _search(root, begin, order, to, seen) if found[1] in wanted]
        for root in _sources(graph, source).tolist()
    ]
    longest = max(map(len, searches), default=0)
    layers = [[search[i] for search in searches if i < len(search)] for i in range(longest)]
    return [
        (
            torch.tensor([edge for edge, _ in layer], dtype=graph.idtype, device=graph.device),
            torch.tensor([label for _, label in layer], device=graph.device),
        )
        for layer in layers
    ]


def _search(root: int, begin: list[int], order: list[int], to: list[int], seen: set[int]) -> Iterator[tuple[int, int]]:
    """(edge, label) of the steps of one search. An edge that leads back along the way is no step."""
    if root in seen:
        return
    seen.add(root)
    path: list[tuple[int, int]] = []  # the edges of the way from the root, and the nodes to which they lead
    at = {root: begin[root]}
    node = root
    while True:
        if at[node] < begin[node + 1]:
            edge = order[at[node]]
            at[node] += 1
            other = to[edge]
            if other in seen:
                yield edge, NONTREE
                continue
            yield edge, FORWARD
            seen.add(other)
            at[other] = begin[other]
            path.append((edge, other))
            node = other
        elif path:
            edge, _ = path.pop()
            yield edge, REVERSE
            node = path[-1][1] if path else root
        else:
            return


def _sources(graph: DGLGraph, source: object) -> Tensor:
    ids: Tensor = query.as_selection(
        [source] if isinstance(source, int) else source, graph.num_nodes(), graph.any_index(), "node"
    )
    return ids


def prop_nodes_bfs(
    graph: DGLGraph,
    source: object,
    message_func: EdgeFunction,
    reduce_func: NodeFunction,
    reverse: bool = False,
    apply_node_func: NodeFunction | None = None,
) -> None:
    """`graph.pull` for each layer of `bfs_nodes_generator`."""
    graph.prop_nodes(bfs_nodes_generator(graph, source, reverse), message_func, reduce_func, apply_node_func)


def prop_nodes_topo(
    graph: DGLGraph,
    message_func: EdgeFunction,
    reduce_func: NodeFunction,
    reverse: bool = False,
    apply_node_func: NodeFunction | None = None,
) -> None:
    """`graph.pull` for each layer of `topological_nodes_generator`."""
    graph.prop_nodes(topological_nodes_generator(graph, reverse), message_func, reduce_func, apply_node_func)


def prop_edges_dfs(
    graph: DGLGraph,
    source: object,
    message_func: EdgeFunction,
    reduce_func: NodeFunction,
    reverse: bool = False,
    has_reverse_edge: bool = False,
    has_nontree_edge: bool = False,
    apply_node_func: NodeFunction | None = None,
) -> None:
    """`graph.send_and_recv` for each layer of `dfs_labeled_edges_generator`."""
    layers = dfs_labeled_edges_generator(
        graph, source, reverse, has_reverse_edge, has_nontree_edge, return_labels=False
    )
    graph.prop_edges(layers, message_func, reduce_func, apply_node_func)
