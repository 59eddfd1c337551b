"""Decompositions of compound ATen calls during capture, so that the importer meets few kinds of call."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._decomp import get_decompositions

from graphweave.frontends.calls.declared import formulas
from graphweave.frontends.calls.segments import segments
from graphweave.frontends.calls.told_apart import unique_consecutive, unique_dim

aten = torch.ops.aten

Decompositions: TypeAlias = dict[Any, Callable[..., Any]]
"""Operator -> the function that a capture traces in its place."""

_COMPOUND: tuple[Any, ...] = (
    aten.elu, aten.elu_backward, aten.gelu, aten.gelu_backward, aten.silu, aten.silu_backward, aten.softplus,
    aten.softplus_backward, aten.hardtanh_backward, aten.hardsigmoid, aten.hardsigmoid_backward, aten.hardswish,
    aten.hardswish_backward, aten.mish, aten.mish_backward, aten.log_sigmoid_forward, aten.log_sigmoid_backward,
    aten.addcmul, aten.addcdiv, aten.lerp, aten.threshold, aten.logit, aten.xlogy, aten.heaviside, aten.softshrink,
    aten.hardshrink, aten.celu, aten.selu, aten.glu, aten.glu_backward, aten.sinc, aten.logaddexp,
    aten.logsumexp, aten.linalg_vector_norm, aten.norm, aten.dist,
    aten.native_dropout_backward, aten.nll_loss_forward, aten.nll_loss_backward, aten.mse_loss, aten.mse_loss_backward,
    aten.smooth_l1_loss, aten.smooth_l1_loss_backward, aten.huber_loss, aten.huber_loss_backward,
    aten.binary_cross_entropy, aten.binary_cross_entropy_backward, aten.binary_cross_entropy_with_logits,
    aten.native_layer_norm, aten.native_layer_norm_backward, aten._native_batch_norm_legit,
    aten._native_batch_norm_legit_no_training,
    aten._native_batch_norm_legit_functional, aten.native_batch_norm_backward,
    aten.soft_margin_loss, aten.soft_margin_loss_backward, aten._prelu_kernel, aten._prelu_kernel_backward,
)  # fmt: skip
"""Calls that PyTorch's own decompositions take apart."""


def decompositions() -> Decompositions:
    """The table for `aot_autograd(decompositions=...)`.

    Results differ from eager mode's by rounding, and random masks are drawn in another way.
    """
    table = get_decompositions(_COMPOUND)
    return {
        **table,
        **segments(),
        **formulas(),
        **{op: _mean_by_sum(table[op]) for op in _DIVIDED_BY_COUNT},
        aten.native_dropout.default: _dropout,
        aten.bernoulli.p: _bernoulli_p,
        aten.bernoulli.default: _bernoulli,
        aten.linalg_cross.default: _cross,
        aten.sort.default: _stable_sort,
        aten.argsort.default: _argsort,
        aten.argsort.stable: _argsort,
        aten.unique_dim.default: unique_dim,
        aten.unique_consecutive.default: unique_consecutive,
        aten.var.correction: _var,
        aten.std.correction: _std,
        aten.var_mean.correction: _var_mean,
        aten.std_mean.correction: _std_mean,
    }


def decompositions_without_torch() -> Decompositions:
    """The table for programs that run without PyTorch, whose generators draw in no other way."""
    return {**decompositions(), aten.randn_like.default: _normal}


_DIVIDED_BY_COUNT: tuple[Any, ...] = (
    aten.mse_loss_backward.default, aten.smooth_l1_loss_backward.default, aten.huber_loss_backward.default,
)  # fmt: skip
"""Calls whose decompositions in torch divide a Python number by the number of elements, which fails if that is 0."""

_MEAN, _SUM = 1, 2  # the numbers that torch.nn._reduction gives to these reductions


