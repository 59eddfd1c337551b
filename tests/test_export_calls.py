"""Calls between kernels that an exported model makes itself, against eager mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

import graphweave as gw
from graphweave.core.errors import ExportError


def products(a: Tensor, b: Tensor, x: Tensor) -> list[Tensor]:
    """The products of each pair of two lists, of a matrix and a vector, and of a vector and a matrix for each block."""
    return [torch.bmm(a, b), a[0] @ x, torch.einsum("bk,bkj->bj", a[:, 0], b)]


def writes(x: Tensor, index: Tensor, numbers: Tensor) -> list[Tensor]:
    """Numbers put at an index along either dim, in place of others or added to them, and one number."""
    return [x.scatter(0, index, numbers), x.scatter_add(1, index.clamp(max=3), numbers), x.scatter(0, index, 2.5)]


def elements(x: Tensor, mask: Tensor) -> list[Tensor]:
    """Formulas of all numbers together, which are no work on rows."""
    y = x.mean(0) + x.sum(0).exp() * x.clamp(-0.5, 0.5).mean()
    return [
        y.tanh(),
        y.abs().sqrt(),
        y.masked_fill(mask, -1.0),
        torch.sigmoid(-y),
        y.clamp(min=0.1) ** 3,
        torch.maximum(y, 1 / y),
    ]


def bits(m: Tensor, n: Tensor, i: Tensor) -> list[Tensor]:
    return [m & n, m | n, ~m, i & 3, i | 1, ~i, (i > 1) | m]


def distinct(i: Tensor, weights: Tensor) -> list[Tensor]:
    """The different numbers, the place of each among them, and sums by these places."""
    found, place = torch.unique(i, return_inverse=True)
    return [found, place, torch.zeros(found.size(0)).index_add(0, place, weights)]


def of_items(x: Tensor, weight: Tensor, src: Tensor, dst: Tensor) -> list[Tensor]:
    """Messages along the edges that all items of a batch have, with weights that they share."""
    return [torch.zeros_like(x).index_add(1, dst, torch.tanh(x[:, src] * weight))]


X = torch.linspace(-2.0, 3.0, 20).view(5, 4)
INDEX = torch.tensor([[0, 4, 1, 3], [2, 0, 3, 1], [4, 1, 0, 2]])
MASK = torch.tensor([True, False, True, False])
PROGRAMS: dict[str, tuple[Callable[..., list[Tensor]], tuple[Tensor, ...]]] = {
    "products": (products, (X.view(2, 5, 2), X.sin().view(2, 2, 5), X[0, :2])),
    "writes": (writes, (X, INDEX, X[:3].cos())),
    "elements": (elements, (X, MASK)),
    "bits": (bits, (MASK, MASK.roll(1) | MASK, torch.arange(-1, 3))),
    "items": (of_items, (X.view(2, 5, 2), X[:3, :2], torch.tensor([4, 0, 1]), torch.tensor([2, 2, 3]))),
    "distinct": (distinct, (torch.tensor([7, 3, 7, 0, 3, 7]), X.view(-1)[:6])),
}


def check(function: Callable[..., list[Tensor]], args: Sequence[Tensor], folder: Path, tolerance: float) -> None:
    got = gw.export(function, args, folder).load()(*args)
    for one, want in zip(got, function(*args), strict=True):
        assert one.dtype == want.dtype
        torch.testing.assert_close(one, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_leaves_python(name: str, tmp_path: Path) -> None:
    function, args = PROGRAMS[name]
    check(function, args, tmp_path / "model", 1e-6)


def mixed(x: Tensor, src: Tensor, dst: Tensor) -> list[Tensor]:
    """Messages, a product, and folds."""
    h = torch.zeros_like(x).index_add(0, dst, torch.relu(x[src]) * 0.5)
    return [h, x @ x.t(), x.mean(0), x.sum() + x.max(), (x > 0).to(x.dtype), x.double() + 1, torch.full_like(x, 0.3)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)])
def test_half_precision_leaves_python(dtype: torch.dtype, tmp_path: Path) -> None:
    """Calls between kernels compute as floats, and round once."""
    edges = INDEX.view(-1)
    check(mixed, (X.to(dtype), edges, edges.roll(1)), tmp_path / "model", torch.finfo(dtype).eps)


def test_an_index_out_of_range_is_refused_where_numbers_are_written(tmp_path: Path) -> None:
    library = gw.export(writes, PROGRAMS["writes"][1], tmp_path / "model").load()
    with pytest.raises((ExportError, IndexError), match="index"):
        library(X, INDEX + 3, X[:3])
