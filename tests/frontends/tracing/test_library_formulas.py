"""PyG's functions that sort edges and merge equal ones are part of one graph, through both doors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric import utils
from torch_geometric.utils import coalesce

import graphweave
from tests.support import features, random_graph

F64 = torch.float64

DOORS: dict[str, Callable[[Any], Any]] = {
    "graphweave.compile": graphweave.compile,
    "torch.compile": lambda f: torch.compile(f, backend="graphweave", fullgraph=True),
}


def aggregated(x: Tensor, edges: Tensor, weight: Tensor | None = None) -> Tensor:
    messages = x[edges[0]] if weight is None else x[edges[0]] * weight[:, None]
    return torch.zeros_like(x).index_add(0, edges[1], messages)


FUNCTIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "coalesce": lambda x, e, w: aggregated(x, coalesce(e)),
    "columns": lambda x, e, w: coalesce(e, w, sort_by_row=False),
    "mean": lambda x, e, w: aggregated(x, *utils.coalesce(e, w, x.size(0), reduce="mean")),
    "max of several": lambda x, e, w: utils.coalesce(e, [w, x[e[0]]], x.size(0), "max"),
    "no features": lambda x, e, w: utils.coalesce(e, None, x.size(0)),
    "undirected": lambda x, e, w: aggregated(x, utils.to_undirected(e)),
    "undirected weights": lambda x, e, w: aggregated(x, *utils.to_undirected(e, w, x.size(0))),
    "sorted": lambda x, e, w: aggregated(x, *utils.sort_edge_index(e, w)),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_edges_are_sorted_and_merged_in_one_graph(name: str, door: str, fresh_compiler: None) -> None:
    f = FUNCTIONS[name]
    compiled = DOORS[door](f)
    for nodes, edges in ((6, 40), (9, 20), (5, 7)):
        index = random_graph(nodes, nodes, edges)
        if nodes == 9:
            index = torch.arange(9).repeat(2, 1)  # all different
        weight = features(index.shape[1], 1, F64).flatten()
        x = features(nodes, 4, F64)
        torch.testing.assert_close(compiled(x, index, weight), f(x, index, weight))
    now = graphweave.counters()
    assert (now["compilations"], now["graph_breaks"], now["eager_fallbacks"]) == (1, 0, 0)


def test_a_mean_of_integers_has_the_dtype_that_eager_mode_gives_it(fresh_compiler: None) -> None:
    f = lambda e, count: utils.coalesce(e, count, 4, reduce="mean")  # noqa: E731
    compiled = graphweave.compile(f)
    for index in ([[0, 1, 2], [1, 2, 3]], [[0, 0, 2], [1, 1, 3]]):
        given = torch.tensor(index), torch.tensor([1, 2, 5])
        got, want = compiled(*given), f(*given)
        torch.testing.assert_close(got, want)
        assert got[1].dtype is want[1].dtype
    assert graphweave.counters()["graph_breaks"] > 0