def _mean_by_sum(backward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The gradient of a mean, computed as the gradient of a sum divided by the number of elements."""

    @functools.wraps(backward)
    def divided(grad: Tensor, x: Tensor, target: Tensor, reduction: int, *rest: object) -> Tensor:
        if reduction != _MEAN:
            return backward(grad, x, target, reduction, *rest)
        return backward(grad / x.numel(), x, target, _SUM, *rest)

    return divided


def _dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Dropout that draws a uniform number for each element of x, which the importer can draw again instead of saving
    it."""
    if train is False:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    kept = torch.rand_like(x, dtype=torch.float32) < 1 - p
    return x * kept * (0.0 if p == 1 else 1 / (1 - p)), kept


def _normal(x: Tensor, *, dtype: torch.dtype | None = None, **_: object) -> Tensor:
    """Normal numbers from pairs of uniform ones (Box and Muller 1958)."""
    kind = dtype or x.dtype
    radius = (-2 * torch.log1p(-torch.rand_like(x, dtype=kind))).sqrt()
    return radius * torch.cos(2 * math.pi * torch.rand_like(x, dtype=kind))


def _bernoulli_p(x: Tensor, p: float, *, generator: torch.Generator | None = None) -> Tensor:
    return NotImplemented if generator else (torch.rand_like(x, dtype=torch.float32) < p).to(x.dtype)


def _bernoulli(p: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    return NotImplemented if generator else (torch.rand_like(p, dtype=torch.float32) < p).to(p.dtype)


def _cross(a: Tensor, b: Tensor, *, dim: int = -1) -> Tensor:
    """The products of vectors of three numbers along `dim`, in the order in which eager mode subtracts."""
    a, b = torch.broadcast_tensors(a, b)
    (a0, a1, a2), (b0, b1, b2) = a.unbind(dim), b.unbind(dim)
    return torch.stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], dim)


def _stable_sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """A sort of rows that keeps equal ones in their order, as kernels do and PyTorch leaves open."""
    if x.dim() != 1:
        return NotImplemented
    values, order = aten.sort.stable(x, stable=True, dim=dim, descending=descending)
    return values, order


def _argsort(x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Tensor:
    return NotImplemented if x.dim() != 1 else _stable_sort(x, dim, descending)[1]


def _moments(x: Tensor, dim: Sequence[int] | None, correction: float | None) -> tuple[Tensor, Tensor]:
    """Variance and mean over `dim` (over all dims if None), which stay as dims of size 1. Computed in at least
    float32."""
    dims = list(dim) if dim else list(range(x.dim()))
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    mean = wide.mean(dims, keepdim=True)
    off = wide - mean
    count: Any = 1
    for d in dims:
        count = count * x.shape[d]
    freedom = torch.sym_max(count - (1 if correction is None else correction), 0)
    return (off * off).sum(dims, keepdim=True) / freedom, mean


def _shaped(x: Tensor, like: Tensor, dim: Sequence[int] | None, keepdim: bool) -> Tensor:
    dims = list(dim) if dim else list(range(like.dim()))
    out = x.to(like.dtype)
    return out if keepdim else out.squeeze(dims)


def _var(x: Tensor, dim: list[int] | None = None, *, correction: int | None = None, keepdim: bool = False) -> Tensor:
    return _var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def _std(x: Tensor, dim: list[int] | None = None, *, correction: int | None = None, keepdim: bool = False) -> Tensor:
    return _std_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def _var_mean(
    x: Tensor, dim: list[int] | None = None, *, correction: int | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    if x.is_complex():
        return NotImplemented
    var, mean = _moments(x, dim, correction)
    return _shaped(var, x, dim, keepdim), _shaped(mean, x, dim, keepdim)


def _std_mean(
    x: Tensor, dim: list[int] | None = None, *, correction: int | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    if x.is_complex():
        return NotImplemented
    var, mean = _moments(x, dim, correction)
    return _shaped(var.sqrt(), x, dim, keepdim), _shaped(mean, x, dim, keepdim)
