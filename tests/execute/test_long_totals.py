"""Sums over millions of rows have as many right digits as PyTorch's, which adds up blocks, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import graphweave

N = 1_000_000
ITEMS = 62_500
"""Items of a batch, in a test with N rows in all."""
WIDTH = 3
TOLERANCE = 1e-6
"""Relative. A sum one by one is off by ten times as much and more, since rows without edges are alike: each time the
same number is added, it is rounded in the same direction."""

Model = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def of_rows(x: Tensor, scale: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """Mean over rows of numbers that kernels compute."""
    return torch.logsumexp(torch.zeros_like(x).index_add(0, dst, x[src] * scale), 1).mean()


def of_columns(x: Tensor, scale: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """Sums of columns."""
    return (torch.zeros_like(x).index_add(0, dst, x[src] * scale) + 4.1).sum(0)


def of_edges(x: Tensor, scale: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """A sum over edges."""
    return (x[src] * x[dst] * scale).sum()


def of_items(x: Tensor, scale: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """Mean over the rows of all items of a batch on one graph."""
    return torch.logsumexp(torch.zeros_like(x).index_add(1, dst, x[:, src] * scale), 2).mean()


def of_scaled_nodes(x: Tensor, scale: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """Mean over the rows of all items of a batch, with a number for each node."""
    return torch.logsumexp(torch.zeros_like(x).index_add(1, dst, x[:, src]) * scale, 2).mean()


@pytest.mark.parametrize("model", [of_rows, of_columns, of_edges])
def test_sums_over_a_million_rows(model: Model) -> None:
    drawn = torch.Generator().manual_seed(3)
    x = 3 + 0.1 * torch.rand(N, WIDTH, generator=drawn)
    check(model, x, torch.randint(N, (N,), generator=drawn), torch.randint(N // 3, (N,), generator=drawn))


def test_sums_over_many_items() -> None:
    drawn = torch.Generator().manual_seed(3)
    nodes = N // ITEMS
    x = 3 + 0.1 * torch.rand(ITEMS, nodes, WIDTH, generator=drawn)
    src, dst = torch.randint(nodes, (nodes,), generator=drawn), torch.randint(nodes // 3, (nodes,), generator=drawn)
    check(of_items, x, src, dst)


def test_sums_for_each_row_over_many_items() -> None:
    """Each node has a parameter, whose gradient is a sum over items."""
    drawn = torch.Generator().manual_seed(3)
    nodes = N // ITEMS
    x = (3 + 0.1 * torch.rand(nodes, WIDTH, generator=drawn)).expand(ITEMS, nodes, WIDTH).contiguous()
    src, dst = torch.randint(nodes, (nodes,), generator=drawn), torch.randint(nodes // 3, (nodes,), generator=drawn)
    check(of_scaled_nodes, x, src, dst, (nodes, 1))


def check(model: Model, x: Tensor, src: Tensor, dst: Tensor, shape: tuple[int, ...] = ()) -> None:
    """The result and the gradient of the numbers that messages are multiplied by are those of float64."""

    def run(call: Model, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        scale = torch.full(shape, 0.7, dtype=dtype, requires_grad=True)
        out = call(x.to(dtype), scale, src, dst)
        out.sum().backward()
        assert scale.grad is not None
        return out.detach(), scale.grad

    want, got = run(model, torch.float64), run(graphweave.compile(model), torch.float32)
    for wanted, found in zip(want, got, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=TOLERANCE, atol=0)
