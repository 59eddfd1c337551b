"""Gradients of gradients of compiled functions, and gradients that a loss does not reach."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
from bench.check import FLOAT_TOLERANCE, relative_error
from graphweave.certificate.random_numbers import CounterBased
from graphweave.core.errors import DerivativeError
from tests.support import by_default, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

DOORS: dict[str, Callable[[Any], Any]] = {
    "compile": graphweave.compile,
    "plain": lambda f: torch.compile(f, backend="graphweave", dynamic=True),
}
both_doors = pytest.mark.parametrize("door", DOORS)


def _messages(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    message = torch.tanh(x[src] @ w) * torch.sigmoid(x[dst])
    return torch.zeros_like(x).index_add(0, dst, message).pow(2)


def _penalty(fn: Callable[..., Tensor], *tensors: Tensor, order: int = 2) -> list[Tensor]:
    """Gradients of a norm of the gradient by the first tensor, of the order asked for, by both floating tensors."""
    x, w, *rest = tensors
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    out = fn(x, w, *rest)
    for _ in range(order - 1):
        (grad,) = torch.autograd.grad((out * 0.3).sum(), x, create_graph=True)
        out = grad.pow(2)
    (out.sum() + fn(x, w, *rest).sum()).backward()
    return [grad.detach(), x.grad, w.grad]  # type: ignore[list-item]


def _same(got: list[Tensor], want: list[Tensor]) -> None:
    for one, other in zip(got, want, strict=True):
        assert relative_error(one, other) < 1e-11  # several sums, one after the other


class Descent(nn.Module):
    """Three steps of gradient descent on an energy, which is learned through its gradients (as
    `EquilibriumAggregation` of PyG does)."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(features(4, 4, torch.float64))

    def forward(self, x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        for _ in range(3):
            (grad,) = torch.autograd.grad(_messages(x, self.w, src, dst).sum(), x, create_graph=True)
            x = x - 0.1 * grad
        return x


@pytest.mark.filterwarnings("ignore:Dynamo does not know:UserWarning")
@both_doors
def test_gradients_that_a_compiled_function_takes_trace_nothing_again(door: str) -> None:
    """A function whose frame is compiled calls our backward. Dynamo must not trace that, too."""
    model = Descent()
    compiled = DOORS[door](model)
    src, dst = random_graph(7, 7, 30)
    seen = []
    for _ in range(5):
        start = features(7, 4, torch.float64)
        got, want = (run(start.clone().requires_grad_(), src, dst) for run in (compiled, model))
        grads = [torch.autograd.grad(y.pow(2).sum(), model.w)[0] for y in (got, want)]
        _same([got, grads[0]], [want, grads[1]])
        seen.append(torch._dynamo.utils.counters["frames"]["total"])
    assert seen[-1] == seen[-2] == seen[-3], seen


@both_doors
@pytest.mark.parametrize("order", by_default([2, 3], 2))
def test_gradient_penalty(door: str, order: int) -> None:
    compiled = DOORS[door](_messages)
    for rows, edges in ((7, 30), (4, 9)):
        arguments = features(rows, 4, torch.float64), features(4, 4, torch.float64), *random_graph(rows, rows, edges)
        _same(_penalty(compiled, *arguments, order=order), _penalty(_messages, *arguments, order=order))
    assert graphweave.counters()["eager_fallbacks"] == 0


def test_asking_for_a_graph_alone_stays_compiled() -> None:
    compiled = graphweave.compile(_messages)
    x = features(7, 4, torch.float64).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = compiled(x, features(4, 4, torch.float64), *random_graph(7, 7, 30))
        torch.autograd.grad(out.sum(), x, create_graph=True)
    assert graphweave.counters()["eager_fallbacks"] == 0


def test_forces_of_a_network_layer_by_layer() -> None:
    """Layers compiled one by one get values between them that nobody else holds."""
    torch.manual_seed(0)
    layers = [pyg.GraphConv(3, 3).double(), pyg.GraphConv(3, 3).double()]
    compiled = [graphweave.compile(layer) for layer in layers]
    index = random_graph(8, 8, 30)

    def train(stack: list[nn.Module]) -> list[Tensor]:
        place = features(8, 3, torch.float64).requires_grad_()
        energy = stack[1](torch.tanh(stack[0](torch.sin(place), index)), index).pow(3).sum()
        (force,) = torch.autograd.grad(energy, place, create_graph=True)
        for layer in layers:
            layer.zero_grad()
        force.pow(2).sum().backward()
        return [force.detach(), *(p.grad for layer in layers for p in layer.parameters() if p.grad is not None)]

    want = train(layers)  # type: ignore[arg-type]
    _same(train(compiled), want)  # type: ignore[arg-type]
    _same(train(compiled), want)  # type: ignore[arg-type]


def test_masks_are_those_of_the_forward() -> None:
    def fn(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return nn.functional.dropout(_messages(x, w, src, dst).tanh(), 0.4) ** 2

    arguments = features(7, 4, torch.float64), features(4, 4, torch.float64), *random_graph(7, 7, 30)
    torch.manual_seed(5)
    with CounterBased():
        want = _penalty(fn, *arguments)
    torch.manual_seed(5)
    _same(_penalty(graphweave.compile(fn), *arguments), want)


def test_a_detach_of_the_users_stays_one() -> None:
    def fn(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return _messages(x, w, src, dst) * (x * w.sum()).detach().exp()

    arguments = features(7, 4, torch.float64), features(4, 4, torch.float64), *random_graph(7, 7, 30)
    _same(_penalty(graphweave.compile(fn), *arguments), _penalty(fn, *arguments))


def test_what_cannot_be_done_says_so() -> None:
    """The forward is computed again from the inputs, so none may have been edited."""

    def shifted(x: Tensor, b: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return torch.tanh(torch.zeros_like(x).index_add(0, dst, x[src]) + b)

    x, b = features(7, 4, torch.float64).requires_grad_(), features(1, 4, torch.float64)
    out = graphweave.compile(shifted)(x, b, *random_graph(7, 7, 30))
    b.add_(1)
    (grad,) = torch.autograd.grad((out * 2).sum(), x, create_graph=True)
    with pytest.raises(DerivativeError, match=r"of shifted \(.*an input was overwritten.*force_eager"):
        grad.sum().backward()


class _Normalised(nn.Module):
    """A batch norm overwrites its statistics, which no gradient reads; gradients do read the running scale."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4).double()
        self.register_buffer("scale", torch.ones(4, dtype=torch.float64))

    def forward(self, x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        h = self.norm(_messages(x, w, src, dst))
        self.scale.mul_(0.9).add_(0.1 * h.detach().abs().mean(0))
        return h * self.scale.clone() * x  # eager mode would save the buffer itself, which the next call overwrites


@both_doors
def test_buffers_that_a_call_overwrites_itself(door: str) -> None:
    arguments = features(7, 4, torch.float64), features(4, 4, torch.float64), *random_graph(7, 7, 30)
    model, twin = _Normalised(), _Normalised()
    compiled = DOORS[door](model)
    for _ in range(2):  # two calls before each backward, and gradients of gradients that come with the first ones
        _same(_penalty(compiled, *arguments), _penalty(twin, *arguments))
    _same([b.double() for b in model.buffers()], [b.double() for b in twin.buffers()])


def test_a_batch_norm_after_steps_without_gradients_of_gradients() -> None:
    """Nothing was kept for them, but statistics are not needed."""
    norm, twin = nn.BatchNorm1d(4).double(), nn.BatchNorm1d(4).double()
    compiled = graphweave.compile(norm)
    for create in (False, False, True):
        found = []
        for call in (compiled, twin):
            x = features(7, 4, torch.float64).requires_grad_()
            (grad,) = torch.autograd.grad(call(x).pow(3).sum(), x, create_graph=create)
            found.append([grad.detach(), *(torch.autograd.grad(grad.pow(2).sum(), x) if create else ())])
        _same(*found)


class _TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.one, self.two = pyg.SAGEConv(4, 6), pyg.SAGEConv(6, 3), nn.Linear(6, 2)

    def forward(self, x: Tensor, index: Tensor) -> dict[str, Tensor]:
        h = self.body(x, index).relu()
        return {"one": self.one(h, index), "two": self.two(h)}


@both_doors
def test_parameters_that_the_loss_does_not_reach_stay_where_they_are(door: str) -> None:
    """AdamW skips what has no gradient, and decays what has a gradient of zeros."""
    x, index = features(9, 4), random_graph(9, 9, 30)

    def train(compiled: bool) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = _TwoHeads()
        call = DOORS[door](model) if compiled else model
        optimiser = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
        for head in ("one", "one", "two"):
            optimiser.zero_grad()
            call(x, index)[head].pow(2).sum().backward()
            missing = {name for name, p in model.named_parameters() if p.grad is None}
            assert missing == {
                n for n, _ in model.named_parameters() if n.startswith({"one": "two", "two": "one"}[head])
            }
            optimiser.step()
        return dict(model.named_parameters())

    want = train(False)
    for name, value in train(True).items():
        assert relative_error(value.detach(), want[name].detach()) < FLOAT_TOLERANCE[torch.float32] * 100, name


def test_types_of_nodes_that_the_loss_does_not_reach() -> None:
    """to_hetero: what only leads to a type without a loss gets no gradient, though relations are merged."""
    metadata = ["a", "b"], [("a", "to", "b"), ("b", "back", "a"), ("a", "self", "a")]
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = pyg.SAGEConv((4, 4), 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv(x, edge_index)

    model = pyg.to_hetero(Net(), metadata)
    x = {"a": features(7, 4), "b": features(5, 4, seed=3)}
    edges = {t: random_graph(len(x[t[0]]), len(x[t[2]]), 20, seed=i) for i, t in enumerate(metadata[1])}
    model(x, edges)["a"].sum().backward()
    want = {name: p.grad for name, p in model.named_parameters()}
    assert any(g is None for g in want.values())
    model.zero_grad()
    graphweave.compile(model)(x, edges)["a"].sum().backward()
    got = {name: p.grad for name, p in model.named_parameters()}
    assert {n for n, g in got.items() if g is None} == {n for n, g in want.items() if g is None}


def test_loss_in_the_function() -> None:
    model = _TwoHeads()
    x, index = features(9, 4), random_graph(9, 9, 30)
    graphweave.compile(lambda: model(x, index)["one"].pow(2).sum())().backward()
    assert {n for n, p in model.named_parameters() if p.grad is None} == {"two.weight", "two.bias"}


def _positions_and_lengths(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, ...]:
    """The length of a self-loop is 0, where a norm has no derivative. Results lie in memory in several orders."""
    gap = x[dst] - x[src]
    lengths = gap.pow(2).sum(-1).sqrt()
    return _messages(x, w, src, dst), lengths, (gap @ w).abs().sqrt().t(), gap.relu().sqrt().expand(2, -1, -1), x.t()


@pytest.mark.filterwarnings("ignore:graphweave. the gradients of:UserWarning")
@both_doors
def test_an_unused_result_without_a_finite_derivative(door: str) -> None:
    """What its missing tangent would reach is absent: zero times infinity must not become part of a gradient."""
    compiled = DOORS[door](_positions_and_lengths)
    src, dst = random_graph(7, 7, 30)
    dst[0] = src[0]
    start, w = features(7, 4, torch.float64), features(4, 4, torch.float64)
    for create_graph in (False, True, False):
        found = []
        for fn in (_positions_and_lengths, compiled):
            x = start.clone().requires_grad_()
            (grad,) = torch.autograd.grad(fn(x, w, src, dst)[0].pow(2).sum(), x, create_graph=create_graph)
            found.append([grad.detach()])
            if create_graph:
                found[-1] += torch.autograd.grad(grad.pow(2).sum(), x)
        assert all(t.isfinite().all() for t in found[1])
        _same(found[1], found[0])
    assert graphweave.counters()["eager_fallbacks"] >= 3


def test_infinite_gradients_of_the_users_own_stay_compiled() -> None:
    """They are infinite in eager mode, too, whichever results are used."""

    def fn(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor]:
        return _messages(x, w, src, dst) + x.abs().sqrt(), x.exp()

    compiled = graphweave.compile(fn)
    x = features(7, 4, torch.float64)
    x[0, 0] = 0
    x.requires_grad_()
    for _ in range(2):
        (grad,) = torch.autograd.grad(compiled(x, features(4, 4, torch.float64), *random_graph(7, 7, 30))[0].sum(), x)
        assert not grad.isfinite().all()
    assert graphweave.counters()["eager_fallbacks"] == 0
