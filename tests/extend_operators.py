"""Custom operators as a library outside of this package defines them, for the tests of `graphweave.extend`.

They compute in NumPy, so that nothing but a declaration tells a compiler what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

calls = 0
"""Counts calls of NumPy. Operators compiled into kernels make none."""


def _numpy(*tensors: Tensor) -> list[Any]:
    global calls
    calls += 1
    return [t.detach().numpy() for t in tensors]


def _like(value: Any, x: Tensor) -> Tensor:
    return torch.from_numpy(np.asarray(value)).to(x.dtype)


def numbers(function: Callable[..., Any], *tensors: Tensor) -> Tensor:
    """Turns a function of NumPy arrays into one of tensors."""
    return _like(function(*_numpy(*tensors)), tensors[0])


def define(name: str, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Defines the custom operator `gwtest::name` by a Python function and a function for its shape."""

    def defined(function: Callable[..., Any]) -> Any:
        made = torch.library.custom_op(f"gwtest::{name}", function, mutates_args=())
        made.register_fake(fake)
        return made

    return defined


# ---------------------------------------------------------------- row-wise


@define("rbf", lambda distance, centers, width=2.0: distance.new_empty(distance.shape[0], centers.shape[0]))
def rbf(distance: Tensor, centers: Tensor, width: float = 2.0) -> Tensor:
    """exp(-width (distance[r] - centers[k])^2): [N], [K] -> [N, K]. It has no derivative."""
    d, c = _numpy(distance, centers)
    return _like(np.exp(-width * (d[:, None] - c[None]) ** 2), distance)


def rbf_formula(distance: Tensor, centers: Tensor, width: float) -> Tensor:
    return torch.exp(-width * (distance.unsqueeze(1) - centers) ** 2)


@define("unit", lambda x: torch.empty_like(x))
def unit(x: Tensor) -> Tensor:
    """x[r] / sqrt(1 + |x[r]|^2), with a backward operator of its own."""
    (a,) = _numpy(x)
    return _like(a / np.sqrt(1 + (a * a).sum(-1, keepdims=True)), x)


@define("unit_backward", lambda grad, x: torch.empty_like(x))
def unit_backward(grad: Tensor, x: Tensor) -> Tensor:
    g, a = _numpy(grad, x)
    size = np.sqrt(1 + (a * a).sum(-1, keepdims=True))
    return _like(g / size - a * (g * a).sum(-1, keepdims=True) / size**3, x)


def unit_formula(x: Tensor) -> Tensor:
    return x / (1 + (x * x).sum(-1, keepdim=True)).sqrt()


def unit_backward_formula(grad: Tensor, x: Tensor) -> Tensor:
    size = (1 + (x * x).sum(-1, keepdim=True)).sqrt()
    return grad / size - x * (grad * x).sum(-1, keepdim=True) / size**3


