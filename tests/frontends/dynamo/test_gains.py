"""A graph in which nothing gains by being compiled runs as PyTorch's own, and `explain` says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import graphweave
from tests.support import features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

DOORS: dict[str, Callable[[Any], Any]] = {
    "compile": graphweave.compile,
    "plain": lambda f: torch.compile(f, backend="graphweave", dynamic=True),
}


def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x, weight, bias).relu()


def views(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    x.add_(1)
    return x.view(-1)[:2], (y @ z).t()


class Chain(nn.Module):
    """Products that PyTorch multiplies, and a chain of operations on the rows of the result."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x).sin() * 2).tanh()


def neighbours(x: Tensor, edge_index: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])


def arguments() -> tuple[Tensor, ...]:
    made = features(30, 16, torch.float64), features(8, 16, torch.float64), features(1, 8, torch.float64)[0]
    return tuple(t.requires_grad_() for t in made)


@pytest.mark.parametrize("door", DOORS)
def test_calls_that_nothing_fuses_run_as_eager_mode_has_them(door: str) -> None:
    compiled, given = DOORS[door](layer), arguments()
    out = compiled(*given)
    assert type(out.grad_fn).__name__ == "ReluBackward0"
    want = torch.autograd.grad(layer(*given).square().sum(), given)
    for got, value in zip(torch.autograd.grad(out.square().sum(), given), want, strict=True):
        torch.testing.assert_close(got, value, rtol=0, atol=0)
    counts = graphweave.counters()
    assert counts["compilations"] == 1 and not counts["kernel_launches"] and not counts["fallback_calls"]


@pytest.mark.parametrize("door", DOORS)
def test_writes_and_views_are_eager_modes(door: str) -> None:
    x, y, z = features(4, 4), features(3, 5), features(5, 2)
    own = x.clone()
    first, second = DOORS[door](views)(x, y, z)
    want = views(own, y, z)
    torch.testing.assert_close((x, first, second), (own, *want), rtol=0, atol=0)
    assert first._base is x and second._is_view()


def test_sizes_of_nothing_and_one() -> None:
    compiled = graphweave.compile(layer)
    _, weight, bias = arguments()
    for rows in (30, 0, 1, 2, 7):
        x = features(rows, 16, torch.float64)
        torch.testing.assert_close(compiled(x, weight, bias), layer(x, weight, bias), rtol=0, atol=0)
    assert graphweave.counters()["compilations"] <= 3  # F.linear asks whether there are rows, and whether there is one


def test_a_chain_and_a_walk_along_edges_are_compiled() -> None:
    graphweave.compile(neighbours)(features(9, 4), random_graph(9, 9, 20))
    walked = graphweave.counters()["kernel_launches"]
    graphweave.compile(Chain())(features(30, 16))
    assert 0 < walked < graphweave.counters()["kernel_launches"]


def test_a_product_that_a_kernel_multiplies_faster_is_compiled() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 8, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.linear(x)
            return out

    many, few = features(20_000, 16), features(20, 16)
    model = Product()
    torch.testing.assert_close(graphweave.compile(model)(many), model(many))
    launched = graphweave.counters()["kernel_launches"]
    torch.testing.assert_close(graphweave.compile(Product())(few).shape, torch.Size([20, 8]))
    assert launched > 0 and graphweave.counters()["kernel_launches"] == launched


@pytest.mark.parametrize("options", [{"verify": True}, {"recompute": "never"}])
def test_what_only_compiled_code_does_is_compiled(options: dict[str, Any]) -> None:
    out = graphweave.compile(layer, options=options)(*arguments())
    assert type(out.grad_fn).__name__ == "CompiledFunctionBackward"


def test_explain_names_what_is_left_as_it_is() -> None:
    told = graphweave.explain(graphweave.compile(layer), *arguments())
    assert len(told.left) == 1 and not told.graphs and not told.eager
    assert "left as it is" in told.text() and "nothing in it gains by being compiled" in told.text()
