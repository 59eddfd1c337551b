"""Checks of a compiled model: outputs and every gradient against eager mode, with the same seed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bench.steps import Result
from graphweave.certificate.random_numbers import CounterBased

FLOAT_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
"""Largest relative error that is accepted. Sums in another order differ by a few ulp per addition."""

NOISE_FLOOR = 1e-2
"""Errors of a gradient are relative to at least this fraction of the largest gradient of its model.

Gradients that are zero in exact arithmetic (a bias before batch norm, a softmax shift) hold rounding noise only.
"""

_PIECE = 2**24
"""Elements that are compared at a time."""


def detached(tree: Any) -> Any:
    """A copy of nested inputs, with the same strides, whose floating tensors are leaves that require a gradient."""

    def leaf(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return copy.copy(value)
        if not value.is_floating_point() or value.layout is not torch.strided:
            return value.clone()
        fresh = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        with torch.no_grad():
            fresh.copy_(value)
        return fresh.requires_grad_()

    return pytree.tree_map(leaf, tree)


def step(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    module: nn.Module | None = None,
    seed: int = 7,
    backward: bool = True,
    counter_based: bool = False,
) -> Result:
    """Runs `fn` on leaf copies of its inputs, and its backward with a fixed random gradient of every float output.

    `module` owns the parameters whose gradients are reported; they are cleared before. The seed is set right before
    the call. With `counter_based` eager mode draws the same dropout masks as compiled programs with that seed.
    """
    args, kwargs = detached((tuple(args), dict(kwargs or {})))
    if module is not None:
        module.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    with CounterBased() if counter_based else nullcontext():
        out = fn(*args, **kwargs)
    outputs = [value for value in pytree.tree_leaves(out) if isinstance(value, Tensor)]
    live = [value for value in outputs if value.is_floating_point() and value.requires_grad]
    if backward and live:
        noise = torch.Generator().manual_seed(seed + 1)
        # Drawn in float64 for every precision, because the numbers that PyTorch draws depend on the dtype.
        drawn = [torch.randn(value.shape, generator=noise, dtype=torch.float64) for value in live]
        cotangents = [one.to(value) for one, value in zip(drawn, live, strict=True)]
        torch.autograd.backward(live, cotangents)
    grads: dict[str, Tensor | None] = {}
    if module is not None:
        grads.update((name, _grad(value)) for name, value in module.named_parameters())
    leaves = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
    grads.update((f"input[{i}]", _grad(value)) for i, value in enumerate(leaves) if value.requires_grad)
    return Result(tuple(value.detach().clone() for value in outputs), grads)


def _grad(value: Tensor) -> Tensor | None:
    grad = value.grad
    return None if grad is None else grad.detach().to_dense().clone() if grad.is_sparse else grad.detach().clone()


def relative_error(got: Tensor, want: Tensor, scale: float = 0.0, *, wide: bool = False) -> float:
    """Largest absolute difference over the largest finite magnitude of `want` (at least `scale`).

    The error is infinite unless NaN and infinity stand in the same places, and the dtypes are one, or `wide`, which
    compares numbers of any precision. Some elements are compared at a time, since copies in float64 may not fit.
    """
    if got.shape != want.shape or (got.dtype != want.dtype and not wide):
        return float("inf")
    if not want.is_floating_point():
        return 0.0 if torch.equal(got, want) else float("inf")
    worst = largest = 0.0
    for one, other in zip(got.flatten().split(_PIECE), want.flatten().split(_PIECE), strict=True):
        one, other = one.double(), other.double()
        finite = other.isfinite()
        same = torch.equal(one[~finite].nan_to_num(nan=0.5), other[~finite].nan_to_num(nan=0.5))
        if not same or not one[finite].isfinite().all():
            return float("inf")
        if finite.any():
            worst = max(worst, (one - other)[finite].abs().max().item())
            largest = max(largest, other[finite].abs().max().item())
    return 0.0 if worst == 0.0 else worst / max(largest, scale, torch.finfo(torch.float32).tiny)


def worst_error(got: Result, want: Result, *, wide: bool = False) -> tuple[float, str]:
    """The largest relative error over outputs and gradients, and the name of the value that has it; of any precision
    if `wide`.

    A missing gradient counts as zeros: a compiled backward may return zeros for an input that does not matter.
    """
    if len(got.outputs) != len(want.outputs):
        return float("inf"), f"{len(got.outputs)} outputs instead of {len(want.outputs)}"
    worst, where = 0.0, "output[0]"
    for i, (out, expected) in enumerate(zip(got.outputs, want.outputs, strict=True)):
        error = relative_error(out, expected, wide=wide)
        worst, where = max((worst, where), (error, f"output[{i}]"))
    largest = max((_magnitude(value) for value in want.grads.values() if value is not None), default=0.0)
    for name, other in want.grads.items():
        one = got.grads[name]
        known = one if one is not None else other
        if known is None:
            continue
        one, other = (torch.zeros_like(known) if value is None else value for value in (one, other))
        error = relative_error(one, other, largest * NOISE_FLOOR, wide=wide)
        worst, where = max((worst, where), (error, f"grad of {name}"))
    return worst, where


def _magnitude(value: Tensor) -> float:
    """The largest finite magnitude."""
    pieces = value.flatten().split(_PIECE)
    return max((piece.abs().nan_to_num(posinf=0.0).max().item() for piece in pieces if piece.numel()), default=0.0)


def no_worse_than_eager(got: Result, eager: Result, exact: Result) -> bool:
    """Whether the error of `got` against the float64 result `exact` is at most 4 times that of eager's float32 result.

    This judges programs that lose digits in float32 by themselves (such as a variance by difference of squares), for
    which two correct evaluations differ by more than the tolerance.
    """
    return error_against(got, exact) <= 4 * error_against(eager, exact)


def error_against(got: Result, exact: Result) -> float:
    """The largest relative error of a float32 result against one in float64."""
    return worst_error(got, exact, wide=True)[0]
