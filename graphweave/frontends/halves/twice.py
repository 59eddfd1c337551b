"""Operators of a joint graph as functions of which autograd finds the right derivative.

Autograd chose the operators of the backward for gradients without a graph. Some of them have no derivative of their
own; some read a factor that the forward kept and that autograd takes for a constant; and one writes into memory that
its gradient uses several times. Here, each has a formula of operators with derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from graphweave.frontends.calls.declared import differentiable

aten = torch.ops.aten


def derivable(node: fx.Node) -> object:
    """The function to call for `node` of a joint graph, with its arguments."""
    target = node.target
    if target in _DETERMINANTS:
        matrix = node.args[0].meta["val"]  # type: ignore[union-attr]
        by_columns = matrix.is_contiguous() and not matrix.is_complex()  # what PyTorch asks, here and in the backward
        return _DETERMINANTS[target]((lambda m: m.mT) if by_columns else (lambda m: m))
    return _FORMULAS.get(target) or differentiable(target)


def depends_on_layout(target: object) -> bool:
    """Whether what is called for `target` depends on how an operand lies in memory."""
    return target in _DETERMINANTS


def _copied(into: Tensor, values: Tensor, non_blocking: bool = False) -> Tensor:
    """`aten.copy`, which stands for a write in place, and has no derivative of its own."""
    return values.to(into).expand_as(into)


def _written(view: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A copy of a tensor with other values in one of its views. The gradient of PyTorch's own `slice_scatter` is wrong
    where elements of the gradient that it is given share memory (that of `unfold` or `expand`)."""

    def written(into: Tensor, values: Tensor, *place: object, **named: object) -> Tensor:
        out = into.clone(memory_format=torch.contiguous_format)
        view(out, *place, **named).copy_(values)
        return out

    return written


def _group_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, N: Any, C: Any, HxW: Any, group: int,
    wanted: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    by_group, by_channel = (N, group, -1), (N, C, -1)
    slope = grad.reshape(by_channel)
    normal = ((x.reshape(by_group) - mean.unsqueeze(-1)) * rstd.unsqueeze(-1)).reshape(by_channel)
    scaled = slope if weight is None else slope * weight.reshape(1, -1, 1)
    scaled, level = scaled.reshape(by_group), normal.reshape(by_group)
    falls = scaled - scaled.mean(-1, keepdim=True) - level * (scaled * level).mean(-1, keepdim=True)
    return (
        (falls * rstd.unsqueeze(-1)).reshape(x.shape) if wanted[0] else None,
        (slope * normal).sum((0, 2)) if wanted[1] else None,
        slope.sum((0, 2)) if wanted[2] else None,
    )


def _logit_backward(grad: Tensor, x: Tensor, eps: float | None = None) -> Tensor:
    slope = grad / (x * (1 - x))
    if eps is None:
        return slope
    return torch.where((x >= eps) & (x <= 1 - eps), slope, 0.0)


def _determinant(factored: Callable[[Tensor], Tensor]) -> Callable[..., object]:
    return lambda matrix: (torch.linalg.det(matrix), *torch.linalg.lu_factor(factored(matrix)))


def _log_determinant(factored: Callable[[Tensor], Tensor]) -> Callable[..., object]:
    return lambda matrix: (*torch.linalg.slogdet(matrix), *torch.linalg.lu_factor(factored(matrix)))


def _solution(matrix: Tensor, right: Tensor, *, left: bool = True, check_errors: bool = False) -> object:
    out, _, _, info = aten._linalg_solve_ex.default(matrix, right, left=left, check_errors=check_errors)
    return out, *torch.linalg.lu_factor(matrix), info


_FORMULAS: dict[Any, Callable[..., Any]] = {
    aten.copy.default: _copied,
    aten.slice_scatter.default: _written(aten.slice.Tensor),
    aten.select_scatter.default: _written(aten.select.int),
    aten.diagonal_scatter.default: _written(aten.diagonal.default),
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten.logit_backward.default: _logit_backward,
    aten._linalg_solve_ex.default: _solution,
}
"""Operator -> the formula that takes its arguments."""

_DETERMINANTS: dict[Any, Callable[[Callable[[Tensor], Tensor]], Callable[..., Any]]] = {
    aten._linalg_det.default: _determinant,
    aten._linalg_slogdet.default: _log_determinant,
}
"""Operator that gives a determinant and LU factors -> the function that gives both with their derivatives, of a
function that gives the matrix that is factored."""
