"""Gradients of gradients of a compiled function: against eager mode, and against differences of its own gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import gradgradcheck
from torch.utils import _pytree as pytree

from bench.check import relative_error

TOLERANCE = 1e-9
"""Relative error that is allowed against eager mode in float64; sums are differentiated twice."""

SCALE = 1e-3
"""Errors are relative to this share of the largest derivative at least: some are zero but for rounding."""


def assert_second_derivatives(
    compiled: Callable[..., Any],
    eager: Callable[..., Any],
    leaves: Sequence[Tensor],
    label: str = "",
    *,
    differences: bool = True,
) -> None:
    """The second derivatives equal those of `eager` and, with `differences`, the numerical derivatives of the compiled
    first ones."""
    assert_second_derivatives_of_eager_mode(compiled, eager, leaves, label)
    assert not differences or gradgradcheck(lambda *_: _outputs(compiled), tuple(leaves), fast_mode=True), label


def assert_second_derivatives_of_eager_mode(
    compiled: Callable[..., Any], eager: Callable[..., Any], leaves: Sequence[Tensor], label: str = ""
) -> None:
    """Both are called without arguments, and read `leaves` (float64, requiring gradients) where they stand."""
    names = [f"{i} of shape {tuple(leaf.shape)}" for i, leaf in enumerate(leaves)]
    got, want = _twice(compiled, leaves), _twice(eager, leaves)
    assert len(got) == len(want)
    largest = max((float(t.abs().max()) for t in want if t.numel()), default=0.0)
    for i, (one, other) in enumerate(zip(got, want, strict=True)):
        error = relative_error(one, other, largest * SCALE)
        name = names[i] if i < len(names) else f"cotangent {i - len(names)}"
        assert error < TOLERANCE, f"{label}: second derivative by {name}: relative error {error:.3g}"


def _outputs(fn: Callable[..., Any]) -> tuple[Tensor, ...]:
    return tuple(t for t in pytree.tree_leaves(fn()) if isinstance(t, Tensor) and t.requires_grad)


def _drawn(like: Sequence[Tensor], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in like]


def _twice(fn: Callable[..., Any], leaves: Sequence[Tensor]) -> list[Tensor]:
    """Gradients, by leaves and by cotangents of the results, of a random sum of the gradients by leaves."""
    outputs = _outputs(fn)
    cotangents = [t.requires_grad_() for t in _drawn(outputs, 1)]
    slopes = torch.autograd.grad(outputs, leaves, cotangents, create_graph=True, materialize_grads=True)
    kept = [i for i, slope in enumerate(slopes) if slope.requires_grad]
    found = [slopes[i] for i in kept]
    directions = _drawn(slopes, 2)
    return list(
        torch.autograd.grad(
            found, [*leaves, *cotangents], [directions[i] for i in kept], materialize_grads=True
        )
    )  # fmt: skip


def smoothed(module: nn.Module) -> nn.Module:
    """`module` with SiLU instead of each ReLU, whose second derivative is zero."""
    for part in module.modules():
        for name, child in part.named_children():
            if isinstance(child, nn.ReLU):
                setattr(part, name, nn.SiLU())
    return module
