"""Sums over millions of rows have as many right digits as PyTorch's, which adds up blocks, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import graphweave

N = 1_000_000
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


@pytest.mark.parametrize("model", [of_rows, of_columns, of_edges])
def test_sums_over_a_million_rows(model: Model) -> None:
    drawn = torch.Generator().manual_seed(3)
    x = 3 + 0.1 * torch.rand(N, WIDTH, generator=drawn)
    src, dst = torch.randint(N, (N,), generator=drawn), torch.randint(N // 3, (N,), generator=drawn)
    scale = torch.full((), 0.7)

    def run(call: Model, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        parameter = scale.to(dtype).requires_grad_()
        out = call(x.to(dtype), parameter, src, dst)
        out.sum().backward()
        assert parameter.grad is not None
        return out.detach(), parameter.grad

    want, got = run(model, torch.float64), run(graphweave.compile(model), torch.float32)
    for wanted, found in zip(want, got, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=TOLERANCE, atol=0)
