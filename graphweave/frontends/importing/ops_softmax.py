"""A softmax, its logarithm and the gradients of both -> exponentials, differences and sums.

The capture keeps each as one call. Only here it is known whether kernels compute its parts: a value on no space, such
as the scores between all nodes of each padded graph of a batch, stays PyTorch's own call, which is faster than its
parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import fx

from graphweave.core.errors import IRError
from graphweave.core.numbers import neutral
from graphweave.core.types import UNIT, Fold, Op, computed
from graphweave.frontends.calls.captured_sizes import argument, dim_of, rank
from graphweave.frontends.importing.context import Context, Handler, Table
from graphweave.ir.message.nodes import Ref, ToUnit

aten = torch.ops.aten

_Along: TypeAlias = Callable[[Ref, Fold], Ref]
"""A value folded along the dim of the call, in a form that broadcasts against the value."""

_Formula: TypeAlias = "Callable[..., Ref]"


def _handler(names: tuple[str, ...], formula: _Formula) -> Handler:
    """The handler of a call that computes `formula(cx, along, *operands)`, the operands being those of these names.

    As in PyTorch, numbers of 16 bits are computed with in 32.
    """

    def handle(cx: Context, node: fx.Node) -> Ref:
        dtype, dim = cx.result(node).dtype, dim_of(argument(node, "dim"), rank(node))
        if rank(node) == 0:
            raise IRError("a softmax of one number")
        operands = [cx.cast(cx.value(argument(node, name)), computed(dtype)) for name in names]

        def along(x: Ref, fold: Fold) -> Ref:
            return _folded(cx, x, dim, fold)

        return cx.cast(formula(cx, along, *operands), dtype)

    return handle


def _folded(cx: Context, x: Ref, dim: int, fold: Fold) -> Ref:
    t = cx.type(x)
    if t.space != UNIT and dim == 0:
        return cx.push(x, cx.emit(ToUnit(t.space)), fold, neutral(fold, t.dtype))
    feature = dim if t.space == UNIT else dim - 1
    if t.shape[feature] == 0:
        raise IRError("a softmax of no numbers")
    return cx.reduce(x, fold, (feature,), True)


def _softmax(cx: Context, along: _Along, x: Ref) -> Ref:
    powers = cx.map(Op.exp, cx.map(Op.sub, x, along(x, Fold.max)))
    return cx.map(Op.div, powers, along(powers, Fold.sum))


def _log_softmax(cx: Context, along: _Along, x: Ref) -> Ref:
    shifted = cx.map(Op.sub, x, along(x, Fold.max))
    return cx.map(Op.sub, shifted, cx.map(Op.log, along(cx.map(Op.exp, shifted), Fold.sum)))


def _of_softmax(cx: Context, along: _Along, grad: Ref, out: Ref) -> Ref:
    product = cx.map(Op.mul, grad, out)
    return cx.map(Op.sub, product, cx.map(Op.mul, out, along(product, Fold.sum)))


def _of_log_softmax(cx: Context, along: _Along, grad: Ref, out: Ref) -> Ref:
    return cx.map(Op.sub, grad, cx.map(Op.mul, cx.map(Op.exp, out), along(grad, Fold.sum)))


_GRADIENT = ("grad_output", "output")

SOFTMAX: Table = {
    aten._softmax.default: _handler(("self",), _softmax),
    aten._log_softmax.default: _handler(("self",), _log_softmax),
    aten._softmax_backward_data.default: _handler(_GRADIENT, _of_softmax),
    aten._log_softmax_backward_data.default: _handler(_GRADIENT, _of_log_softmax),
}
"""The handlers of these calls."""
