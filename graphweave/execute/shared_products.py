"""Products with shared weights that no kernel computes, by the vendor's library: wide ones, and those of few rows.

Kernels are faster than the library for at least 16,384 rows and at most 256 columns (`lower/row_tiles.py`): they read
and write each row once and keep the small matrix in cache.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from graphweave.runtime import arena


def _without_grad(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`function` with nothing recorded for autograd. Where nothing is recorded anyway, as in most programs, a block of
    `torch.no_grad` would take longer than a small product."""

    def call(*args: object, **kwargs: object) -> Tensor:
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        with torch.no_grad():
            return function(*args, **kwargs)

    return call


_mm, _addmm = _without_grad(torch.mm), _without_grad(torch.addmm)


def multiply(x: Tensor, w: Tensor) -> Tensor:
    """x @ w, in memory of the arena, or in PyTorch's where the arena would ask PyTorch for it."""
    rows, columns, dtype = x.shape[0], w.shape[1], x.dtype
    if rows * columns * dtype.itemsize < arena.SMALLEST:
        return _mm(x, w)
    return _mm(x, w, out=arena.empty((rows, columns), dtype))


def gram(x: Tensor, y: Tensor) -> Tensor:
    """x.T @ y."""
    return _mm(x.t(), y)


def add(a: Tensor, x: Tensor, w: Tensor) -> Tensor:
    """a + x @ w, in the memory of `a`."""
    return _addmm(a, x, w, out=a)
