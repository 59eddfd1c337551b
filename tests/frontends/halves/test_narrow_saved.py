"""`options={"saved": "bfloat16"}`: rows that wait for the backward are rounded, and nothing else is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
from graphweave.core.errors import SettingsError
from tests.support import by_default, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

NODES, EDGES, WIDTH = 300, 1500, 32
ROUNDED = {"saved": "bfloat16"}

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "gcn": lambda: pyg.GCNConv(WIDTH, WIDTH),
    "gat": lambda: pyg.GATConv(WIDTH, WIDTH // 4, heads=4),
    "gin": lambda: pyg.GINConv(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))),
    "max": lambda: pyg.SAGEConv(WIDTH, WIDTH, aggr="max"),
}


class Two(nn.Module):
    def __init__(self, layer: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = LAYERS[layer](), LAYERS[layer]()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(nn.functional.elu(self.first(x, edge_index)), edge_index)


def _errors(door: str, model: nn.Module, x: Tensor, edge_index: Tensor) -> tuple[float, float]:
    """The largest errors of the result, and of a gradient, relative to the norms of eager mode's in float64."""
    exact = copy.deepcopy(model).double()
    wide = x.detach().double().requires_grad_()
    want = exact(wide, edge_index)
    weights = torch.linspace(-1, 1, want.numel()).reshape(want.shape)
    (want * weights.double()).sum().backward()
    compiled = (
        graphweave.compile(model, options=ROUNDED)
        if door == "graphweave"
        else torch.compile(model, backend="graphweave", options=ROUNDED)
    )
    x = x.detach().requires_grad_()
    out = compiled(x, edge_index)
    (out * weights).sum().backward()
    both = zip(model.parameters(), exact.parameters(), strict=True)
    pairs = [(x.grad, wide.grad), *((p.grad, q.grad) for p, q in both)]
    largest = max(float(right.norm()) for _, right in pairs if right is not None)
    return _relative(out, want), max(_relative(got, right, largest / 100) for got, right in pairs)


def _relative(got: Tensor | None, want: Tensor | None, least: float = 1e-12) -> float:
    assert got is not None and want is not None
    got, want = got.detach().double(), want.detach()
    return float((got - want).norm() / want.norm().clamp(min=least)) if want.numel() else 0.0


def _saved(model: nn.Module, options: dict[str, Any], *args: Tensor) -> str:
    forward = next(g for g in graphweave.explain(graphweave.compile(model, options=options), *args).graphs if g.keeps)
    return " ".join(str(kept) for kept in forward.keeps)


@pytest.mark.parametrize("door", ["graphweave", "plain"])
@pytest.mark.parametrize("layer", by_default(["gcn", "gat", "gin"], "gat"))
def test_gradients_have_the_precision_of_the_rows(layer: str, door: str) -> None:
    out, grad = _errors(door, Two(layer), features(NODES, WIDTH), random_graph(NODES, NODES, EDGES))
    assert out < 1e-6
    assert 1e-5 < grad < 0.02


def test_rows_take_half_the_memory() -> None:
    args = features(NODES, WIDTH).requires_grad_(), random_graph(NODES, NODES, EDGES)
    exact, rounded = _saved(Two("gcn"), {}, *args), _saved(Two("gcn"), ROUNDED, *args)
    assert "bf16" not in exact and "bf16" in rounded
    assert _saved(Two("gcn"), {"saved": "auto"}, *args) == exact  # only a budget may make it round


def test_what_is_compared_for_equality_stays_exact() -> None:
    """The gradient of a maximum goes to the messages that equal it."""
    _, grad = _errors("graphweave", Two("max"), features(NODES, WIDTH), random_graph(NODES, NODES, EDGES))
    assert grad < 0.02


def test_what_becomes_an_index_stays_exact() -> None:
    """Rounded up, 6.999 would be 7, which is out of range."""
    table = nn.Parameter(features(7, 4))

    def f(x: Tensor, edge_index: Tensor) -> Tensor:
        hidden = x.cumsum(-1).sigmoid() * 6.9999
        rows = table[hidden.long().clamp(min=0)].sum((1, 2))
        return torch.zeros(NODES).index_add(0, edge_index[1], (rows * hidden.sum(-1))[edge_index[0]])

    x, edge_index = 9 * features(NODES, WIDTH), random_graph(NODES, NODES, EDGES)
    got, want = [], []
    for call, grads in ((graphweave.compile(f, options=ROUNDED), got), (f, want)):
        x.grad = table.grad = None
        x.requires_grad_()
        call(x, edge_index).square().mean().backward()
        assert x.grad is not None and table.grad is not None
        grads += [x.grad, table.grad]
    assert all(_relative(a, b.double()) < 0.02 for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("size", by_default([(1, 0), (1, 1), (2, 1), (5, 0)], (2, 1)), ids=str)
def test_small_graphs(size: tuple[int, int]) -> None:
    nodes, edges = size
    out, grad = _errors("graphweave", Two("gat"), features(nodes, WIDTH), random_graph(nodes, nodes, edges))
    assert out < 1e-6 and grad < 0.05


def test_wider_numbers_stay_exact() -> None:
    args = features(NODES, WIDTH).double().requires_grad_(), random_graph(NODES, NODES, EDGES)
    assert "bf16" not in _saved(Two("gcn").double(), ROUNDED, *args)


@pytest.mark.slow
def test_gradients_of_gradients_are_computed() -> None:
    """The first gradient reads exact rows, as its own graph is kept by autograd."""
    model, x, edge_index = Two("gcn"), features(NODES, WIDTH).requires_grad_(), random_graph(NODES, NODES, EDGES)

    def penalty(call: Any) -> Tensor:
        (first,) = torch.autograd.grad(call(x, edge_index).square().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        return second

    got, want = penalty(graphweave.compile(model, options=ROUNDED)), penalty(model)
    assert _relative(got, want.double()) < 0.02


def test_a_budget_may_round_what_does_not_fit() -> None:
    model, args = Two("gat"), (features(NODES, WIDTH).requires_grad_(), random_graph(NODES, NODES, EDGES))

    def found(memory: int, **more: Any) -> Any:
        return graphweave.explain(graphweave.compile(model, options={"memory": memory, **more}), *args).budgets[0]

    free = found(1 << 30)
    assert found(free.peak, saved="auto").choice == "the compiler's choice"
    assert found(free.peak - 1).choice == "recompute='sums'"
    rounded = found(free.peak - 1, saved="auto")
    assert rounded.choice == "saved='bfloat16'" and rounded.peak < free.peak


def test_it_is_refused_with_a_comparison_to_eager_mode() -> None:
    with pytest.raises(SettingsError, match="Leave one out"):
        graphweave.compile(Two("gcn"), options={"verify": True, "saved": "bfloat16"})
    with pytest.raises(SettingsError, match="'saved'"):
        graphweave.compile(Two("gcn"), options={"saved": "half"})
