"""The user's code runs once in a call, whatever happens to a trace, and what it does is what eager mode does."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweave
from bench.check import relative_error
from tests.support import features, random_graph

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:graphweave. .* runs eagerly:UserWarning"),
    pytest.mark.filterwarnings("ignore:Dynamo (detected a call|does not know):UserWarning"),
]

_library = torch.library.Library("untraceable", "FRAGMENT")
_library.define("opaque(Tensor x) -> Tensor")  # no fake implementation
_library.impl("opaque", lambda x: x * 2, "CPU")
_library.define("read(Tensor x) -> Tensor")  # reads memory in a trace, as TorchScript's operators do
_library.impl("read", lambda x: x * float(x.detach().numpy().max()), "CompositeImplicitAutograd")


class Seen:
    """What a function has done besides its result."""

    def __init__(self) -> None:
        self.calls, self.ends = 0, 0
        self.list: list[Any] = []


def _layer(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, dst, x[src])


def _read(h: Tensor) -> Tensor:
    return torch.ops.untraceable.read(h) + h


def in_the_function(x: Tensor, src: Tensor, dst: Tensor, seen: Seen) -> Tensor:
    seen.calls += 1
    x.add_(1)
    h = torch.ops.untraceable.read(_layer(x, src, dst))
    seen.ends += 1
    return h.relu() + 1


def without_a_fake(x: Tensor, src: Tensor, dst: Tensor, seen: Seen) -> Tensor:
    seen.calls += 1
    x.add_(1)
    h = torch.ops.untraceable.opaque(_layer(x, src, dst))
    seen.ends += 1
    return h.relu() + 1


def behind_a_break(x: Tensor, src: Tensor, dst: Tensor, seen: Seen) -> Tensor:
    seen.calls += 1
    x.add_(1)
    h = _layer(x, src, dst)
    torch._dynamo.graph_break()
    seen.ends += 1
    return torch.ops.untraceable.read(h) + _layer(h, dst, src)


def in_a_function_behind_a_break(x: Tensor, src: Tensor, dst: Tensor, seen: Seen) -> Tensor:
    seen.calls += 1
    h = _layer(x, src, dst)
    for _ in range(3):
        torch._dynamo.graph_break()
        seen.list.append(len(seen.list))
        h = _read(h)
        x += 1
    seen.ends += 1
    return h + torch.rand(h.shape, dtype=h.dtype)


def behind_two_breaks(x: Tensor, src: Tensor, dst: Tensor, seen: Seen) -> Tensor:
    seen.calls += 1
    h = torch.ops.untraceable.opaque(_layer(x, src, dst))
    seen.list.append("one")
    h = torch.ops.untraceable.read(h)
    x.mul_(2)
    torch._dynamo.graph_break()
    seen.ends += 1
    return torch.ops.untraceable.read(_layer(h, src, dst))


def with_gradients_inside(x: Tensor, src: Tensor, dst: Tensor, seen: Seen) -> Tensor:
    seen.calls += 1
    y = x.detach().requires_grad_()
    (force,) = torch.autograd.grad(torch.ops.untraceable.read(_layer(y, src, dst)).pow(2).sum(), y)
    x.add_(1)
    seen.ends += 1
    return force


FUNCTIONS = [
    in_the_function, without_a_fake, behind_a_break, in_a_function_behind_a_break, behind_two_breaks,
    with_gradients_inside,
]  # fmt: skip


def _outcome(function: Callable[..., Any], rows: int) -> tuple[Any, ...]:
    """What a call returns and all that it leaves behind."""
    seen = Seen()
    x = features(rows, 3, torch.float64)
    torch.manual_seed(3)
    out = function(x, *random_graph(rows, rows, 4 * rows), seen)
    return out, x, torch.rand(3, dtype=torch.float64), (seen.calls, seen.ends, seen.list)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_trace_that_fails_repeats_nothing(function: Callable[..., Any]) -> None:
    compiled = graphweave.compile(function)
    for rows in (6, 6, 9):
        *got, done = _outcome(compiled, rows)
        *want, expected = _outcome(function, rows)
        assert done == expected
        assert all(relative_error(one, other) < 1e-12 for one, other in zip(got, want, strict=True))


@pytest.mark.parametrize("function", [in_the_function, behind_a_break])
def test_torch_compile_may_raise_but_repeats_nothing(function: Callable[..., Any]) -> None:
    compiled = torch.compile(function, backend="graphweave", dynamic=True)
    for rows in (6,):
        seen, x = Seen(), features(rows, 3, torch.float64)
        with contextlib.suppress(torch._dynamo.exc.TorchRuntimeError):
            compiled(x, *random_graph(rows, rows, 4 * rows), seen)
        assert seen.calls <= 1
        assert seen.ends <= 1


def test_what_cannot_be_traced_is_counted_and_named_once() -> None:
    def behind_a_line(x: Tensor, src: Tensor, dst: Tensor, seen: Seen) -> Tensor:
        h = _layer(x, src, dst)
        torch._dynamo.graph_break()
        return torch.ops.untraceable.read(h) + _layer(h, dst, src)

    compiled = graphweave.compile(behind_a_line)
    with pytest.warns(UserWarning, match=r"behind_a_line, behind line \d+ \(.*test_runs_once.py:\d+\) runs eagerly"):
        _outcome(compiled, 6)
    assert graphweave.counters()["eager_fallbacks"] == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _outcome(compiled, 6)
        before = graphweave.counters()
        _outcome(compiled, 6)
    assert graphweave.counters()["eager_fallbacks"] == 1
    assert graphweave.counters()["compilations"] == before["compilations"]


def test_operands_that_only_a_trace_refuses() -> None:
    """The first call runs eagerly, as eager mode might refuse them too; later ones are compiled frame by frame."""

    def whole(x: Tensor, src: Tensor, dst: Tensor, seen: Seen) -> Tensor:
        seen.calls += 1
        h = _layer(x, src, dst)
        return torch.ops.untraceable.read(h) + _layer(h, dst, src)

    compiled = graphweave.compile(whole)
    _outcome(compiled, 6)
    assert graphweave.counters()["eager_fallbacks"] == 1
    assert graphweave.counters()["compilations"] == 0
    *got, done = _outcome(compiled, 6)
    *want, expected = _outcome(whole, 6)
    assert done == expected
    assert all(relative_error(one, other) < 1e-12 for one, other in zip(got, want, strict=True))
    assert graphweave.counters()["compilations"] >= 1
    explanation = graphweave.explain(whole, features(6, 3), *random_graph(6, 6, 20), Seen())
    assert any("whole (" in why and "could not be traced" in why for why in explanation.eager)
    assert explanation.graphs


def test_an_error_of_the_users_comes_once_and_leaves_the_function_compiled() -> None:
    """Eager mode refuses the call too, so the next one is traced as if it had not been."""
    calls = []

    def product(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        h = _layer(x, src, dst)
        torch._dynamo.graph_break()
        calls.append(len(calls))
        return h @ w

    compiled = graphweave.compile(product)
    x, graph = features(6, 3, torch.float64), random_graph(6, 6, 20)
    for _ in range(2):
        calls.clear()
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            compiled(x, features(4, 4, torch.float64), *graph)
        assert calls == [0]
    w = features(3, 4, torch.float64)
    assert relative_error(compiled(x, w, *graph), product(x, w, *graph)) < 1e-12
    assert graphweave.counters()["eager_fallbacks"] == 0


def test_an_error_in_the_first_frame_leaves_the_function_compiled() -> None:
    def product(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return _layer(x, src, dst) @ w

    compiled = graphweave.compile(product)
    x, graph = features(6, 3, torch.float64), random_graph(6, 6, 20)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        compiled(x, features(4, 4, torch.float64), *graph)
    w = features(3, 4, torch.float64)
    assert relative_error(compiled(x, w, *graph), product(x, w, *graph)) < 1e-12
    assert graphweave.counters()["eager_fallbacks"] == 0
    assert graphweave.counters()["compilations"] == 1


class Forces(nn.Module):
    """A potential that returns its forces, and counts its calls (as MACE's models do the former)."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(features(3, 3, torch.float64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.calls = 0

    def forward(self, x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        self.calls += 1
        self.steps += 1
        x.requires_grad_(True)
        energy = (torch.ops.untraceable.read(_layer(x, src, dst)) @ self.w).pow(2).sum()
        return torch.autograd.grad(energy, x, create_graph=self.training)[0]


def test_forces_inside_a_model_that_cannot_be_traced() -> None:
    """Such a forward fails under `no_grad`, under which nothing may be tried."""
    graph = random_graph(6, 6, 20)
    results = []
    for door in (lambda m: m, graphweave.compile):
        torch.manual_seed(0)
        model = Forces()
        force = door(model)(features(6, 3, torch.float64), *graph)
        force.pow(2).sum().backward()
        results.append((force.detach(), model.w.grad))
        assert (model.calls, int(model.steps)) == (1, 1)
    for one, other in zip(*results, strict=True):
        assert relative_error(one, other) < 1e-12


def test_errors_of_other_backends_are_left_alone() -> None:
    def refuses(module: Any, examples: Any) -> Any:
        raise ValueError("this backend takes nothing")

    inner = torch.compile(_layer, backend=refuses)
    calls = []

    def outer(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        calls.append(1)
        torch._dynamo.graph_break()
        return torch.compiler.disable(lambda *given: inner(*given))(x, src, dst)

    with pytest.raises(Exception, match="this backend takes nothing"):
        graphweave.compile(outer)(features(6, 3), *random_graph(6, 6, 20))
    assert calls == [1]


@pytest.mark.parametrize(
    "door",
    [graphweave.compile, lambda f: torch.compile(f, backend="graphweave", dynamic=True)],
    ids=["compile", "plain"],
)
def test_an_error_of_the_users_own_costs_no_later_call_its_kernels(door: Callable[..., Any]) -> None:
    """PyTorch would run a function as Python for ever once an exception has ended its trace."""

    def layer(x: Tensor, edge_index: Tensor) -> Tensor:
        if edge_index.size(0) != 2:
            raise ValueError(f"edge_index must be [2, E] (got {tuple(edge_index.shape)})")
        return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]].tanh())

    compiled, x, index = door(layer), torch.randn(5, 3, dtype=torch.float64), torch.randint(5, (2, 9))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"edge_index must be \[2, E\]"):
            compiled(x, torch.randint(5, (3, 9)))
        torch.testing.assert_close(compiled(x, index), layer(x, index))
    counts = graphweave.counters()
    assert (counts["compilations"], counts["kernel_launches"], counts["eager_fallbacks"]) == (1, 2, 0)
