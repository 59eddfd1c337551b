"""Reductions of the messages that a destination receives, by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphweave.core.edge_functions import REDUCERS, not_numbers
from graphweave.udf.mailbox import Mailbox, Received, grown


def reduce_messages(messages: Tensor, dst: Tensor, dst_rows: Tensor, reduce: str) -> Tensor:
    """[edges, ...] -> [destinations, ...] along `dst`. `reduce` is a name, or the text of an `OwnReducer`."""
    if reduce not in REDUCERS:
        out: Tensor = torch.ops.graphweave.fold_rows(messages, dst, dst_rows.shape[0], reduce)
        return out
    if reduce in ("max", "min", "mean", "prod") and (messages.dtype is torch.bool or messages.is_complex()):
        raise not_numbers(reduce, messages.dtype)
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
