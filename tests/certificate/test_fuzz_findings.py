"""Programs of the fuzzer that went wrong once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave
from tests.support import by_default

pytestmark = pytest.mark.usefixtures("fresh_compiler")

DOORS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "graphweave": graphweave.compile,
    "plain": lambda f: torch.compile(f, backend="graphweave"),
    "plain dynamic": lambda f: torch.compile(f, backend="graphweave", dynamic=True),
}


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def reshaped_copy(x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    out = torch.zeros_like(x).index_add(0, index, x[index])
    return out, out.view(-1, 2, 2).clone()


def reshaped_product(x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    out = torch.zeros_like(x).index_add(0, index, x[index])
    return out.reshape(-1, 2, 2) * 1.0, out


@pytest.mark.parametrize("door", by_default(DOORS, "graphweave"))
@pytest.mark.parametrize("function", [reshaped_copy, reshaped_product])
def test_results_share_no_memory_that_eager_modes_do_not(function: Callable[..., Any], door: str) -> None:
    """Who writes to one result changes no other, though a copy of a view is the same numbers."""
    x, index = random(6, 4), torch.randint(6, (9,))
    with torch.no_grad():
        first, second = DOORS[door](function)(x, index)
        kept = second.clone()
        first.zero_()
    assert second.equal(kept)


def of_the_graph_alone(x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
    degree = torch.zeros(len(x), dtype=torch.int64).index_add(0, index, torch.ones_like(index))
    return torch.zeros_like(x).index_add(0, index, x[index]), degree, index.argsort(stable=True), torch.unique(index)


@pytest.mark.parametrize("door", by_default(DOORS, "graphweave"))
def test_results_of_two_calls_share_no_memory(door: str) -> None:
    """Values of the graph alone are computed once, but editing the result of one call changes no other result."""
    x, index = random(6, 4), torch.randint(6, (9,))
    compiled = DOORS[door](of_the_graph_alone)
    with torch.no_grad():
        calls = [compiled(x, index) for _ in range(3)]
        views = [call[1][1:] for call in calls]
        for result in calls.pop()[1:]:
            result.add_(7)
        calls.append(compiled(x, index))
        del calls[0]
        views.pop(0).add_(1)
        calls.append(compiled(x, index))
    for call in calls:
        torch.testing.assert_close(call, of_the_graph_alone(x, index))


def times(x: Tensor, other: Tensor, index: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, index, x[index] * other)


def times_after_a_break(x: Tensor, other: Tensor, index: Tensor) -> Tensor:
    other = other * 2
    torch._dynamo.graph_break()
    return x[index] * other


ONES: dict[str, tuple[Callable[..., Tensor], Callable[[int, int], tuple[Tensor, Tensor]]]] = {
    "edge weights": (times, lambda n, e: (random(n, 4), random(e, 1))),
    "heads": (times, lambda n, e: (random(n, 2, 4), random(e, 1, 4))),
    "channels of heads": (times, lambda n, e: (random(n, 2, 4), random(e, 2, 1))),
    "one number": (times, lambda n, e: (random(n, 4), random(1))),
    "mask": (times, lambda n, e: (random(n, 4), torch.rand(e, 1) > 0.5)),
    "after a break": (times_after_a_break, lambda n, e: (random(n, 4), random(e, 1))),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("case", by_default(ONES, "edge weights", "after a break"))
def test_a_size_of_one_meets_a_larger_one(case: str, door: str) -> None:
    """Sizes of 1 that are symbols do not broadcast in PyTorch's trace."""
    function, draw = ONES[case]
    compiled = DOORS[door](function)
    for nodes, edges in ((9, 20), (6, 11)):
        x, other = draw(nodes, edges)
        index = torch.randint(nodes, (edges,))
        torch.testing.assert_close(compiled(x, other, index), function(x, other, index))
    assert graphweave.counters()["eager_fallbacks"] == 0


def slices(x: Tensor, attr: Tensor, index: Tensor) -> tuple[Tensor, ...]:
    x = x.clone()
    x[1:] += 1
    src, dst = index
    sums = torch.zeros_like(x).index_add(0, dst[1:], attr[1:] * 2 + x[src[1:]])
    return sums, attr[:-1].sum(), attr[2:5], torch.cat([attr[3:], x])


@pytest.mark.parametrize("first", by_default((6, 0, 1), 6))
def test_slices_that_leave_out_more_rows_than_there_are(first: int) -> None:
    """A compilation for many rows would give them fewer than none."""
    compiled = graphweave.compile(slices)
    for edges in (first, 0, 6, 1, 2, 4):
        x, attr = random(5, 4), random(edges, 4)
        index = torch.randint(5, (2, edges))
        got, want = compiled(x, attr, index), slices(x, attr, index)
        torch.testing.assert_close(got, want)
        grads = [torch.autograd.grad(sum(o.sin().sum() for o in out), (x, attr)) for out in (got, want)]
        torch.testing.assert_close(*grads)
    assert graphweave.counters()["eager_fallbacks"] == 0


@pytest.mark.parametrize("door", by_default(DOORS, "plain"))
def test_numbers_have_a_last_dim(door: str) -> None:
    def f(e: Tensor) -> Tensor:
        total = e.sum()
        return torch.nn.functional.cosine_similarity(total, total * 2, dim=-1) + total.amax(-1)

    e = random(3, 4)
    torch.testing.assert_close(DOORS[door](f)(e), f(e))
    assert graphweave.counters()["eager_fallbacks"] == 0


@pytest.mark.filterwarnings(r"ignore:var\(\). degrees of freedom:UserWarning")  # raised by eager mode
@pytest.mark.parametrize("door", by_default(DOORS, "plain"))
def test_a_variance_of_no_rows(door: str) -> None:
    """The gradient divides by the number of rows, which depends on data."""

    def f(x: Tensor, mask: Tensor) -> Tensor:
        return x[mask].var(0, unbiased=False)

    compiled = DOORS[door](f)
    for kept in (0, 3):
        x = random(5, 2)
        out = compiled(x, torch.arange(5) < kept)
        torch.testing.assert_close(out, f(x, torch.arange(5) < kept), equal_nan=True)
        out.sum().backward()
        assert x.grad is not None and (kept > 0 or not x.grad.any())


def test_sums_of_the_lanes_of_a_stored_vector() -> None:
    """GCC 12.2's vectorizer of straight-line code adds up wrong lanes here if it may use AVX-512."""

    def f(x: Tensor, weight: Tensor, index: Tensor) -> Tensor:
        out = torch.ones_like(x).index_add(0, index, x)
        return (out.unsqueeze(-2) * weight).sum(-1)

    x, weight, index = random(4, 2, 4).detach(), random(2, 4).detach(), torch.randint(4, (4,))
    torch.testing.assert_close(graphweave.compile(f)(x, weight, index), f(x, weight, index))
