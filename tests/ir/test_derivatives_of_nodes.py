"""Derivatives of every kind of message node, of each other's, to third order: random compositions against PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import jvp
from torch.nn import functional as F

import graphweave
from bench.check import relative_error
from tests.support import features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

Layer = Callable[[Tensor, Tensor], Tensor]
ROWS, WIDTH = 6, 4
SRC, DST = random_graph(ROWS, ROWS, 15)
KINDS = torch.arange(ROWS) % 3
TOLERANCE = 1e-9
"""Sums in another order, differentiated three times; a wrong derivative is off by far more."""


def _push(messages: Tensor) -> Tensor:
    return messages.new_zeros(ROWS, *messages.shape[1:]).index_add(0, DST, messages)


def _reduced(messages: Tensor, by: str) -> Tensor:
    index = DST[:, None].expand_as(messages)
    return messages.new_ones(ROWS, WIDTH).scatter_reduce(0, index, messages, by, include_self=by == "prod")


def _softmax(x: Tensor, w: Tensor) -> Tensor:
    scores = (x[SRC] @ w).sum(-1) + x[DST].sum(-1)
    top = scores.new_full((ROWS,), -torch.inf).scatter_reduce(0, DST, scores, "amax")
    weights = (scores - top[DST]).exp()
    total = weights.new_zeros(ROWS).index_add(0, DST, weights)
    return _push((weights / total[DST])[:, None] * x[SRC])


def _typed(x: Tensor, w: Tensor) -> Tensor:
    matrices = torch.stack([w, w.t(), w * w])
    return torch.bmm(x[:, None], matrices[KINDS]).squeeze(1)


def _of_segments(x: Tensor, w: Tensor) -> Tensor:
    total = x.new_zeros(3, WIDTH).index_add(0, KINDS, (x @ w).tanh())
    return x * total[KINDS]


NODES: dict[str, Layer] = {
    "pull and push": lambda x, w: _push(x[SRC] * x[DST]),
    "product on edges": lambda x, w: _push((x[SRC] - x[DST]) @ w),
    "product of rows": lambda x, w: x @ w + 0.1,
    "total": lambda x, w: x * (x.t() @ x).sum(0),
    "maximum with ties": lambda x, w: _reduced((x[SRC] @ w).round(decimals=1) + x[SRC], "amax"),
    "minimum": lambda x, w: _reduced(x[SRC] * x[DST], "amin"),
    "mean": lambda x, w: _reduced(x[SRC].sin(), "mean"),
    "product over edges": lambda x, w: _reduced(1 + 0.1 * (x[SRC] @ w), "prod"),
    "softmax": _softmax,
    "typed product": _typed,
    "segments": _of_segments,
    "features reduced": lambda x, w: x * (x * x).sum(-1, keepdim=True) + x.amax(-1, keepdim=True),
    "parts": lambda x, w: torch.cat([x[:, 1:], F.pad(x[:, :1], (0, 0)) * x[:, 2:3]], dim=-1),
    "permuted": lambda x, w: (x.view(ROWS, 2, 2).transpose(1, 2) * x.view(ROWS, 2, 2)).reshape(ROWS, WIDTH),
    "elementary": lambda x, w: F.silu(x) + (x * x + 1).sqrt() + torch.where(x > 0, x, x.exp()),
}


def _composed(names: tuple[str, ...], x: Tensor, w: Tensor) -> Tensor:
    for name in names:
        x = 0.5 * torch.tanh(NODES[name](x, w)) + x  # keeps numbers near 1, so that no term hides another
    return x


def _vjps(layer: Layer, x: Tensor, w: Tensor) -> list[Tensor]:
    """Gradients by both arguments, of the first, second and third order."""
    x, w, found = x.clone().requires_grad_(), w.clone().requires_grad_(), list[Tensor]()
    out = layer(x, w).sin().sum()
    for order in range(3):
        grads = torch.autograd.grad(out, (x, w), create_graph=order < 2, materialize_grads=True)
        found += [g.detach() for g in grads]
        out = (grads[0] * x.cos()).sum() + grads[1].pow(2).sum()
    return found


def _jvps(layer: Layer, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """The tangent of the result, of its tangent, and of that one."""
    v, found = features(ROWS, WIDTH, torch.float64, seed=7), list[Tensor]()

    def along(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: jvp(f, (x,), (v,))[1]

    function: Callable[[Tensor], Tensor] = lambda x: layer(x, w)  # noqa: E731
    for _ in range(3):
        function = along(function)
        found.append(function(x))
    return tuple(found)


def _check(names: tuple[str, ...]) -> None:
    """Gradients are taken outside of the compiled function, tangents inside of it."""
    torch._dynamo.reset()
    layer = partial(_composed, names)
    compiled: Layer = graphweave.compile(lambda x, w: layer(x, w))
    x, w = features(ROWS, WIDTH, torch.float64, seed=1), features(WIDTH, WIDTH, torch.float64, seed=2) * 0.3
    _same(_vjps(compiled, x, w), _vjps(layer, x, w), f"gradient of {' then '.join(names)}")
    tangents = graphweave.compile(lambda x, w: _jvps(layer, x, w))
    _same(tangents(x, w), _jvps(layer, x, w), f"tangent of {' then '.join(names)}")


def _same(found: Iterable[Tensor], wanted: Iterable[Tensor], what: str) -> None:
    for k, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert relative_error(one, other) < TOLERANCE, f"{what}: number {k}"


def test_all_orders() -> None:
    _check(("softmax",))


@pytest.mark.slow
@pytest.mark.parametrize("name", NODES)
def test_each_node(name: str) -> None:
    _check((name,))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(sorted(NODES)), min_size=2, max_size=3).map(tuple))
def test_compositions(names: tuple[str, ...]) -> None:
    _check(names)
