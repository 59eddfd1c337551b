"""A softmax, its logarithm and the gradients of both -> exponentials, differences and sums.

The capture keeps each as one call. Only here it is known whether kernels compute its parts: a value on no space, such
as the scores between all nodes of each padded graph of a batch, stays PyTorch's own call, which is faster than its
parts.
"""

from __future__ import annotations

from functools import partial

from torch import fx

from graphweave.core.errors import IRError
from graphweave.core.numbers import neutral
from graphweave.core.types import UNIT, Fold, computed
from graphweave.frontends.calls.captured_sizes import argument, dim_of, rank
from graphweave.frontends.calls.softmax import SOFTMAXES
from graphweave.frontends.importing.context import Context, Table
from graphweave.ir.message.nodes import Ref, ToUnit


def _softmax(cx: Context, node: fx.Node) -> Ref:
    """Like PyTorch, computes with numbers of 16 bits in 32."""
    if rank(node) == 0:
        raise IRError("a softmax of one number")
    names, formula = SOFTMAXES[node.target]
    dtype, dim = cx.result(node).dtype, dim_of(argument(node, "dim"), rank(node))
    operands = [cx.cast(cx.value(argument(node, name)), computed(dtype)) for name in names]
    return cx.cast(formula(cx.map, partial(_fold, cx, dim), *operands), dtype)


def _fold(cx: Context, dim: int, x: Ref, fold: Fold) -> Ref:
    t = cx.type(x)
    if t.space != UNIT and dim == 0:
        return cx.push(x, cx.emit(ToUnit(t.space)), fold, neutral(fold, t.dtype))
    feature = dim if t.space == UNIT else dim - 1
    if t.shape[feature] == 0:
        raise IRError("a softmax of no numbers")
    return cx.reduce(x, fold, (feature,), True)


SOFTMAX: Table = dict.fromkeys(SOFTMAXES, _softmax)
"""The handler of these calls."""
