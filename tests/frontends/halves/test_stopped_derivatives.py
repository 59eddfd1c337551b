"""Gradients of gradients stop where the user's function stops them, and go on where autograd keeps its own results."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import graphweave
from bench.check import relative_error
from graphweave.core.errors import DerivativeError
from graphweave.frontends.halves import stops
from tests.support import by_default, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

Rows = Callable[[Tensor, Tensor], Tensor]
"""A function of two tensors of equal shape, of which messages are made."""


def _slope_of(fn: Callable[[Tensor], Tensor], **options: bool) -> Rows:
    """The gradient of the sum of `fn(x * w)` by x, taken inside."""

    def rows(x: Tensor, w: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(fn(x * w).sum(), x, retain_graph=True, **options)
        return slope * (x * w).sin()

    return rows


INNER: dict[str, Callable[[Tensor], Tensor]] = {
    "sin": torch.sin,
    "silu": nn.functional.silu,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "sigmoid": torch.sigmoid,
    "sqrt": lambda t: (t * t + 1).sqrt(),
    "norm": lambda t: torch.linalg.vector_norm(t + 2, dim=-1),
    "softmax": lambda t: t.softmax(-1).square(),
    "logsumexp": lambda t: t.logsumexp(-1),
    "group norm": lambda t: nn.functional.group_norm(t**3, 2).exp(),
}
"""Functions whose gradient is taken inside. Autograd keeps the results of most of them, behind a detach."""


def _detached(x: Tensor, w: Tensor) -> Tensor:
    top = torch.tanh(x * w)
    return top * top.detach().sin() * x


def _data(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x * w) * (x * w).data.exp()


def _without_grad(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        scale = (x * w).exp()
        largest, _ = scale.max(-1, keepdim=True)
    return torch.tanh(x * w) * scale / largest


def _without_grad_in_a_checkpoint(x: Tensor, w: Tensor) -> Tensor:
    result: Tensor = checkpoint(_without_grad, x, w, use_reentrant=False)
    return result


def _written_without_grad(x: Tensor, w: Tensor) -> Tensor:
    buffer = torch.zeros_like(x)
    with torch.no_grad():
        buffer.add_((x * w).exp())
    return x * buffer


def _recorded_later(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        scale = (x * w).exp()
    scale += (x * w).sin()
    return x * scale


def _written_before(x: Tensor, w: Tensor) -> Tensor:
    rows = torch.zeros_like(x)
    rows.add_(x * w)
    with torch.no_grad():
        scale = rows.exp()
    return x * scale


def _leaf(x: Tensor, w: Tensor) -> Tensor:
    inner = (x * w).detach().requires_grad_()
    (slope,) = torch.autograd.grad((inner.sin() * x).sum(), inner, create_graph=True)
    return slope * w.sin()


def _detached_inside(x: Tensor, w: Tensor) -> Tensor:
    top = torch.exp(x * w)
    (slope,) = torch.autograd.grad((top * top.detach()).sum(), x, create_graph=True)
    return slope * top.sin()


def _detached_tangent(x: Tensor, w: Tensor) -> Tensor:
    """Nothing but the gradient reads the detached tensor."""
    top = torch.tanh(x * w)
    (slope,) = torch.autograd.grad(top, x, top.detach(), create_graph=True)
    return slope * w.sin()


def _slope_of_a_slope(x: Tensor, w: Tensor) -> Tensor:
    (slope,) = torch.autograd.grad(torch.tanh(x * w).sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.exp().sum(), x, create_graph=True)
    return bend * w


def _functional(x: Tensor, w: Tensor) -> Tensor:
    def energy(a: Tensor) -> Tensor:
        with torch.no_grad():
            scale = (a * w).exp()
        return (torch.tanh(a * w).exp() * scale * (a * w).detach().sin()).sum()

    slope: Tensor = torch.func.grad(energy)(x)
    return slope * x.sin()


STOPS: dict[str, Rows] = {
    "a detach": _detached,
    "data": _data,
    "no_grad": _without_grad,
    "no_grad in a checkpoint": _without_grad_in_a_checkpoint,
    "a write under no_grad": _written_without_grad,
    "a write to what was computed under no_grad": _recorded_later,
    "a value of a tensor that was written": _written_before,
    "a new leaf": _leaf,
    "a gradient without a graph": _slope_of(torch.exp),
    "a detach in what an inner gradient goes through": _detached_inside,
    "a detached tangent": _detached_tangent,
    "a gradient of a gradient": _slope_of_a_slope,
    "a gradient of torch.func": _functional,
}


def _messages(rows: Rows) -> Callable[[Tensor, Tensor], Tensor]:
    src, dst = random_graph(5, 5, 12)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, dst, rows(x, w)[src])

    return fn


def _derivatives(fn: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
    """The first three derivatives of a number, by both arguments."""
    given = [features(5, 4, torch.float64, seed=seed).requires_grad_() for seed in (0, 1)]
    found, number = list[Tensor](), fn(*given).square().sum()
    for _ in range(3):
        slopes = torch.autograd.grad(number, given, create_graph=True, allow_unused=True, materialize_grads=True)
        found += slopes
        number = sum((slope.square().sum() for slope in slopes), torch.zeros(()))
    return found


def _check(compile: Callable[[Rows], Rows], rows: Rows) -> None:
    fn = _messages(rows)
    try:
        found = _derivatives(compile(fn))
    except DerivativeError as error:
        if stops._TELLS_GRADIENTS or "takes a gradient itself" not in str(error):
            raise
        pytest.skip("PyTorch 2.11 does not tell which operators compute an inner gradient")
    for got, want in zip(found, _derivatives(fn), strict=True):
        assert relative_error(got, want) < 1e-11  # several sums, one after the other
    assert graphweave.counters()["eager_fallbacks"] == 0


@pytest.mark.parametrize("name", by_default(INNER, "tanh", "norm", "group norm"))
def test_derivatives_through_a_gradient_that_is_taken_inside(name: str) -> None:
    _check(graphweave.compile, _slope_of(INNER[name], create_graph=True))


@pytest.mark.parametrize("name", STOPS)
def test_where_a_function_stops_derivatives(name: str) -> None:
    _check(graphweave.compile, STOPS[name])


@pytest.mark.parametrize(
    "rows", [_slope_of(torch.tanh, create_graph=True), _without_grad, _detached_tangent],
    ids=["inner gradient", "no_grad", "detached tangent"],
)  # fmt: skip
def test_the_same_through_the_backend(rows: Rows) -> None:
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        _check(lambda fn: torch.compile(fn, backend="graphweave"), rows)


@pytest.mark.skipif(not stops._TELLS_GRADIENTS, reason="PyTorch 2.11 does not tell what computes an inner gradient")
def test_a_norm_of_layers_has_the_right_third_derivatives() -> None:
    """Eager mode's own are wrong: it takes the mean and the deviation for constants."""

    def force(x: Tensor) -> Tensor:
        energy = nn.functional.layer_norm(x**3, (4,)).exp().sum()
        (slope,) = torch.autograd.grad(energy, x, create_graph=True)
        return slope

    compiled = graphweave.compile(force)

    def bend(x: Tensor) -> Tensor:
        return torch.autograd.grad(compiled(x).sin().sum(), x, create_graph=True)[0]

    assert torch.autograd.gradcheck(bend, features(3, 4, torch.float64).requires_grad_())


