"""Derivatives in every way that PyTorch's autograd can ask for them: of higher order, in batches, in forward mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, functional
from torch.nn import functional as F

import graphweave
from bench.check import relative_error
from graphweave.core.errors import DerivativeError
from tests.support import by_default, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

DOORS: dict[str, Callable[[Any], Any]] = {
    "compile": graphweave.compile,
    "plain": lambda f: torch.compile(f, backend="graphweave", dynamic=True),
}
both_doors = pytest.mark.parametrize("door", DOORS)
GRAPH = random_graph(5, 5, 14)


def _messages(x: Tensor, w: Tensor) -> Tensor:
    """The energy is formed outside, so that tangents depend on what the function returns."""
    message = torch.tanh(x[GRAPH[0]] @ w) * torch.sigmoid(x[GRAPH[1]])
    return torch.zeros_like(x).index_add(0, GRAPH[1], message)


def _start() -> Tensor:
    return features(5, 3, torch.float64)


def _energy(layer: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    w = features(3, 3, torch.float64)
    return lambda x: layer(x, w).pow(3).sum() + layer(layer(x, w) * x, w).sin().sum()


def _orders(layer: Callable[..., Tensor], x: Tensor) -> list[Tensor]:
    """The gradient, one of its norm, and one of that: each by `create_graph`, outside of the layer."""
    x, energy, found = x.clone().requires_grad_(), _energy(layer), []
    out = energy(x)
    for _ in range(3):
        (grad,) = torch.autograd.grad(out, x, create_graph=True)
        found.append(grad.detach())
        out = grad.pow(2).sum() + grad.sum() * x.sum()
    return found


def _hvp(layer: Callable[..., Tensor], x: Tensor) -> list[Tensor]:
    v = features(5, 3, torch.float64)
    return [*functional.hvp(_energy(layer), x, v), functional.vhp(_energy(layer), x, v)[1]]


def _hessians(layer: Callable[..., Tensor], x: Tensor) -> list[Tensor]:
    return [
        functional.hessian(_energy(layer), x),
        functional.hessian(_energy(layer), x, create_graph=True),
        functional.hessian(_energy(layer), x, vectorize=True),
    ]


def _residual(layer: Callable[..., Tensor], x: Tensor) -> list[Tensor]:
    """Inputs that are functions of each other."""

    def energy(x: Tensor) -> Tensor:
        h = x.sin()
        return layer(h, h.t() @ x).pow(2).sum()

    return [*functional.hvp(energy, x, features(5, 3, torch.float64)), functional.hessian(energy, x)]


@pytest.mark.parametrize("ask", [_orders, _hvp, _hessians, _residual])
@both_doors
def test_an_energy_formed_outside(door: str, ask: Callable[..., list[Tensor]]) -> None:
    compiled, x = DOORS[door](_messages), _start()
    for one, other in zip(ask(compiled, x), ask(_messages, x), strict=True):
        assert relative_error(one, other) < 1e-11


@both_doors
def test_a_gradient_is_compiled_whole_where_its_function_was(door: str) -> None:
    """PyTorch does not trace the code of graph modules that are made while it compiles. So the gradient ran as separate
    calls, of which those to Python functions were compiled one by one, and one of these was more than PyTorch can
    guard. A process that took the same compilation from the disk compiled the gradient."""

    def function(e: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        written = e[1:].view(-1, 2, 2).transpose(0, 1).contiguous()
        written[:, 0] += 1
        return h @ h.transpose(-1, -2) @ h, written[..., ::2].flatten(1)

    def numbers(f: Callable[..., tuple[Tensor, Tensor]]) -> list[Tensor]:
        given = [t.clone().requires_grad_() for t in (e, h)]
        grads = torch.autograd.grad(sum(r.sin().sum() for r in f(*given)), given, create_graph=True)
        return [*grads, *torch.autograd.grad(sum(g.square().sum() for g in grads), given)]

    e, h = features(40, 4, torch.float64), features(24, 4, torch.float64).view(2, 12, 4)
    compiled = DOORS[door](function)
    for got, want in zip(numbers(compiled), numbers(function), strict=True):
        assert relative_error(got, want) < 1e-12
    counted = graphweave.counters()
    assert (counted["compilations"], counted["graph_breaks"], counted["eager_fallbacks"]) == (2, 0, 0)


@pytest.mark.slow
@both_doors
def test_writes_in_place_inside(door: str) -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        h = _messages(x, w)
        h[:2] = h[2:4] * 3
        h[1:].copy_(x[:1])
        return h.mul_(x).exp()

    compiled, x = DOORS[door](fn), _start()
    for one, other in zip(_orders(compiled, x), _orders(fn, x), strict=True):
        assert relative_error(one, other) < 1e-11


@both_doors
def test_numerical_second_derivatives(door: str) -> None:
    compiled = DOORS[door](_messages)
    x, w = (features(n, 3, torch.float64).requires_grad_() for n in (5, 3))
    assert torch.autograd.gradgradcheck(lambda x, w: compiled(x, w).pow(2), (x, w))


@both_doors
def test_batches_of_tangents(door: str) -> None:
    """One result is left out, one input gets no gradient, and the graph may be freed."""

    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = _messages(x, w)
        return h, h.exp()

    results = []
    for layer in (fn, DOORS[door](fn)):
        x, w = _start().requires_grad_(), features(3, 3, torch.float64).requires_grad_()
        batch = torch.stack([features(5, 3, torch.float64) * k for k in range(4)])
        found = torch.autograd.grad(layer(x, w)[0], (x, w), batch, is_grads_batched=True)
        graph = torch.autograd.grad(layer(x, w), x, (batch, batch + 1), is_grads_batched=True, create_graph=True)
        (second,) = torch.autograd.grad(graph[0].pow(2).sum(), w)
        jacobians = functional.jacobian(layer, (x.detach(), w.detach()), vectorize=True)
        results.append([*found, graph[0].detach(), second, *jacobians[0], *jacobians[1]])
    for one, other in zip(*results, strict=True):
        assert relative_error(one, other) < 1e-11


SQUARE: dict[str, Callable[[Tensor], Any]] = {
    "gradients with other strides": lambda x: ((x + 1).t(), x[0].expand(4, 4) * x),
    "views of unfolded rows": lambda x: [write(x.unfold(0, 2, 1) + 1) for write in (_slice, _select, _diagonal)],
    "group norm": lambda x: (F.group_norm(x, 2), F.group_norm(x[None], 2, x[0], x[1])),
    "logit": lambda x: (torch.logit(x.sigmoid()), torch.logit(x.sigmoid(), 0.3)),
    "determinants": lambda x: (torch.linalg.det(x), torch.linalg.slogdet(x.t() * 2)[1], torch.logdet(x @ x.t() + 1)),
    "solutions": lambda x: (torch.linalg.solve(x, x.sin()), torch.linalg.solve(x.t(), x[0]), torch.linalg.inv(x)),
}


def _slice(v: Tensor) -> Tensor:
    v[:1] *= 3
    return v


def _select(v: Tensor) -> Tensor:
    v[1] *= 3
    return v


def _diagonal(v: Tensor) -> Tensor:
    v.diagonal().mul_(3)
    return v


@pytest.mark.parametrize("name", by_default(SQUARE, "gradients with other strides", "group norm", "logit"))
def test_operators_whose_backward_was_chosen_for_first_gradients(name: str) -> None:
    """Autograd takes other formulas if it is asked for a graph of the gradients."""
    fn = SQUARE[name]
    start = torch.eye(4, dtype=torch.float64) * 2 + features(4, 4, torch.float64) / 3
    results = []
    for layer in (fn, graphweave.compile(fn)):
        x = start.clone().requires_grad_()
        out = torch.cat(
            [(part * torch.arange(1, part.numel() + 1).view(part.shape)).sin().sum().view(1) for part in layer(x)]
        )
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((grad * grad.detach().cos()).sum(), x, create_graph=True)
        (third,) = torch.autograd.grad(second.sum(), x)
        results.append([grad.detach(), second.detach(), third])
    for one, other in zip(*results, strict=True):
        assert relative_error(one, other) < 1e-9


def _forward(layer: Callable[..., Tensor]) -> list[Tensor]:
    x, w, v = _start(), features(3, 3, torch.float64), features(5, 3, torch.float64)
    with forward_ad.dual_level():
        got = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, v), w))
    jacobian = functional.jacobian(lambda x: layer(x, w), x, vectorize=True, strategy="forward-mode")
    return [*got, jacobian]


def test_forward_mode_runs_eagerly_and_says_so() -> None:
    compiled = graphweave.compile(_messages)
    with pytest.warns(UserWarning, match=r"_messages runs eagerly inside of torch.autograd.forward_ad"):
        got = _forward(compiled)
    for one, other in zip(got, _forward(_messages), strict=True):
        assert relative_error(one, other) < 1e-12
    assert graphweave.counters()["eager_fallbacks"] == 2


def test_forward_mode_is_refused_by_the_plain_door() -> None:
    """Nothing of ours is called before PyTorch's compiled code, which would lose the tangent in silence."""
    compiled = torch.compile(_messages, backend="graphweave", dynamic=True)
    w = features(3, 3, torch.float64)
    with torch.no_grad(), pytest.raises(DerivativeError, match=r"of _messages \(.*forward mode.*graphweave.compile"):
        _forward(compiled)
    with forward_ad.dual_level():  # no operand has a tangent
        assert relative_error(compiled(_start(), w), _messages(_start(), w)) < 1e-12