unit.register_autograd(
    lambda ctx, grad: torch.ops.gwtest.unit_backward(grad, ctx.saved_tensors[0]),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@define("parts", lambda x: (torch.empty_like(x), x.new_empty(x.shape[0])))
def parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """x[r] / size[r] and size[r] = 1 + sum |x[r]|: two results."""
    (a,) = _numpy(x)
    size = 1 + np.abs(a).sum(-1)
    return _like(a / size[:, None], x), _like(size, x)


def parts_formula(x: Tensor) -> tuple[Tensor, Tensor]:
    size = 1 + x.abs().sum(-1)
    return x / size.unsqueeze(1), size


# ---------------------------------------------------------------- pointwise


@define("softsign", lambda x: torch.empty_like(x))
def softsign(x: Tensor) -> Tensor:
    (a,) = _numpy(x)
    with np.errstate(invalid="ignore"):
        return _like(a / (1 + np.abs(a)), x)


@define("bump", lambda x, height=1.0: torch.empty_like(x))
def bump(x: Tensor, height: float = 1.0) -> Tensor:
    """height / (1 + x^2), with a backward operator of its own."""
    (a,) = _numpy(x)
    return _like(height / (1 + a * a), x)


@define("bump_backward", lambda grad, x, height: torch.empty_like(x))
def bump_backward(grad: Tensor, x: Tensor, height: float) -> Tensor:
    g, a = _numpy(grad, x)
    with np.errstate(invalid="ignore"):
        return _like(-2 * height * g * (a / (1 + a * a)) / (1 + a * a), x)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.height = inputs[1]


bump.register_autograd(
    lambda ctx, grad: (torch.ops.gwtest.bump_backward(grad, ctx.saved_tensors[0], ctx.height), None),
    setup_context=_keep,
)


@define("hypotenuse", lambda a, b: torch.empty_like(a + b))
def hypotenuse(a: Tensor, b: Tensor) -> Tensor:
    """sqrt(1 + a^2 + b^2): operands broadcast."""
    x, y = _numpy(a, b)
    return _like(np.sqrt(1 + x * x + y * y), a)


# ---------------------------------------------------------------- pull and push


@define("gather", lambda x, index: x.new_empty(index.shape[0], *x.shape[1:]))
def gather(x: Tensor, index: Tensor) -> Tensor:
    a, at = _numpy(x, index)
    return _like(a[at], x)


@define("segment_sum", lambda x, index, rows: x.new_empty(rows, *x.shape[1:]))
def segment_sum(x: Tensor, index: Tensor, rows: int) -> Tensor:
    a, at = _numpy(x, index)
    out = np.zeros((rows, *a.shape[1:]), a.dtype)
    np.add.at(out, at, a)
    return _like(out, x)


gather.register_autograd(
    lambda ctx, grad: (torch.ops.gwtest.segment_sum(grad, ctx.saved_tensors[0], ctx.rows), None),
    setup_context=lambda ctx, inputs, output: (
        ctx.save_for_backward(inputs[1]), setattr(ctx, "rows", inputs[0].shape[0])
    ),
)  # fmt: skip
segment_sum.register_autograd(
    lambda ctx, grad: (torch.ops.gwtest.gather(grad, ctx.saved_tensors[0]), None, None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1]),
)


@define("segment_max", lambda x, index, like: x.new_empty(like.shape[0], *x.shape[1:]))
def segment_max(x: Tensor, index: Tensor, like: Tensor) -> Tensor:
    """The maximum, and -1 for a row that none points to: as many rows as `like` has. It has no derivative."""
    a, at = _numpy(x, index)
    out = np.full((like.shape[0], *a.shape[1:]), -np.inf, a.dtype)
    np.maximum.at(out, at, a)
    out[~np.isin(np.arange(len(out)), at)] = -1
    return _like(out, x)


@define("segment_mean", lambda x, index, rows: x.new_empty(rows, *x.shape[1:]))
def segment_mean(x: Tensor, index: Tensor, rows: int) -> Tensor:
    """The mean, and 0 for a row that none points to. It has no derivative."""
    a, at = _numpy(x, index)
    out = np.zeros((rows, *a.shape[1:]), a.dtype)
    np.add.at(out, at, a)
    return _like(out / np.maximum(np.bincount(at, minlength=rows), 1).reshape(-1, *[1] * (a.ndim - 1)), x)


UFUNCS: dict[str, Any] = {"sum": np.add, "mean": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def _folded(fold: str) -> None:
    """gwtest::fold_FOLD, with 3 for a row that none points to."""
    start = {"prod": 1.0, "max": -np.inf, "min": np.inf}.get(fold, 0.0)

    def folded(x: Tensor, index: Tensor, rows: int) -> Tensor:
        a, at = _numpy(x, index)
        out = np.full((rows, *a.shape[1:]), start, a.dtype)
        UFUNCS[fold].at(out, at, a)
        count = np.bincount(at, minlength=rows).reshape(-1, *[1] * (a.ndim - 1))
        return _like(np.where(count > 0, out / np.maximum(count, 1) if fold == "mean" else out, 3.0), x)

    define(f"fold_{fold}", lambda x, index, rows: x.new_empty(rows, *x.shape[1:]))(folded)


for _fold in UFUNCS:
    _folded(_fold)


# ---------------------------------------------------------------- operators that cannot be declared


@define("centered", lambda x: torch.empty_like(x))
def centered(x: Tensor) -> Tensor:
    """An operator that mixes rows."""
    return x - x.mean(0)


@torch.library.custom_op("gwtest::shapeless", mutates_args=())
def shapeless(x: Tensor) -> Tensor:
    """An operator whose result has an unknown shape."""
    return x * 2


@torch.library.custom_op("gwtest::add_to", mutates_args=("x",))
def add_to(x: Tensor, y: Tensor) -> None:
    x.add_(y)
