"""`torch.bincount` inside compiled functions: a sum over rows, once a graph where only indices are counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import graphweave
from tests.support import assert_matches, by_default, features, random_graph

F64 = torch.float64

DOORS: dict[str, Callable[[Callable[..., Tensor]], Callable[..., Tensor]]] = {
    "graphweave.compile": graphweave.compile,
    "torch.compile": lambda f: torch.compile(f, backend="graphweave", fullgraph=True),
}


def mean_of_sources(x: Tensor, edges: Tensor) -> Tensor:
    count = torch.bincount(edges[1], minlength=len(x)).clamp(min=1)
    return torch.zeros_like(x).index_add(0, edges[1], x[edges[0]]) / count[:, None]


def nodes_of_each_degree(x: Tensor, edges: Tensor) -> Tensor:
    degree = edges[1].bincount(minlength=len(x))
    return torch.bincount(degree) * x.sum()


def weighted(x: Tensor, edges: Tensor) -> Tensor:
    return x * torch.bincount(edges[1].to(torch.int32), x[edges[0], 0].detach(), len(x))[:, None]


@pytest.mark.parametrize("door", by_default(DOORS, "graphweave.compile"))
@pytest.mark.parametrize("fn", [mean_of_sources, nodes_of_each_degree, weighted], ids=lambda f: f.__name__)
def test_counts_are_one_graph_for_all_sizes(fn: Callable[..., Tensor], door: str, fresh_compiler: None) -> None:
    compiled = DOORS[door](fn)
    for nodes, edges in ((9, 20), (5, 7), (2, 2)):
        assert_matches(compiled, fn, features(nodes, 3, F64), random_graph(nodes, nodes, edges))
    now = graphweave.counters()
    assert (now["compilations"], now["graph_breaks"], now["eager_fallbacks"]) == (1, 0, 0)
    for nodes, edges in ((5, 0), (4, 1), (1, 3)):
        assert_matches(compiled, fn, features(nodes, 3, F64), random_graph(nodes, nodes, edges))
    now = graphweave.counters()
    assert (now["graph_breaks"], now["eager_fallbacks"]) == (0, 0)


def test_counts_of_a_graph_are_made_once(fresh_compiler: None) -> None:
    compiled = graphweave.compile(mean_of_sources)
    x, edges = features(9, 3, F64), random_graph(9, 9, 20)
    compiled(x, edges)
    before = graphweave.counters()
    compiled(x, edges)
    now = graphweave.counters()
    assert now["kernel_launches"] - before["kernel_launches"] == 1
    assert now["fallback_calls"] == before["fallback_calls"]


def test_weights_get_gradients(fresh_compiler: None) -> None:
    """Eager mode refuses a gradient of weights. It is that of a sum over rows."""

    def counted(index: Tensor, weight: Tensor) -> Tensor:
        return torch.bincount(index, weight, 6).square()

    def summed(index: Tensor, weight: Tensor) -> Tensor:
        return weight.new_zeros(6).index_add(0, index, weight).square()

    compiled = graphweave.compile(counted)
    for rows in (7, 0, 1, 2):
        index = torch.arange(rows) % 6
        assert_matches(compiled, summed, index, features(rows, 1, F64).flatten().detach().requires_grad_())


@pytest.mark.parametrize("dtype", by_default((torch.float32, torch.float16, torch.int64), torch.float16))
def test_dtypes_of_weights_are_pytorch_s(dtype: torch.dtype, fresh_compiler: None) -> None:
    index, weight = torch.tensor([2, 0, 2], dtype=torch.uint8), torch.tensor([1, 2, 4]).to(dtype)
    got, want = graphweave.compile(torch.bincount)(index, weight), torch.bincount(index, weight)
    assert got.dtype is want.dtype
    torch.testing.assert_close(got, want)


def test_what_eager_mode_refuses_is_refused(fresh_compiler: None) -> None:
    compiled = graphweave.compile(lambda index, weight, least: torch.bincount(index, weight, least) * 2)
    one = torch.tensor([1, 2, 0])
    for index, weight, least in ((one - 1, None, 0), (one, torch.ones(2), 0), (one, None, -1), (one.double(), None, 0)):
        with pytest.raises((RuntimeError, NotImplementedError)):
            compiled(index, weight, least)
