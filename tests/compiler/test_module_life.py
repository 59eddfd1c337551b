"""Changes to a module after its first compiled call count at the next; interrupted compilations leave no trace."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.utils.parametrize
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_all

import graphweave
from bench.check import relative_error
from graphweave.frontends.dynamo import graph_compilation
from tests.support import by_default, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.scale = 2.0

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        h = torch.zeros_like(x).index_add(0, index[1], torch.tanh(self.a(x))[index[0]])
        return nn.functional.dropout(self.b(h), 0.9, self.training and self.scale < 0) * self.scale


class _Doubled(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w * 2


def _forward(m: _Net, seen: list[str]) -> None:
    m.a.register_forward_hook(lambda module, args, out: (seen.append("forward"), out * 2)[1])


def _before(m: _Net, seen: list[str]) -> None:
    m.a.register_forward_pre_hook(lambda module, args: (seen.append("before"), (args[0] * 2,))[1])


def _backward(m: _Net, seen: list[str]) -> None:
    m.a.register_full_backward_hook(lambda module, grads, given: (seen.append("backward"), (grads[0] * 3,))[1])


def _before_backward(m: _Net, seen: list[str]) -> None:
    m.b.register_full_backward_pre_hook(lambda module, given: (seen.append("before backward"), (given[0] * 3,))[1])


def _whole(m: _Net, seen: list[str]) -> None:
    m.register_forward_hook(lambda module, args, out: (seen.append(type(module).__name__), out * 2)[1])


def _whole_backward(m: _Net, seen: list[str]) -> None:
    m.register_full_backward_hook(lambda module, grads, given: (seen.append("whole"), (grads[0] * 3, None))[1])


def _normed(m: _Net, seen: list[str]) -> None:
    nn.utils.parametrizations.weight_norm(m.a)


def _parametrised(m: _Net, seen: list[str]) -> None:
    nn.utils.parametrize.register_parametrization(m.a, "weight", _Doubled())


def _new_weight(m: _Net, seen: list[str]) -> None:
    m.a.weight = nn.Parameter(torch.linspace(-1, 1, 9, dtype=torch.float64).view(3, 3))


def _new_module(m: _Net, seen: list[str]) -> None:
    m.b = nn.Sequential(m.b, nn.ReLU())  # type: ignore[assignment]


def _frozen(m: _Net, seen: list[str]) -> None:
    m.a.weight.requires_grad_(False)


def _attribute(m: _Net, seen: list[str]) -> None:
    m.scale = 5.0


def _method(m: _Net, seen: list[str]) -> None:
    m.a.forward = lambda x: x * 3  # type: ignore[method-assign]


CHANGES: tuple[Callable[[_Net, list[str]], None], ...] = (
    _forward, _before, _backward, _before_backward, _whole, _whole_backward, _normed, _parametrised, _new_weight,
    _new_module, _frozen, _attribute, _method,
)  # fmt: skip


def _step(call: Callable[..., Tensor], m: nn.Module) -> list[Tensor | None]:
    x = features(6, 3, torch.float64).requires_grad_()
    m.zero_grad()
    out = call(x, random_graph(6, 6, 20))
    (out * torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    return [out.detach(), x.grad, *(p.grad for p in m.parameters())]


@pytest.mark.parametrize(
    "change", by_default(CHANGES, _forward, _backward, _whole, _normed, _frozen), ids=lambda c: c.__name__.strip("_")
)
def test_changed_after_the_first_call(change: Callable[[_Net, list[str]], None]) -> None:
    torch.manual_seed(0)
    model = _Net().double()
    compiled = graphweave.compile(model)
    _step(compiled, model)
    seen: list[str] = []
    change(model, seen)
    got, heard = _step(compiled, model), list(seen)
    seen.clear()
    want = _step(model, model)
    assert heard == seen
    assert graphweave.counters()["eager_fallbacks"] == 0
    for one, other in zip(got, want, strict=True):
        assert (one is None) == (other is None)
        assert one is None or other is None or relative_error(one, other) < 1e-12


def test_hooks_on_all_modules() -> None:
    torch.manual_seed(0)
    model = _Net().double()
    compiled = graphweave.compile(model)
    _step(compiled, model)
    handle = hooks_of_all.register_module_forward_hook(
        lambda m, args, out: out * 2 if isinstance(m, nn.Linear) else None
    )
    try:
        want = _step(model, model)
        with pytest.warns(UserWarning, match="_Net runs eagerly while there are hooks on all modules"):
            got = _step(compiled, model)
    finally:
        handle.remove()
    assert graphweave.counters()["eager_fallbacks"] == 1
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True) if a is not None and b is not None)
    launches = graphweave.counters()["kernel_launches"]
    _step(compiled, model)
    assert graphweave.counters()["kernel_launches"] > launches


class _TimeOutError(Exception):
    pass


class _Limit:
    def __call__(self, *_: Any) -> None:
        raise _TimeOutError("over time")

    method = __call__


@contextmanager
def _handler(handler: Callable[..., None]) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def _limit(*_: Any) -> None:
    _Limit()()


def _nest(x: Tensor, index: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, index[1], torch.tanh(x)[index[0]])


HANDLERS = {"function": _limit, "object": _Limit(), "method": _Limit().method, "partial": functools.partial(_limit, 1)}


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
@pytest.mark.parametrize("door", ["compile", "plain"])
def test_a_signal_in_the_middle_of_a_compilation(
    door: str, handler: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exception of the user's handler arrives as it is; the next call compiles."""
    arguments = features(6, 3, torch.float64), random_graph(6, 6, 20)
    compiled = graphweave.compile(_nest) if door == "compile" else torch.compile(_nest, backend="graphweave")

    def interrupted(*_: Any, **__: Any) -> None:
        signal.raise_signal(signal.SIGUSR1)

    with _handler(handler), monkeypatch.context() as patch:
        patch.setattr(graph_compilation, "build", interrupted)
        with pytest.raises(_TimeOutError, match="over time"):
            compiled(*arguments)
    assert graphweave.counters()["eager_fallbacks"] == 0
    assert relative_error(compiled(*arguments), _nest(*arguments)) < 1e-12
    assert graphweave.counters()["kernel_launches"] > 0


def test_a_signal_while_pytorch_traces() -> None:
    """PyTorch would wrap what the handler raises in an error of its own."""

    def interrupted(x: Tensor, index: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            _raise()
        return _nest(x, index)

    compiled = graphweave.compile(interrupted)
    with _handler(_limit), pytest.raises(_TimeOutError):
        compiled(features(6, 3), random_graph(6, 6, 20))


@torch._dynamo.assume_constant_result
def _raise() -> int:
    signal.raise_signal(signal.SIGUSR1)
    return 0


def test_any_other_failure_is_still_a_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise _TimeOutError("not from a handler")

    with _handler(_limit), monkeypatch.context() as patch, pytest.warns(UserWarning, match="could not be compiled"):
        patch.setattr(graph_compilation, "build", broken)
        graphweave.compile(_nest)(features(6, 3), random_graph(6, 6, 20))
    assert graphweave.counters()["eager_fallbacks"] == 1
