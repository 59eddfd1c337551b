"""Scripted modules inside of compiled functions: their code is traced, so that they break no graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweave
from bench.check import relative_error
from graphweave.frontends.tracing.scripted_code import NotPython, python_function
from tests.support import features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

F64 = torch.float64


def scripted(module: Any) -> Any:
    with warnings.catch_warnings():  # PyTorch would rather have modules exported
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(module)


def _repeat(x: Tensor, n: int) -> Tensor:
    if n > 2:
        return x * n
    for i in range(n):
        x = x + i
    return x


class Inner(nn.Module):
    """Lists, optional arguments, branches, sizes, data types, attributes and functions of the scripted language."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.5, -1.5, 2.0], dtype=F64))
        self.register_buffer("shift", torch.tensor([1.0, 2.0, 0.25], dtype=F64))
        self.parts: int = 2
        self.times = [1, 2, 3]
        self.repeat = scripted(_repeat)

    def forward(self, x: Tensor, y: Tensor | None = None, scale: float = 1.5) -> tuple[Tensor, int, Tensor]:
        if y is not None:
            x = x + y
        if self.training:
            x = x * 2
        x = x[:, None].expand(-1, 2, 3)[..., 0, :].to(torch.float64)
        out: list[Tensor] = []
        for n in self.times:
            out.append(self.repeat(x, n) * self.weight - self.shift / self.parts * scale)
        a, b, c = torch.stack(out).unbind(0)
        kind = torch.float64 if x.dtype == torch.float64 else torch.float32
        rest = torch.ones(x.shape[0], 3, dtype=kind, device=x.device).softmax(-1, torch.float64)
        return a.tanh() + b[:, -1:].sigmoid() * c, x.size(0) + a.dim(), rest


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.LayerNorm(3)])
        self.last = nn.Sequential(nn.Linear(3, 3), nn.SiLU(), nn.Softplus())

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        assert x.dim() == 2, "expected rows"
        y, n, rest = self.inner(x, scale=2.0)
        return self.last(y) * (n - x.shape[0]) + torch.tensordot(y, rest[:3], dims=([1], [1]))


class Potential(nn.Module):
    def __init__(self, messages: nn.Module) -> None:
        super().__init__()
        self.messages = messages

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        src, dst = edge_index
        x.requires_grad_()
        rows = self.messages(x[dst] - x[src])
        energy = torch.zeros_like(x).index_add(0, dst, rows).square().sum()
        return energy, torch.autograd.grad(energy, x, create_graph=True)[0]


def _step(run: Callable[..., Any], model: nn.Module, x: Tensor, edge_index: Tensor) -> list[Tensor]:
    energy, slope = run(x.clone(), edge_index)
    return [energy.detach(), slope.detach(), *torch.autograd.grad(energy + slope.sin().sum(), list(model.parameters()))]


@pytest.mark.parametrize("training", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_scripted_code_is_traced_with_gradients_of_gradients(training: bool) -> None:
    torch.manual_seed(0)
    model = Potential(scripted(Scripted().double())).train(training)
    run = graphweave.compile(model)
    for rows, edges in ((7, 20), (5, 11)):
        given = features(rows, 3, F64), random_graph(rows, rows, edges)
        for one, other in zip(_step(run, model, *given), _step(model, model, *given), strict=True):
            assert relative_error(one, other) < 1e-10
    counted = graphweave.counters()
    assert (counted["compilations"], counted["graph_breaks"], counted["eager_fallbacks"]) == (1, 0, 0)


def test_parameters_and_buffers_are_those_of_the_moment() -> None:
    model = scripted(nn.BatchNorm1d(3).double())
    run = graphweave.compile(lambda x: model(x * 2) + 1)
    for training in (True, False):
        model.train(training)
        x = features(6, 3, F64)
        mean = model.running_mean.clone()
        got = run(x)
        moved = model.running_mean.clone()
        assert torch.equal(moved, mean) is not training
        model.running_mean.copy_(mean)
        assert relative_error(got.detach(), (model(x * 2) + 1).detach()) < 1e-12
        assert relative_error(model.running_mean, moved) < 1e-12
        with torch.no_grad():
            model.weight.mul_(3)
        assert relative_error(run(x).detach(), (model(x * 2) + 1).detach()) < 1e-12


class Summed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sin()


def test_only_scripted_methods() -> None:
    with pytest.raises(NotPython, match="backward is no scripted method"):
        python_function(scripted(Summed()), "backward")
