"""Python's `random` in a model: numbers that differ from call to call, and are Python's floats and integers."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import convert_frame

import graphweave
from bench.check import relative_error
from tests.support import features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

DOORS: dict[str, Callable[[Any], Any]] = {
    "compile": graphweave.compile,
    "plain": lambda f: torch.compile(f, backend="graphweave", dynamic=True),
}
both_doors = pytest.mark.parametrize("door", DOORS)


def _messages(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, dst, x[src])


def scaled(x: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, ...]:
    return (_messages(x * random.uniform(0.5, 1.5), src, dst) + random.uniform(-1, 1),)


def computed(x: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, ...]:
    rate = random.uniform(0.5, 1.5)
    return _messages(x, src, dst) * (rate * 2 + 1) ** 2, torch.where(x > 0, rate, x * rate), x.clamp(max=rate)


def of_no_dims(x: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, ...]:
    """Results of no dims keep the dtype of their operands: a Python float does not decide it."""
    rate = random.uniform(0.5, 1.5)
    total = _messages(x, src, dst).sum() * rate
    return total, total + rate, torch.stack([total, x[0, 0] * rate]), x.new_full((), rate)


def several(x: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, ...]:
    own = random.Random(5)  # a product of its float and an integer is one of Python, in float64
    return (_messages(x, src, dst) * random.gauss(1, 0.1) + own.uniform(0, 1) * random.randint(2, 5) - random.random(),)


def with_a_branch(x: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, ...]:
    if random.uniform(0, 1) < 0.5:
        return (_messages(x, src, dst),)
    return (_messages(x, dst, src) * random.uniform(1, 2),)


CASES = [
    *((function, torch.float64) for function in (scaled, computed, several, with_a_branch)),
    (of_no_dims, torch.float32),
]


def _results(function: Callable[..., Any], x: Tensor, graph: Any, seed: int) -> list[Tensor]:
    x = x.clone().requires_grad_()
    random.seed(seed)
    out = function(x, *graph)
    (grad,) = torch.autograd.grad(sum(r.sum() for r in out if r.requires_grad), x)
    return [*out, grad]


@pytest.mark.parametrize(("function", "dtype"), CASES, ids=lambda v: getattr(v, "__name__", str(v)))
@both_doors
def test_numbers_of_pythons_random(door: str, function: Callable[..., Any], dtype: torch.dtype) -> None:
    compiled, x, graph = DOORS[door](function), features(6, 3, dtype), random_graph(6, 6, 20)
    for seed in range(4):
        got, want = _results(compiled, x, graph, seed), _results(function, x, graph, seed)
        for one, other in zip(got, want, strict=True):
            assert one.dtype == other.dtype
            assert relative_error(one, other) < (1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("number", [np.float32(0.3), np.float64(0.3)], ids=lambda n: n.dtype.name)
@both_doors
def test_numbers_of_numpy(door: str, number: Any) -> None:
    def fn(x: Tensor, src: Tensor, dst: Tensor, k: Any) -> Tensor:
        return _messages(x, src, dst) * k

    compiled, x, graph = DOORS[door](fn), features(6, 3, torch.float64), random_graph(6, 6, 20)
    for k in (number, number * 2):
        assert relative_error(compiled(x, *graph, k), fn(x, *graph, k)) < 1e-12


def test_a_later_compilation_traces_floats_that_have_not_changed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluation after training: PyTorch would make symbols of a batch norm's floats, and then trace again without."""
    traces = []
    trace = convert_frame.trace_frame

    @wraps(trace)
    def counted(*args: Any, **kwargs: Any) -> Any:
        traces.append(1)
        return trace(*args, **kwargs)

    monkeypatch.setattr(convert_frame, "trace_frame", counted)
    index = torch.tensor([0, 1, 1, 3])
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def f(x: Tensor) -> Tensor:
        return model(torch.zeros_like(x).index_add(0, index, x[index]))

    compiled = graphweave.compile(f)
    compiled(torch.randn(5, 4))
    model.eval()
    x = torch.randn(6, 4)
    torch.testing.assert_close(compiled(x), f(x))
    assert len(traces) == 2


def test_a_float_that_changes_again_is_a_symbol_from_the_second_value_on() -> None:
    index = torch.tensor([0, 1, 1, 3])

    def f(x: Tensor, slope: float, scale: float) -> Tensor:
        return torch.zeros_like(x).index_add(0, index, x[index] * slope + scale)

    compiled = graphweave.compile(f)
    x = torch.randn(5, 4, dtype=torch.float64)
    before = graphweave.counters()["compilations"]
    for slope, scale in ((0.5, 2.0), (0.25, 2.0), (0.125, 2.0), (0.5, 2.0), (0.75, 3.0), (0.3, 5.0)):
        torch.testing.assert_close(compiled(x, slope, scale), f(x, slope, scale))
    assert graphweave.counters()["compilations"] - before == 3  # all fixed, the slope a symbol, both
