"""A softmax, its logarithm and the gradients of both, written as exponentials, differences and folds along one dim."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from graphweave.core.types import Fold, Op

aten = torch.ops.aten

Do: TypeAlias = Callable[..., Any]
"""do(op, *operands): a pointwise operator on values of the caller's kind."""
Along: TypeAlias = Callable[[Any, Fold], Any]
"""A value folded along the dim of the call, in a form that broadcasts against the value."""


def _softmax(do: Do, along: Along, x: object) -> int:
    powers = do(Op.exp, do(Op.sub, x, along(x, Fold.max)))
    return do(Op.div, powers, along(powers, Fold.sum))


def _log_softmax(do: Do, along: Along, x: object) -> int:
    shifted = do(Op.sub, x, along(x, Fold.max))
    return do(Op.sub, shifted, do(Op.log, along(do(Op.exp, shifted), Fold.sum)))


def _of_softmax(do: Do, along: Along, grad: object, out: object) -> int:
    product = do(Op.mul, grad, out)
    return do(Op.sub, product, do(Op.mul, out, along(product, Fold.sum)))


def _of_log_softmax(do: Do, along: Along, grad: object, out: object) -> int:
    return do(Op.sub, grad, do(Op.mul, do(Op.exp, out), along(grad, Fold.sum)))


SOFTMAXES: Mapping[Any, tuple[tuple[str, ...], Callable[..., Any]]] = {
    aten._softmax.default: (("self",), _softmax),
    aten._log_softmax.default: (("self",), _log_softmax),
    aten._softmax_backward_data.default: (("grad_output", "output"), _of_softmax),
    aten._log_softmax_backward_data.default: (("grad_output", "output"), _of_log_softmax),
}
"""Call -> the names of its operands, and its formula(do, along, *operands)."""
