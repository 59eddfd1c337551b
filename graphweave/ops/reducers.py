"""Reductions of the messages that a destination receives, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.udf.mailbox import Mailbox, Received, grown

Combine = Callable[[Tensor, Tensor], Tensor]

NAMES = ("sum", "mean", "max", "min", "prod")


def reducer(reduce: Any) -> str | tuple[Combine, float]:
    """`reduce`, checked: a name, or an associative function of two values with its identity. DataError if neither."""
    if isinstance(reduce, str) and reduce in NAMES:
        return reduce
    if isinstance(reduce, (tuple, list)) and len(reduce) == 2 and callable(reduce[0]):
        combine, identity = reduce
        if isinstance(identity, bool) or not isinstance(identity, (int, float)):
            raise DataError(
                "reduce must be a pair of a function of two values and its identity, a number "
                f"(got {type(identity).__name__}). Pass what a destination without edges gets."
            )
        return combine, identity
    raise DataError(
        f"reduce must be one of {', '.join(NAMES)}, or a pair (function of two values, identity) (got {reduce!r})."
        " Pass one of these."
    )


def reduced(messages: Tensor, dst: Tensor, dst_rows: Tensor, reduce: str) -> Tensor:
    """[edges, ...] -> [destinations, ...] along `dst`."""
    if reduce in ("max", "min", "mean", "prod") and (messages.dtype is torch.bool or messages.is_complex()):
        raise DataError(
            f"reduce {reduce!r} takes real numbers (got messages of {messages.dtype})."
            " Convert what message returns, or reduce it by 'sum'."
        )
    if reduce == "prod":
        # the product of no numbers is 1
        at = grown(dst.long(), messages.dim()).expand_as(messages)
        out = messages.new_ones((dst_rows.shape[0], *messages.shape[1:]))
        return out.scatter_reduce(0, at, messages, "prod", include_self=True)
    box: Any = Mailbox(messages, Received(dst, dst_rows))
    if reduce == "sum":
        return box.sum(1)
    if reduce == "mean":
        return box.mean(1)
    return box.amax(1) if reduce == "max" else box.amin(1)
