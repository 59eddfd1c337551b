"""PyG's functions on edges, inside a model: one graph for all sizes, through both doors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor
from torch_geometric import utils
from torch_geometric.nn import MemPooling

import graphweave
from tests.support import by_default, features, random_graph

F64 = torch.float64

Edges: TypeAlias = Tensor
Model: TypeAlias = Callable[[Tensor, Edges, Tensor], Tensor]

DOORS: dict[str, Callable[[Model], Model]] = {
    "graphweave.compile": graphweave.compile,
    "torch.compile": lambda f: torch.compile(f, backend="graphweave", fullgraph=True),
}


def summed(x: Tensor, edges: Edges, weight: Tensor | None = None) -> Tensor:
    """The sum of the sources of each node's edges. A mask may have left any number of edges."""
    messages = x[edges[0]] if weight is None else x[edges[0]] * weight.view(-1, 1)
    return torch.zeros_like(x).index_add(0, edges[1], messages)


def subgraph(x: Tensor, edges: Edges, w: Tensor) -> Tensor:
    return summed(x, *utils.subgraph(x[:, 0] > 0, edges, w, relabel_nodes=True, num_nodes=len(x)))


def subgraph_of_nodes(x: Tensor, edges: Edges, w: Tensor) -> Tensor:
    nodes = (x[:, 0] > 0).nonzero().view(-1)
    return summed(x, *utils.subgraph(nodes, edges, w, num_nodes=len(x)))


def bipartite_subgraph(x: Tensor, edges: Edges, w: Tensor) -> Tensor:
    mask = x[:, 0] > 0
    return summed(x, *utils.bipartite_subgraph((mask, mask), edges, w, relabel_nodes=True, size=(len(x), len(x))))


def two_hops(x: Tensor, edges: Edges, w: Tensor) -> Tensor:
    nodes, inner, _, _ = utils.k_hop_subgraph(0, 2, edges, num_nodes=len(x))
    return summed(x, inner)[nodes]


def two_hops_with_new_numbers(x: Tensor, edges: Edges, w: Tensor) -> Tensor:
    nodes, inner, start, chosen = utils.k_hop_subgraph([0, 1], 2, edges, relabel_nodes=True, num_nodes=len(x))
    return summed(x[nodes], inner, w[chosen]) + x[nodes][start].sum(0)


def loops_apart(x: Tensor, edges: Edges, w: Tensor) -> Tensor:
    others, weight, loops, weight_of_loops = utils.segregate_self_loops(edges, w)
    assert weight_of_loops is not None
    return summed(x, others, weight) + summed(x, loops, weight_of_loops)


def isolated_nodes_left_out(x: Tensor, edges: Edges, w: Tensor) -> Tensor:
    inner, weight, kept = utils.remove_isolated_nodes(edges, w, num_nodes=len(x))
    return summed(x[kept], inner, weight)


def dense_adjacency(x: Tensor, edges: Edges, w: Tensor) -> Tensor:
    return utils.to_dense_adj(edges, edge_attr=w, max_num_nodes=len(x))[0] @ x


def dense_adjacency_of_two(x: Tensor, edges: Edges, w: Tensor) -> Tensor:
    batch = (torch.arange(len(x)) > 2).long()
    all_of_batch = utils.to_dense_adj(edges, batch, w[:, None] * x[edges[0]], batch_size=2)
    return all_of_batch.sum((1, 2)) + utils.to_dense_adj(edges, batch, max_num_nodes=2).sum()


def dense_adjacency_of_some(x: Tensor, edges: Edges, w: Tensor) -> Tensor:
    """Ones for the edges that fit: data decides how many, after a sum over rows of which data decides the number."""
    return utils.to_dense_adj(edges, max_num_nodes=len(x) - 1)[0].to(x.dtype) @ x[1:]


def edges_of_a_matrix(x: Tensor, edges: Edges, w: Tensor) -> Tensor:
    dense = torch.zeros(len(x), len(x), dtype=w.dtype).index_put((edges[0], edges[1]), w)
    return summed(x, *utils.dense_to_sparse(dense))


