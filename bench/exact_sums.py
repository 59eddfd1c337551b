"""Sums over edges, and inner products of both ends, that judge in float64 without one message for each edge.

The sum over the edges (s, t, w) of w x[s], for each destination t, is the product of the sparse matrix A with A[t, s] =
w and of x; its gradient by x is the product with the transposed matrix. Both are PyTorch's products of a CSR matrix,
in which an edge that occurs twice has two entries, and so are the gradients of the inner products of both ends. Inner
products, of which the gradient by w is made, too, are computed for `PIECE` edges at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bench.graphs import csr_matrix

PIECE = 2**18
"""Edges that are taken at a time."""


def weighted_sum(x: Tensor, index: Tensor, weight: Tensor, rows: int) -> Tensor:
    """The weighted sum of the rows `x[index[0]]` at each of `rows` destinations `index[1]`."""
    out: Tensor = _Sum.apply(x, index, weight, rows)
    return out


def dot(left: Tensor, right: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return (left[src] * right[dst]).sum(-1)


def dot_in_pieces(left: Tensor, right: Tensor, index: Tensor) -> Tensor:
    """`dot`, whose rows are gathered for some edges at a time, forward and backward."""
    out: Tensor = _Dot.apply(left, right, index)
    return out


def _dot(left: Tensor, right: Tensor, index: Tensor) -> Tensor:
    return torch.cat([dot(left, right, src, dst) for src, dst in index.split(PIECE, 1)])


class _Sum(torch.autograd.Function):
    """`weighted_sum`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, weight: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(x if weight.requires_grad else None, index, weight)
        ctx.size = x.size(0)
        return csr_matrix(index, weight, (rows, x.size(0))) @ x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        x, index, weight = ctx.saved_tensors
        by_x = by_weight = None
        if ctx.needs_input_grad[0]:
            by_x = csr_matrix((index[1], index[0]), weight, (ctx.size, grads[0].size(0))) @ grads[0]
        if ctx.needs_input_grad[2]:
            by_weight = _dot(x, grads[0], index)
        return by_x, None, by_weight, None


class _Dot(torch.autograd.Function):
    """`dot_in_pieces`."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(left, right, index)
        return _dot(left, right, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        left, right, (src, dst) = ctx.saved_tensors
        size = left.size(0), right.size(0)
        by_left, by_right = csr_matrix((dst, src), grads[0], size), csr_matrix((src, dst), grads[0], size[::-1])
        return by_left @ right, by_right @ left, None
