"""Comparing functions with eager mode through both doors: values, strides, and every gradient, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch._dynamo
from torch import Tensor

import graphweave

DOORS: Mapping[str, Callable[..., Any]] = {
    "graphweave.compile": lambda f, **options: graphweave.compile(f, options=options),
    "torch.compile": lambda f, **options: torch.compile(f, backend="graphweave", dynamic=True, options=options),
}


def compiled(fn: Callable[..., Any], door: str, **options: Any) -> Callable[..., Any]:
    """`fn` behind a door, with no code of other functions left."""
    torch._dynamo.reset()
    made: Callable[..., Any] = DOORS[door](fn, **options)
    return made


def compare(fn: Callable[..., Any], inputs: Iterable[Sequence[Tensor]], door: str, **options: Any) -> None:
    """Results, their strides and the gradients of all floats among `inputs` are eager's, and nothing ran eagerly."""
    made = compiled(fn, door, **options)
    before = graphweave.counters()["eager_fallbacks"]
    for args in inputs:
        (got, got_grads), (want, want_grads) = (_step(f, args) for f in (made, fn))
        assert [t.stride() for t in got] == [t.stride() for t in want]
        for g, w in zip((*got, *got_grads), (*want, *want_grads), strict=True):
            torch.testing.assert_close(g, w, rtol=1e-10, atol=1e-12)  # float64: sums in another order
    assert graphweave.counters()["eager_fallbacks"] == before


def results_of(out: Any) -> tuple[Tensor, ...]:
    return tuple(out) if isinstance(out, tuple | list) else (out,)


def _step(fn: Callable[..., Any], args: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    own = [a.clone().requires_grad_(a.is_floating_point()) for a in args]
    out = results_of(fn(*own))
    noise = torch.Generator().manual_seed(3)
    total = sum((t * torch.randn(t.shape, generator=noise, dtype=t.dtype)).sum() for t in out)
    assert isinstance(total, Tensor)
    total.backward()
    grads = [torch.zeros_like(a) if a.grad is None else a.grad for a in own if a.requires_grad]
    return tuple(t.detach() for t in out), grads
