"""Readouts over batches equal a loop over their graphs, forward and every gradient, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweave as gw
from graphweave import nn as gnn
from graphweave.core.settings import override
from tests.support import assert_matches, features

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    # Dynamo looks for gradients of what it traces, and hides this warning in a way that errors do not respect
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

W = 5
BATCHES = {"mixed": (4, 1, 7, 0, 2), "one": (6,), "empty": (0, 3), "single nodes": (1, 1, 1), "same": (3, 3)}


def batch_of(sizes: tuple[int, ...]) -> Any:
    parts = []
    for size in sizes:
        ring = torch.arange(size)
        parts.append(gw.graph((ring, (ring + 1) % max(size, 1)), num_nodes=size))
    return gw.batch(parts)


def parts_of(x: Tensor, sizes: tuple[int, ...]) -> list[Tensor]:
    return list(x.split(list(sizes)))


def _or_zero(part: Tensor, value: Callable[[Tensor], Tensor]) -> Tensor:
    return value(part) if part.shape[0] else part.new_zeros(part.shape[1])


def _sort(layer: Any, part: Tensor) -> Tensor:
    rows = part.sort(-1).values
    rows = rows[rows[:, -1].argsort(descending=True, stable=True)][: layer.k]
    return torch.cat([rows.flatten(), rows.new_zeros(W * (layer.k - rows.shape[0]))])


def _attention(layer: Any, part: Tensor) -> Tensor:
    values = part if layer.feat_nn is None else layer.feat_nn(part)
    return (layer.gate_nn(part).softmax(0) * values).sum(0)


def _set2set(layer: Any, part: Tensor) -> Tensor:
    """Set2Set with PyTorch's LSTM on our parameters."""
    lstm = nn.LSTM(2 * W, W, layer.n_layers).double()
    parameters = dict(layer.lstm.named_parameters())
    q_star, state = part.new_zeros(1, 1, 2 * W), (part.new_zeros(layer.n_layers, 1, W),) * 2
    for _ in range(layer.n_iters):
        q, state = torch.func.functional_call(lstm, parameters, (q_star, state))
        a = (part @ q[0, 0]).softmax(0)
        q_star = torch.cat([q, (a[:, None] * part).sum(0)[None, None]], -1)
    return q_star.flatten()


POOLINGS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any, Tensor], Tensor]]] = {
    "sum": (gnn.SumPooling, lambda _, part: part.sum(0)),
    "avg": (gnn.AvgPooling, lambda _, part: _or_zero(part, lambda x: x.mean(0))),
    "max": (gnn.MaxPooling, lambda _, part: _or_zero(part, lambda x: x.amax(0))),
    "sort": (lambda: gnn.SortPooling(3), _sort),
    "weight": (lambda: gnn.WeightAndSum(W), lambda layer, part: (layer.atom_weighting(part) * part).sum(0)),
    "attention": (lambda: gnn.GlobalAttentionPooling(nn.Linear(W, 1)), _attention),
    "attention-feat": (lambda: gnn.GlobalAttentionPooling(nn.Linear(W, 1), nn.Linear(W, 3)), _attention),
    "set2set": (lambda: gnn.Set2Set(W, 3, 2), _set2set),
}


def check(layer: nn.Module, runner: Callable[..., Any], reference: Callable[..., Tensor], name: str) -> None:
    sizes = BATCHES[name]
    graph = batch_of(sizes)

    def theirs(x: Tensor) -> Tensor:
        return torch.stack([reference(layer, part) for part in parts_of(x, sizes)])

    x = features(sum(sizes), W, torch.float64)
    assert_matches(lambda t: runner(graph, t), theirs, x, module=layer, label=name)


@pytest.mark.parametrize("name", POOLINGS)
def test_equals_a_loop_over_graphs(name: str) -> None:
    torch.manual_seed(0)
    make, reference = POOLINGS[name]
    layer = make().double()
    with override(eager_kernels=False):
        for batch in BATCHES:
            check(layer, layer, reference, batch)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("max", "attention") else pytest.mark.slow) for n in POOLINGS]
)
def test_with_eager_kernels(name: str) -> None:
    torch.manual_seed(0)
    make, reference = POOLINGS[name]
    layer = make().double()
    for batch in BATCHES:
        check(layer, layer, reference, batch)
    assert gw.counters()["eager_fallbacks"] == 0


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("sort", "attention") else pytest.mark.slow) for n in POOLINGS]
)
def test_compiled(name: str) -> None:
    torch.manual_seed(0)
    make, reference = POOLINGS[name]
    layer = make().double()
    compiled = gw.compile(layer)
    for batch in ("mixed", "same"):
        check(layer, compiled, reference, batch)
    counts = gw.counters()
    assert counts["graph_breaks"] == 0 and counts["eager_fallbacks"] == 0
    assert counts["compilations"] == 1


def test_attention_sums_to_one_for_each_graph() -> None:
    layer = gnn.GlobalAttentionPooling(nn.Linear(W, 1)).double()
    graph = batch_of((4, 1, 7))
    with override(eager_kernels=False):
        _, attention = layer(graph, features(12, W, torch.float64), get_attention=True)
    assert attention.shape == (12, 1)
    torch.testing.assert_close(torch.stack([a.sum() for a in attention.split([4, 1, 7])]), torch.ones(3).double())
