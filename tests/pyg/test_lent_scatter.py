"""torch_scatter where it is not installed: each function against loops over rows, eager and in compiled functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave
from tests.lent import lent  # noqa: F401
from tests.support import by_default, features

F64 = torch.float64
pytestmark = pytest.mark.usefixtures("fresh_compiler")

ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(0),
    "add": lambda x: x.sum(0),
    "mul": lambda x: x.prod(0),
    "mean": lambda x: x.mean(0),
    "min": lambda x: x.min(0)[0],
    "max": lambda x: x.max(0)[0],
}
"""What a reduction makes of the rows of one segment."""


def reduce_rows(src: Tensor, index: Tensor, rows: int, of_rows: Callable[[Tensor], Tensor], empty: float = 0) -> Tensor:
    none = torch.full(src.shape[1:], empty, dtype=src.dtype)
    return torch.stack([of_rows(src[index == i]) if bool((index == i).any()) else none for i in range(rows)])


def same(got: Callable[..., Any], want: Callable[..., Any], *args: Any) -> None:
    """Values and gradients of the first argument, eager and compiled: one compilation for two sizes."""
    compiled = graphweave.compile(got)
    for call in (got, compiled):
        for repeat in (1, 2):
            x = torch.cat([args[0]] * repeat).clone().requires_grad_()
            rest = [torch.cat([a, *[a + int(a.max()) + 1] * (repeat - 1)]) if a.dim() else a for a in args[1:]]
            results = []
            for f in (want, call):
                out = f(x, *rest)
                results.append((out.detach(), torch.autograd.grad((out * out.detach().cos()).sum(), x)[0]))
            torch.testing.assert_close(results[1], results[0])
    now = graphweave.counters()
    assert (now["compilations"], now["graph_breaks"], now["eager_fallbacks"]) == (1, 0, 0)


INDEX = torch.tensor([2, 0, 2, 5, 0, 2, 3, 3])


@pytest.mark.parametrize("reduce", by_default(ROWS, "max"))
def test_scatters_equal_loops_over_rows(reduce: str) -> None:
    import torch_scatter  # type: ignore[import-not-found]

    empty = 1 if reduce == "mul" else 0
    same(
        lambda x, index: torch_scatter.scatter(x, index, 0, dim_size=x.size(0), reduce=reduce),
        lambda x, index: reduce_rows(x, index, x.size(0), ROWS[reduce], empty),
        features(8, 3, F64), INDEX,
    )  # fmt: skip


COMPOSITES: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "scatter_std": (lambda x: (x.var(0, correction=min(1, len(x) - 1)) * len(x) / (len(x) + 1e-6)).sqrt(), False),
    "scatter_logsumexp": (lambda x: x.logsumexp(0), False),
    "scatter_softmax": (lambda x: x.softmax(0), True),
    "scatter_log_softmax": (lambda x: x.log_softmax(0), True),
}


@pytest.mark.parametrize("name", by_default(COMPOSITES, "scatter_softmax"))
def test_composites_equal_loops_over_rows(name: str) -> None:
    import torch_scatter

    of_rows, by_entry = COMPOSITES[name]
    index = INDEX if name != "scatter_std" else torch.tensor([2, 0, 2, 1, 0, 2, 1, 1])

    def want(x: Tensor, index: Tensor) -> Tensor:
        if not by_entry:
            return reduce_rows(x, index, int(index.max()) + 1, of_rows)
        place = torch.cat([(index == i).nonzero().view(-1) for i in range(x.size(0))])
        return torch.cat([of_rows(x[index == i]) for i in range(x.size(0))])[place.argsort()]

    x = features(8, 3, F64)
    torch.testing.assert_close(getattr(torch_scatter, name)(x, index, 0), want(x, index), rtol=1e-5, atol=1e-6)
    compiled = graphweave.compile(lambda x, index: getattr(torch_scatter, name)(x, index, dim=0))
    torch.testing.assert_close(compiled(x, index), getattr(torch_scatter, name)(x, index, 0))
    now = graphweave.counters()
    assert (now["graph_breaks"], now["eager_fallbacks"]) == (0, 0)


@pytest.mark.parametrize("reduce", by_default(ROWS, "mean"))
def test_segments_equal_scatters(reduce: str) -> None:
    import torch_scatter

    index, indptr = torch.tensor([0, 0, 2, 2, 2, 3, 5, 5]), torch.tensor([0, 2, 2, 5, 6, 6, 8])
    x = features(8, 3, F64)
    want = torch_scatter.scatter(x, index, 0, reduce=reduce)
    for call in (lambda f: f, graphweave.compile):
        found = call(lambda x, p: torch_scatter.segment_csr(x, p, reduce=reduce))(x, indptr)
        torch.testing.assert_close(found, want)
        found = call(lambda x, i: torch_scatter.segment_coo(x, i, dim_size=6, reduce=reduce))(x, index)
        torch.testing.assert_close(found, want)
    several = torch.stack([indptr, torch.tensor([0, 1, 4, 4, 7, 7, 8])])
    batch = torch.stack([x, x * 2])
    found = torch_scatter.segment_csr(batch, several, reduce=reduce)
    torch.testing.assert_close(found[0], want)
    torch.testing.assert_close(found[1], torch_scatter.segment_csr(batch[1], several[1], reduce=reduce))
    assert graphweave.counters()["graph_breaks"] == 0


def test_gathers_copy_rows_along_segments() -> None:
    import torch_scatter

    x, index, indptr = features(3, 2), torch.tensor([0, 0, 2, 2, 2]), torch.tensor([0, 2, 2, 5])
    for call in (lambda f: f, graphweave.compile):
        assert torch.equal(call(lambda x, i: torch_scatter.gather_coo(x, i) * 1)(x, index), x[index])
        assert torch.equal(call(lambda x, p: torch_scatter.gather_csr(x, p) * 1)(x, indptr), x[index])
    batch = torch.stack([x, x + 1])
    several = torch.stack([index, index.flip(0)])
    assert torch.equal(torch_scatter.gather_coo(batch, several)[1], (x + 1)[index.flip(0)])
    assert torch.equal(torch_scatter.gather_csr(batch, indptr.expand(2, -1))[1], (x + 1)[index])


@pytest.mark.parametrize("reduce", by_default(["sum", "mul", "mean", "min", "max"], "max"))
def test_a_given_result_is_written_into_and_takes_part(reduce: str) -> None:
    import torch_scatter

    x, index = torch.tensor([[1.0, -4.0], [2.0, 3.0], [-5.0, 0.5]]), torch.tensor([1, 1, 0])
    start = torch.tensor([[0.25, 1.0], [1.5, 2.0], [7.0, -7.0]])
    want = {
        "sum": [[-4.75, 1.5], [4.5, 1.0], [7.0, -7.0]],
        "mul": [[-1.25, 0.5], [3.0, -24.0], [7.0, -7.0]],
        "mean": [[-4.75, 1.5], [2.25, 0.5], [7.0, -7.0]],
        "min": [[-5.0, 0.5], [1.0, -4.0], [7.0, -7.0]],
        "max": [[0.25, 1.0], [2.0, 3.0], [7.0, -7.0]],
    }[reduce]
    for call in (lambda f: f, graphweave.compile):
        out = start.clone()
        found = call(lambda x, i, out: torch_scatter.scatter(x, i, 0, out=out, reduce=reduce))(x, index, out)
        assert out.tolist() == want
        assert found.tolist() == want
    assert graphweave.counters()["graph_breaks"] == 0


def test_places_of_extremes_are_the_first_ones() -> None:
    import torch_scatter

    x, index = torch.tensor([3.0, 3.0, 1.0, 1.0]), torch.tensor([0, 0, 2, 2])
    assert [t.tolist() for t in torch_scatter.scatter_max(x, index)] == [[3, 0, 1], [0, 4, 2]]
    assert [t.tolist() for t in torch_scatter.segment_min_coo(x, index)] == [[3, 0, 1], [0, 4, 2]]


def test_whole_numbers_and_wide_indices() -> None:
    import torch_scatter

    x, index = torch.tensor([[5, 2, 9, -4]]), torch.tensor([[0, 0, 1, 1]])
    assert torch_scatter.scatter_mean(x, index).tolist() == [[3, 2]]
    assert torch_scatter.scatter_add(x, index, dim=1, dim_size=3).tolist() == [[7, 5, 0]]
    assert torch_scatter.utils.broadcast(torch.tensor([0, 1, 2, 3]), x, -1).tolist() == [[0, 1, 2, 3]]
    with pytest.raises(ValueError, match="floating-point"):
        torch_scatter.scatter_softmax(x, index)
    with pytest.raises(ValueError, match="got 'median'"):
        torch_scatter.scatter(x, index, reduce="median")
