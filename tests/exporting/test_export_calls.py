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


def limits(x: Tensor, mask: Tensor, i: Tensor) -> list[Tensor]:
    """Numbers without end, and the least integer."""
    y = x.mean(0)
    least = torch.full_like(i, -(2**63))
    return [y.masked_fill(mask, -torch.inf), torch.full_like(y, torch.nan), y.clamp(max=torch.inf), least]


def fixed(x: Tensor, i: Tensor) -> list[Tensor]:
    """The largest number of each of three rows, of which one has none: indices alone tell it."""
    return [x + 1, torch.full((3,), -(2**63)).scatter_reduce(0, i, i, "amax")]


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
    "limits": (limits, (X, MASK, torch.tensor([0, 2, 2]))),
    "fixed": (fixed, (X, torch.tensor([0, 2, 2]))),
    "bits": (bits, (MASK, MASK.roll(1) | MASK, torch.arange(-1, 3))),
    "items": (of_items, (X.view(2, 5, 2), X[:3, :2], torch.tensor([4, 0, 1]), torch.tensor([2, 2, 3]))),
    "distinct": (distinct, (torch.tensor([7, 3, 7, 0, 3, 7]), X.view(-1)[:6])),
}


def check(function: Callable[..., list[Tensor]], args: Sequence[Tensor], folder: Path, tolerance: float) -> None:
    got = gw.export(function, args, folder).load()(*args)
    for one, want in zip(got, function(*args), strict=True):
        assert one.dtype == want.dtype
        torch.testing.assert_close(one, want, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_leaves_python(name: str, tmp_path: Path) -> None:
    function, args = PROGRAMS[name]
    check(function, args, tmp_path / "model", 1e-6)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> list[Tensor]:
    """Fused attention of lists and heads: without a mask, with one for all heads, and with a scale."""
    attend = torch.nn.functional.scaled_dot_product_attention
    return [
        attend(q, k, v),
        attend(q, k, v, attn_mask=mask),
        attend(q.transpose(1, 2).contiguous().transpose(1, 2), k, v, attn_mask=mask[:, :, :1], scale=0.7),
    ]


def attended(lists: int, queries: int, keys: int, width: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Signed rows of three heads, and a mask that hides some keys, and from the first query all."""
    numbers = torch.Generator().manual_seed(queries + keys)
    q, k, v = (torch.randn(lists, 3, rows, width, generator=numbers, dtype=dtype) * 2 for rows in (queries, keys, keys))
    hidden = torch.rand(lists, 1, queries, keys, generator=numbers) < 0.4
    hidden[:, :, :1] = True
    return q, k, v, torch.zeros(lists, 1, queries, keys, dtype=dtype).masked_fill(hidden, -torch.inf)


@pytest.mark.parametrize(
    ("width", "dtype"),
    [(33, torch.float64), *(pytest.param(w, torch.float32, marks=pytest.mark.slow) for w in (1, 16, 65))],
)
def test_attention_leaves_python(width: int, dtype: torch.dtype, tmp_path: Path) -> None:
    """A library attends to any number of keys, panel by panel; a query without keys gets zeros, as in PyTorch."""
    library = gw.export(attention, attended(2, 5, 7, width, dtype), tmp_path / "model").load()
    for lists, queries, keys in ((2, 5, 7), (1, 1, 1), (3, 70, 64), (1, 33, 200), (2, 4, 0), (2, 0, 3), (0, 2, 2)):
        given = attended(lists, queries, keys, width, dtype)
        exact = attention(*(x.double() for x in given))
        for got, want in zip(library(*given), exact, strict=True):
            assert got.dtype == dtype
            torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


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
