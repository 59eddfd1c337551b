"""Row-wise operations on mailboxes, which are the same operations on the messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from graphweave.tensorlike.answers import Handler, NotExpressible, TensorLike
from graphweave.tensorlike.pointwise import converted, pointwise, pointwise_handlers
from graphweave.udf.extent import Extent, pulled
from graphweave.udf.mailbox import Mailbox, aligned, first
from graphweave.udf.message_pairs import pair_box


def _meeting(given: Sequence[object]) -> tuple[TensorLike, list[object]]:
    pairs = pair_box(*given)
    if pairs is not None:
        return pairs, [pairs.operand(x) for x in given]
    box = first(*given)
    return box, [pulled(x, box) if isinstance(x, Extent) else aligned(x, box) for x in given]


def _type_as(x: Any, other: Mailbox) -> Mailbox:
    box = first(x, other)
    to = other.messages if isinstance(other, Mailbox) else other
    return box.like(box.messages.type_as(to)) if isinstance(x, Mailbox) else x.type_as(to)


def _where(condition: object, x: object = None, y: object = None) -> TensorLike:
    """torch.where(condition, x, y) and x.where(condition, y), which both arrive here."""
    if x is None or y is None:
        raise NotExpressible("torch.where that gives places")
    if getattr(condition, "dtype", None) is not torch.bool and getattr(x, "dtype", None) is torch.bool:
        condition, x = x, condition
    return _choose(condition, x, y)


_choose = pointwise(torch.where, _meeting)


def _masked_fill(x: object, mask: object, value: object) -> Mailbox:
    return _choose(mask, value, x)


ROWWISE: dict[str, Handler] = {
    **pointwise_handlers(_meeting), "where": _where, "masked_fill": _masked_fill, "type_as": _type_as,
    "truediv": pointwise(torch.div, _meeting),
}  # fmt: skip
"""The handlers of functions for mailboxes and for pairs of messages."""

CREATED: dict[str, Handler] = {
    name: converted(getattr(torch, name))
    for name in ("zeros_like", "ones_like", "rand_like", "randn_like", "full_like", "empty_like", "bernoulli")
}
"""The handlers of functions that create a mailbox of the same shape."""