def places_in_groups(x: Tensor, edges: Edges, w: Tensor) -> Tensor:
    return summed(x, edges, utils.group_argsort(w, edges[1], num_groups=len(x)).to(w.dtype))


def joined_groups(x: Tensor, edges: Edges, w: Tensor) -> Tensor:
    rows = torch.arange(len(x))
    return utils.group_cat([summed(x, edges), x], [rows, rows])


def running_counts(x: Tensor, edges: Edges, w: Tensor) -> Tensor:
    degree = utils.degree(edges[1], len(x), dtype=torch.long)
    return x * utils.cumsum(degree)[1:, None] / utils.degree(edges[0], len(x), dtype=w.dtype).clamp(min=1)[:, None]


def edges_by_degree(x: Tensor, edges: Edges, w: Tensor) -> Tensor:
    degree = utils.degree(edges[1], len(x), dtype=torch.long)
    return summed(x, torch.stack([edges[0], torch.arange(len(x)).repeat_interleave(degree)]))


def attention(x: Tensor, edges: Edges, w: Tensor) -> Tensor:
    return summed(x, edges, utils.softmax(w, edges[1], num_nodes=len(x)))


def largest_message(x: Tensor, edges: Edges, w: Tensor) -> Tensor:
    place = utils._scatter.scatter_argmax(w, edges[1], 0, len(x))
    return utils.scatter(x[edges[0]], edges[1], 0, len(x), "max") + place.clamp(max=len(w) - 1)[:, None]


def places_in_an_index(x: Tensor, edges: Edges, w: Tensor) -> Tensor:
    chosen = (x[:, 0] > 0).nonzero().view(-1)
    place, kept = utils.map.map_index(edges[0], chosen)
    assert kept is not None
    return summed(x, torch.stack([chosen[place], edges[1][kept]]))


def all_places_in_an_index(x: Tensor, edges: Edges, w: Tensor) -> Tensor:
    order = torch.arange(len(x)).flip(0) * 1000
    return summed(x, torch.stack([utils.map.map_index(edges[0] * 1000, order, inclusive=True)[0], edges[1]]))


def distances_to_chosen(x: Tensor, edges: Edges, w: Tensor) -> Tensor:
    return torch.cdist(summed(x, edges), x[x[:, 0] > 0] + 1.0).sum(1, keepdim=True)


