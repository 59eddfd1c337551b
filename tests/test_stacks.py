"""Stacks of values on rows, reduced or worked on: compiled equals eager, forward and backward."""

from __future__ import annotations

import pytest
import torch
from support import features, random_graph
from torch import Tensor

import graphweave

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
