"""Programs for which compilers of gather and scatter have been observed to give wrong results silently."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import graphweave
from tests.support import AWKWARD, assert_matches, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def gather_of_sum(x: Tensor, edge_index: Tensor) -> Tensor:
    """Edges read sums to which other edges of the same kernel would still be adding."""
    total = torch.zeros_like(x).index_add(0, edge_index[1], x.index_select(0, edge_index[0]))
    return total.index_select(0, edge_index[0]) * x.index_select(0, edge_index[1])


def times_total(x: Tensor, group: Tensor) -> Tensor:
    """There is one destination row, and its size 1 looks like a broadcast."""
    total = x.new_zeros(1, x.size(1))
    total.scatter_add_(0, group.unsqueeze(-1).expand_as(x), x.tanh())
    return x.sin() * total.index_select(0, group)


def two_hops(x: Tensor, edge_index: Tensor) -> Tensor:
    one = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
    return torch.zeros_like(x).index_add(0, edge_index[1], one[edge_index[0]])


def there_and_back(x: Tensor, edge_index: Tensor) -> Tensor:
    one = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
    return torch.zeros_like(x).index_add(0, edge_index[0], one[edge_index[1]])


def rows_that_look_alike(x: Tensor, edge_index: Tensor, bias: Tensor) -> Tensor:
    """`bias` has a row for each edge; with as many edges as nodes, only its origin tells the two apart."""
    return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]] + bias)


@pytest.mark.parametrize("fn", [gather_of_sum, two_hops, there_and_back], ids=lambda fn: fn.__name__)
def test_sum_is_complete_before_it_is_gathered(fn: object) -> None:
    assert callable(fn)
    compiled = graphweave.compile(fn)
    for graph in AWKWARD:
        assert_matches(compiled, fn, features(graph.num_nodes, 5), graph.edge_index, label=graph.name)


@pytest.mark.parametrize("dynamic", [True, False])
def test_scatter_into_one_row_then_gather(dynamic: bool) -> None:
    compiled = graphweave.compile(times_total, dynamic=dynamic)
    for rows in (7, 1, 40):
        assert_matches(compiled, times_total, features(rows, 4), torch.zeros(rows, dtype=torch.int64))


def test_as_many_edges_as_nodes() -> None:
    """Dynamo gives equal sizes one symbol; a capture made so must not serve sizes that differ."""
    compiled = graphweave.compile(rows_that_look_alike)
    for nodes, edges in ((9, 9), (9, 20), (20, 9), (5, 5)):
        arguments = features(nodes, 4), random_graph(nodes, nodes, edges), features(edges, 4, seed=3)
        assert_matches(compiled, rows_that_look_alike, *arguments, label=f"{nodes} {edges}")


def test_as_many_nodes_as_features() -> None:
    compiled = graphweave.compile(two_hops)
    for nodes in (4, 8, 4):
        assert_matches(compiled, two_hops, features(nodes, 4), random_graph(nodes, nodes, 4))


def test_the_same_tensor_twice() -> None:
    """Source and destination row given as one tensor."""

    def fn(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, dst, x[src] * 2)

    index = random_graph(6, 6, 15)[0].contiguous()
    compiled = graphweave.compile(fn)
    x = features(6, 3)
    assert torch.equal(compiled(x, index, index), fn(x, index, index))


@pytest.mark.parametrize("other", [False, True])
def test_a_sum_that_has_a_product_twice(other: bool) -> None:
    """Products are added to the tensor of the first; its second occurrence was left out (ARMA's gradients met it)."""
    edge_index = random_graph(9, 9, 30)

    def fn(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        product = x @ w
        total = product + product + torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        return total - x.sin() @ v if other else total

    arguments = [features(9, 4, torch.float64), *(features(4, 4, torch.float64, seed=s) for s in (2, 3))]
    assert_matches(graphweave.compile(fn), fn, *(x.requires_grad_() for x in arguments))


def weighted_then_maximum(x: Tensor, w: Tensor, batch: Tensor) -> Tensor:
    """A pooling: rows times their score, which is a sum over features, and the maximum of each graph."""
    y = x * torch.tanh((x * w).sum(-1) / w.norm(p=2, dim=-1)).unsqueeze(-1)
    index = batch.unsqueeze(-1).expand_as(y)
    return y.new_zeros(20, x.size(1)).scatter_reduce(0, index, y, "amax", include_self=False)


def test_a_maximum_finds_its_message_though_a_sum_over_features_is_part_of_it() -> None:
    """A message that the backward computes again equals the saved maximum to the bit: in float32 its score had another
    rounding there than in the forward, no message was found, and gradients were lost."""
    generator = torch.Generator().manual_seed(0)
    x, w, cotangent = (torch.randn(rows, 128, generator=generator) for rows in (700, 1, 20))
    batch = torch.randint(20, (700,), generator=generator)

    def gradients(run: Callable[..., Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
        leaves = [value.to(dtype, copy=True).requires_grad_() for value in (x, w)]
        return torch.autograd.grad(run(*leaves, batch), leaves, cotangent.to(dtype))

    want = gradients(weighted_then_maximum, torch.float64)
    for got, exact in zip(gradients(graphweave.compile(weighted_then_maximum), torch.float32), want, strict=True):
        torch.testing.assert_close(got.double(), exact, rtol=0, atol=1e-5 * exact.abs().max().item())