MODELS: dict[str, Model] = {
    "coalesce": lambda x, e, w: summed(x, *utils.coalesce(e, w, len(x))),
    "sort_edge_index": lambda x, e, w: summed(x, *utils.sort_edge_index(e, w, len(x))),
    "to_undirected": lambda x, e, w: summed(x, *utils.to_undirected(e, w, len(x), reduce="mean")),
    "remove_self_loops": lambda x, e, w: summed(x, *utils.remove_self_loops(e, w)),
    "add_self_loops": lambda x, e, w: summed(x, *utils.add_self_loops(e, w, "mean", len(x))),
    "add_remaining_self_loops": lambda x, e, w: summed(x, *utils.add_remaining_self_loops(e, w, 2.0, len(x))),
    "get_laplacian": lambda x, e, w: summed(x, *utils.get_laplacian(e, w.abs(), "sym", num_nodes=len(x))),
    "dropout_node": lambda x, e, w: summed(x, utils.dropout_node(e, 0.3, len(x))[0]),
    "dropout_edge": lambda x, e, w: summed(x, utils.dropout_edge(e, 0.3)[0]),
    "dropout_edge both ways": lambda x, e, w: summed(x, utils.dropout_edge(e, 0.3, force_undirected=True)[0]),
    "mask_to_index": lambda x, e, w: summed(x, e)[utils.mask_to_index(x[:, 0] > 0)],
    "index_to_mask": lambda x, e, w: summed(x, e) * utils.index_to_mask(e[0], len(x))[:, None],
    "lexsort": lambda x, e, w: summed(x, e[:, utils.lexsort([e[0], e[1]])], w),
    **{
        f.__name__: f
        for f in (
            subgraph, subgraph_of_nodes, bipartite_subgraph, two_hops, two_hops_with_new_numbers, loops_apart,
            isolated_nodes_left_out, dense_adjacency, dense_adjacency_of_two, edges_of_a_matrix, places_in_groups,
            joined_groups, running_counts, edges_by_degree, attention, largest_message, distances_to_chosen,
            places_in_an_index, all_places_in_an_index, dense_adjacency_of_some,
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("door", by_default(DOORS, "graphweave.compile"))
@pytest.mark.parametrize("name", by_default(MODELS, "dense_adjacency_of_two", "distances_to_chosen"))
def test_a_model_that_calls_the_function_is_one_graph(name: str, door: str, fresh_compiler: None) -> None:
    model = MODELS[name]
    compiled = DOORS[door](model)
    for nodes, edges in ((6, 40), (9, 20), (5, 7)):
        given: Any = random_graph(nodes, nodes, edges), features(edges, 1, F64).flatten()
        results = []
        for f in (model, compiled):
            torch.manual_seed(nodes)
            x = features(nodes, 4, F64).detach().requires_grad_()
            out = f(x, *given)
            out.backward(features(*out.shape, F64).detach())
            results.append((out.detach(), x.grad))
        torch.testing.assert_close(results[1], results[0])
    now = graphweave.counters()
    assert (now["compilations"], now["graph_breaks"], now["eager_fallbacks"]) == (1, 0, 0)


def asked_if_undirected(x: Tensor, edges: Edges, w: Tensor) -> Tensor:
    return summed(x * 2, edges) if utils.is_undirected(edges, num_nodes=len(x)) else summed(x, edges)


def rows_of_each_graph(x: Tensor, edges: Edges, w: Tensor) -> Tensor:
    graphs = utils.unbatch(summed(x, edges), (torch.arange(len(x)) > 2).long())
    return torch.stack([rows.square().sum(0) for rows in graphs])


def edges_of_each_graph(x: Tensor, edges: Edges, w: Tensor) -> Tensor:
    loops = torch.arange(len(x)).expand(2, -1)
    graphs = utils.unbatch_edge_index(loops, (torch.arange(len(x)) > 2).long())
    return torch.stack([summed(x, edges)[own[1]].sum(0) for own in graphs])


def other_destinations(x: Tensor, edges: Edges, w: Tensor) -> Tensor:
    row, _, other = utils.structured_negative_sampling(edges[:, :4], num_nodes=len(x))
    return summed(x, torch.stack([row, other]))


PARTED = (asked_if_undirected, rows_of_each_graph, edges_of_each_graph, other_destinations)


@pytest.mark.parametrize("model", by_default(PARTED, rows_of_each_graph), ids=lambda f: f.__name__)
def test_what_python_must_run_breaks_the_graph_once(model: Any, fresh_compiler: None) -> None:
    compiled = graphweave.compile(model)
    for nodes, edges in ((6, 40), (9, 20), (5, 7)):
        given: Any = random_graph(nodes, nodes, edges), features(edges, 1, F64).flatten()
        results = []
        for f in (model, compiled):
            torch.manual_seed(nodes)
            x = features(nodes, 4, F64).detach().requires_grad_()
            out = f(x, *given)
            out.backward(features(*out.shape, F64).detach())
            results.append((out.detach(), x.grad))
        torch.testing.assert_close(results[1], results[0])
    now = graphweave.counters()
    assert now["compilations"] <= 2 and now["eager_fallbacks"] == 0


@pytest.mark.slow
def test_pooling_by_memory_is_one_graph_for_all_sizes(fresh_compiler: None) -> None:
    torch.manual_seed(0)
    pool = MemPooling(4, 3, heads=2, num_clusters=3).double()
    compiled = graphweave.compile(pool)
    for nodes in (9, 14, 6):
        x, batch = features(nodes, 4, F64).detach(), (torch.arange(nodes) > 3).long()
        for got, want in zip(compiled(x, batch), pool(x, batch), strict=True):
            torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-6)  # distances of few rows differ by rounding
    now = graphweave.counters()
    assert (now["compilations"], now["graph_breaks"], now["eager_fallbacks"]) == (1, 0, 0)