class _Rounded(torch.autograd.Function):
    """Rounds, with the gradient of the identity."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return grad


def _rounded(x: Tensor, w: Tensor) -> Tensor:
    result: Tensor = _Rounded.apply(3 * x * w)
    return result**3


def _written_unseen(x: Tensor, w: Tensor) -> Tensor:
    rows = x * w
    with torch.no_grad():
        rows.mul_(1.5)
    return rows.sin()


def _written_by_data(x: Tensor, w: Tensor) -> Tensor:
    rows = x * w
    rows.data.mul_(x.detach())
    return rows.sin()


def _added_to_a_slope(x: Tensor, w: Tensor) -> Tensor:
    (slope,) = torch.autograd.grad(torch.tanh(x * w).sum(), x)
    slope += x.sin()
    return slope * x


UNKNOWN: dict[str, tuple[Rows, str]] = {
    "a function with its own backward": (_rounded, "an autograd function .* of its own"),
    "a write under no_grad": (_written_unseen, "autograd does not record"),
    "a write to the data": (_written_by_data, "autograd does not record"),
    "a write to a gradient without a graph": (_added_to_a_slope, "autograd does not record"),
}


@pytest.mark.filterwarnings("ignore:.*torch.autograd.function.Function.* should not be instantiated")
@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_told_is_an_error(name: str) -> None:
    """First derivatives are those of eager mode; second ones are refused, not wrong."""
    rows, why = UNKNOWN[name]
    fn = _messages(rows)
    x, w = (features(5, 4, torch.float64, seed=seed).requires_grad_() for seed in (0, 1))
    got, want = (torch.autograd.grad(f(x, w).sum(), x, create_graph=True)[0] for f in (graphweave.compile(fn), fn))
    assert relative_error(got, want) < 1e-13
    with pytest.raises(DerivativeError, match=why):
        torch.autograd.grad(got.sum(), x)


@pytest.mark.parametrize("name", ["an inner gradient", "torch.func"])
def test_inner_gradients_whose_operators_are_unknown_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch 2.11 does not mark operators of gradients: a `detach` of autograd's own looks like one of the user's."""
    monkeypatch.setattr(stops, "_TELLS_GRADIENTS", False)
    fn = _messages(_functional if name == "torch.func" else _slope_of(torch.tanh, create_graph=True))
    x, w = (features(5, 4, torch.float64, seed=seed).requires_grad_() for seed in (0, 1))
    got, want = (torch.autograd.grad(f(x, w).sum(), x, create_graph=True)[0] for f in (graphweave.compile(fn), fn))
    assert relative_error(got, want) < 1e-13
    with pytest.raises(DerivativeError, match="it takes a gradient itself"):
        torch.autograd.grad(got.sum(), x)
