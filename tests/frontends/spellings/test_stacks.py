"""Stacks of values on rows, reduced or worked on: compiled equals eager, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import graphweave
from tests.support import assert_matches, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

REDUCTIONS = ["sum", "mean", "amax", "amin", "max", "softmax", "centred"]
SLOW = [(d, r, w) for d in (0, 1, -1) for r in REDUCTIONS for w in (False, True) if (d, w) != (-1, True)]
FAST = [(0, "sum", False), (0, "amax", True), (1, "mean", True)]


@pytest.mark.parametrize(
    ("dim", "reduction", "worked"), [*FAST, *(pytest.param(*c, marks=pytest.mark.slow) for c in SLOW if c not in FAST)]
)
def test_stacks_of_rows(dim: int, reduction: str, worked: bool) -> None:
    x, w = features(7, 4, torch.float64).requires_grad_(True), features(12, 5, torch.float64).requires_grad_(True)
    edges = random_graph(7, 7, 20)

    def model(x: Tensor, w: Tensor, edge_index: Tensor) -> Tensor:
        h = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        s = torch.stack([h @ part for part in w.view(3, 4, 5).unbind()], dim)
        if worked:
            s = s.tanh() * 2 + h.sum(-1).unsqueeze(-1).unsqueeze(dim)
        return reduce(s, dim, reduction)

    want = model(x, w, edges)
    got = graphweave.compile(model)(x, w, edges)
    torch.testing.assert_close(got, want)
    weights = want.detach().cos()
    for a, b in zip(*(torch.autograd.grad((y * weights).sum(), [x, w]) for y in (got, want)), strict=True):
        torch.testing.assert_close(a, b)
    assert graphweave.counters()["eager_fallbacks"] == 0


def reduce(s: Tensor, dim: int, how: str) -> Tensor:
    match how:
        case "max":
            return s.max(dim)[0]
        case "softmax":
            return (torch.softmax(s, dim) * s).sum(dim)
        case "centred":
            return s - s.sum(dim, keepdim=True)
        case _:
            return getattr(s, how)(dim)


@pytest.mark.parametrize("count", [1, 2])
def test_attention_among_relations_keeps_no_stack(count: int) -> None:
    """As PyG's HANConv weighs what relations send by a mean over all nodes; also where there is one relation."""
    x, w = features(7, 4, torch.float64).requires_grad_(True), features(4, 4, torch.float64).requires_grad_(True)
    edges = random_graph(7, 7, 20)

    def model(x: Tensor, w: Tensor, edge_index: Tensor) -> Tensor:
        h = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        s = torch.stack([h * (k + 1) for k in range(count)])
        score = (torch.tanh(s @ w).mean(1)).sum(-1)
        return (torch.softmax(score, 0).view(count, 1, 1) * s).sum(0)

    want, got = model(x, w, edges), graphweave.compile(model)(x, w, edges)
    torch.testing.assert_close(got, want)
    weights = want.detach().cos()
    for a, b in zip(*(torch.autograd.grad((y * weights).sum(), [x, w]) for y in (got, want)), strict=True):
        torch.testing.assert_close(a, b)
    report = str(graphweave.explain(model, x, w, edges))
    assert "aten.stack" not in report
    assert "aten.mean" not in report


def test_rows_that_are_repeated_and_summed_over_features() -> None:
    """The gradient of the sum repeats one column, and that of the repetition cuts the same tensor into blocks of rows:
    a stack of columns whose user makes a stack of blocks."""

    def model(x: Tensor, edge_index: Tensor) -> Tensor:
        return x[edge_index[0]].repeat(2, 1).sum(1)

    x, edges = features(5, 4, torch.float64), random_graph(5, 5, 9)
    assert_matches(graphweave.compile(model), model, x, edges)
    assert graphweave.counters()["eager_fallbacks"] == 0
