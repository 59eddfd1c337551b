"""Losses compiled together with the model: row-wise, one kernel each way, eager's numbers and eager's errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor

import graphweave
from tests.support import assert_matches, by_default, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

N, CLASSES = 40, 7
EDGES = random_graph(N, N, 150)
Loss = Callable[[Tensor, Tensor], Tensor]


def labels(rows: int = N, seed: int = 5) -> Tensor:
    return torch.randint(CLASSES, (rows,), generator=torch.Generator().manual_seed(seed))


SOME = torch.rand(N, generator=torch.Generator().manual_seed(9)) < 0.4


def model(loss: Loss, dtype: torch.dtype = torch.float64) -> tuple[Callable[..., Tensor], torch.nn.Module]:
    """loss(conv(x), y) as one function, and the module that owns its parameters."""
    torch.manual_seed(0)
    conv = pyg.SAGEConv(5, CLASSES).to(dtype)

    def f(x: Tensor, edge_index: Tensor, y: Tensor) -> Tensor:
        return loss(conv(x, edge_index), y)

    return f, conv


LOSSES: dict[str, Loss] = {
    "cross_entropy": lambda out, y: F.cross_entropy(out, y),
    "sum": lambda out, y: F.cross_entropy(out, y, reduction="sum"),
    "none": lambda out, y: F.cross_entropy(out, y, reduction="none"),
    "nll": lambda out, y: F.nll_loss(F.log_softmax(out, dim=-1), y),
    "ignored": lambda out, y: F.cross_entropy(out, y, ignore_index=3),
    "smoothed": lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1),
    "masked": lambda out, y: F.cross_entropy(out[SOME], y[SOME]),
    "column": lambda out, y: F.binary_cross_entropy_with_logits(out[:, 0], (y > 3).to(out.dtype)),
    "every_column": lambda out, y: F.binary_cross_entropy_with_logits(out, F.one_hot(y, CLASSES).to(out.dtype)),
    "mse": lambda out, y: F.mse_loss(out[:, 0], y.to(out.dtype)),
    "l1": lambda out, y: F.l1_loss(out[:, 0], y.to(out.dtype)),
    "smooth_l1": lambda out, y: F.smooth_l1_loss(out[:, 0], y.to(out.dtype)),
    "kl": lambda out, y: F.kl_div(
        F.log_softmax(out, -1), F.softmax(y[:, None] * out.detach(), -1), reduction="batchmean"
    ),
}

USUAL = tuple(name for name in LOSSES if name not in ("sum", "nll", "l1", "column"))


@pytest.mark.parametrize("name", by_default(LOSSES, "cross_entropy", "masked", "smoothed", "kl"))
def test_values_and_gradients(name: str) -> None:
    f, conv = model(LOSSES[name])
    assert_matches(graphweave.compile(f), f, features(N, 5, torch.float64), EDGES, labels(), module=conv)


@pytest.mark.parametrize("dtype", by_default((torch.float32, torch.float64), torch.float64), ids=str)
@pytest.mark.parametrize("name", by_default(LOSSES, *USUAL))
def test_row_wise(name: str, dtype: torch.dtype) -> None:
    """Nothing is left to PyTorch. The forward is one kernel; the backward is one for the loss and one for the edges."""
    f, _ = model(LOSSES[name], dtype)
    x = features(N, 5, dtype).requires_grad_()
    told = graphweave.explain(f, x, EDGES, labels())
    assert [call.what for graph in told.graphs for call in graph.fallbacks] == []
    forward, backward = (len(graph.kernels) for graph in told.graphs)
    assert forward <= 3 and backward <= 3  # the aggregate, and the loss behind the products


def test_masks_given_at_each_call() -> None:
    torch.manual_seed(0)
    conv = pyg.SAGEConv(5, CLASSES).double()

    def f(x: Tensor, edge_index: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        return F.cross_entropy(conv(x, edge_index)[mask], y[mask])

    compiled = graphweave.compile(f)
    for mask in (SOME, ~SOME, torch.ones(N, dtype=torch.bool)):
        assert_matches(compiled, f, features(N, 5, torch.float64), EDGES, labels(), mask, module=conv)


def test_rows_without_a_label() -> None:
    f, conv = model(LOSSES["cross_entropy"])
    y = labels()
    y[::3] = -100
    x = features(N, 5, torch.float64)
    compiled = graphweave.compile(f)
    assert_matches(compiled, f, x, EDGES, y, module=conv)
    y[:] = -100
    assert compiled(x, EDGES, y).isnan() and f(x, EDGES, y).isnan()


@pytest.mark.parametrize("name", ["cross_entropy", "sum", "none", "mse"])
def test_no_rows(name: str) -> None:
    f, _ = model(LOSSES[name])
    args = (features(0, 5, torch.float64), torch.zeros(2, 0, dtype=torch.int64), labels(0))
    want, got = f(*args), graphweave.compile(f)(*args)
    torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("wrong", [CLASSES, -1, 1 << 33])
def test_wrong_labels(wrong: int) -> None:
    """As in eager mode, an IndexError comes before anything is computed, also when valid labels are edited later."""
    f, _ = model(LOSSES["cross_entropy"])
    compiled = graphweave.compile(f)
    x, y = features(N, 5, torch.float64), labels()
    compiled(x, EDGES, y)
    y[4] = wrong
    with pytest.raises(IndexError, match="out of bounds"):
        f(x, EDGES, y)
    with pytest.raises(IndexError, match=f"{wrong} at position .* is out of range for {CLASSES} columns"):
        compiled(x, EDGES, y)
    y[4] = 0
    torch.testing.assert_close(compiled(x, EDGES, y), f(x, EDGES, y))


def test_labels_are_checked_once_for_a_tensor() -> None:
    f, _ = model(LOSSES["cross_entropy"])
    compiled = graphweave.compile(f)
    x, y = features(N, 5, torch.float64), labels()
    for _ in range(3):
        compiled(x, EDGES, y)
    builds = graphweave.counters()["hoist_builds"]
    compiled(x, EDGES, y)
    assert graphweave.counters()["hoist_builds"] == builds
    compiled(x, EDGES, labels(seed=6))
    assert graphweave.counters()["hoist_builds"] == builds + 1


def test_class_weights() -> None:
    weight = torch.linspace(0.1, 2.0, CLASSES, dtype=torch.float64)
    f, conv = model(lambda out, y: F.cross_entropy(out, y, weight=weight))
    assert_matches(graphweave.compile(f), f, features(N, 5, torch.float64), EDGES, labels(), module=conv)
