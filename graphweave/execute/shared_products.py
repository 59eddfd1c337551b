"""Products with shared weights that no kernel computes, by the vendor's library: wide ones, and those of few rows.

Kernels are faster than the library for at least 16,384 rows and at most 256 columns (`lower/row_tiles.py`): they read
and write each row once and keep the small matrix in cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.runtime import arena


def multiplied(x: Tensor, w: Tensor) -> Tensor:
    """x @ w, in memory of the arena."""
    with torch.no_grad():
        return torch.mm(x, w, out=arena.empty((x.shape[0], w.shape[1]), x.dtype))


def gram(x: Tensor, y: Tensor) -> Tensor:
    """x.T @ y."""
    with torch.no_grad():
        return torch.mm(x.t(), y)


def added(a: Tensor, x: Tensor, w: Tensor) -> Tensor:
    """a + x @ w, in the memory of `a`."""
    with torch.no_grad():
        return torch.addmm(a, x, w, out=a)
