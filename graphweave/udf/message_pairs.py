"""Pairs of messages that one row received: `m.unsqueeze(2) - m.unsqueeze(1)`, [rows, messages, messages, *features].

Row-wise operations work on values [pairs, *features]. A reduction along one of the two message dims is a push to the
messages of the other, and gives a mailbox. The pairs are two index tensors made from the destinations alone; their
length is the sum of the squared degrees. Compiled code stores no values of pairs. (C-GAT needs this for its edge
pair-wise normalisation, which the primitives of other frameworks cannot express: Graphiler, section 5.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphweave.tensorlike.answers import Handler, NotExpressible, TensorLike
from graphweave.udf.extent import Extent
from graphweave.udf.mailbox import Mailbox, Misaligned, Received, grown
from graphweave.udf.reductions import REDUCTIONS


class Pairs:
    """All ordered pairs of messages with one destination: `left`, `right` [pairs], sorted by `left`, then `right`."""

    def __init__(self, received: Received) -> None:
        dst = received.dst
        self.received = received
        edges = torch.arange(dst.shape[0], device=dst.device)
        degree = received.count(torch.int64)
        by_row = torch.argsort(dst, stable=True)
        start = (degree.cumsum(0) - degree).index_select(0, dst)
        partners = degree.index_select(0, dst)
        self.left = torch.repeat_interleave(edges, partners)
        place = torch.arange(self.left.shape[0], device=dst.device)
        place = place - (partners.cumsum(0) - partners).index_select(0, self.left)
        self.right = by_row.index_select(0, start.index_select(0, self.left) + place)
        self.messages = dst.new_empty((dst.shape[0], 0))

    def by(self, left: bool) -> Received:
        """The pairs as messages that their left (or right) message received."""
        return Received(self.left if left else self.right, self.messages)


class PairBox(TensorLike):
    """[rows, messages, messages, *features]. `messages` has a row for each pair, [pairs, *features]."""

    called = "pairs of messages"

    def __init__(self, values: Tensor, pairs: Pairs) -> None:
        self.messages, self.pairs = values, pairs

    @property
    def ndim(self) -> int:
        return self.messages.dim() + 2

    @property
    def dtype(self) -> torch.dtype:
        return self.messages.dtype

    def tensor(self) -> Tensor:
        return self.messages

    def like(self, data: Tensor) -> PairBox:
        return PairBox(data, self.pairs)

    def operand(self, x: object) -> Any:
        """`x` in the form in which it takes part in row-wise operations on pairs: [pairs or 1, *features]."""
        if isinstance(x, PairBox):
            if x.pairs is not self.pairs or x.ndim != self.ndim:
                raise NotExpressible("pairs of different shapes in one operation")
            return x.messages
        if isinstance(x, Mailbox):
            return self._of_one(x)
        if isinstance(x, Extent):
            return grown(self._of_rows(x.numbers(self.dtype)), self.messages.dim())
        if not isinstance(x, Tensor) or x.dim() <= self.ndim - 3:
            return x
        if x.dim() > self.ndim or (x.dim() == self.ndim - 2 and x.shape[0] != 1):
            raise Misaligned(
                f"a tensor of shape {tuple(x.shape)} meets pairs of messages, of {self.ndim} dims. Give it as many."
            )
        for _ in range(self.ndim - x.dim()):
            x = x.unsqueeze(0)
        if x.shape[1] != 1 or x.shape[2] != 1:
            raise Misaligned(
                f"a tensor of shape {tuple(x.shape)} has a value for each place of a mailbox: expected 1."
                " Give it a dim of size 1 there."
            )
        x = x.squeeze(2).squeeze(1)
        return x if x.shape[0] == 1 else self._of_rows(x)

    def _of_rows(self, x: Tensor) -> Tensor:
        """For each pair, the value of the row that received it."""
        return self.pairs.received.pull(x).index_select(0, self.pairs.left)

    def _of_one(self, box: Mailbox) -> Tensor:
        """For each pair, the value of its left message (axis 1) or its right message (axis 2)."""
        if box.ndim != self.ndim or box.axis > 2 or box.received is not self.pairs.received:
            raise NotExpressible("mailboxes of different shapes or nodes among pairs of messages")
        if box.messages.shape[1] != 1:
            raise NotExpressible("features where pairs have messages")
        at = self.pairs.left if box.axis == 1 else self.pairs.right
        return box.messages.squeeze(1).index_select(0, at)

    def __bool__(self) -> bool:
        raise NotExpressible("a branch on pairs of messages")


def pair_box(*args: object) -> PairBox | None:
    """The pairs among the arguments of a row-wise operation, or those that mailboxes [n, k, 1] and [n, 1, k] span."""
    boxes: list[Mailbox] = []
    for a in args:
        if isinstance(a, PairBox):
            return a
        if isinstance(a, Mailbox):
            boxes.append(a)
    if len(boxes) < 2 or all(b.axis == boxes[0].axis for b in boxes):
        return None
    box = boxes[0]
    received = box.received
    if received.pairs is None:
        received.pairs = Pairs(received)
    return PairBox(box.messages.squeeze(1), received.pairs)


def _reduce_pairs(name: str, x: PairBox, dim: object = None, keepdim: bool = False, **kwargs: object) -> TensorLike:
    """`x` reduced over the right messages (dim 2), the left messages (dim 1), or one dim of features."""
    if dim is None:
        raise NotExpressible(f"{name} over all dims of pairs, nodes included")
    dims = x.all_wrapped(dim)
    softmax = "softmax" in name
    options = dict(kwargs) if softmax else {**kwargs, "keepdim": keepdim}
    if len(dims) > 1 or dims[0] == 0:
        raise NotExpressible(f"{name} over several dims of pairs, or over nodes")
    if dims[0] > 2:
        out = REDUCTIONS[name](Mailbox(x.messages, x.pairs.by(True)), dims[0] - 1, **options)
        return x.like(out.messages)
    inner = Mailbox(x.messages, x.pairs.by(left=dims[0] == 2))
    out = REDUCTIONS[name](inner, 1, **options)
    if softmax:
        return x.like(out.messages)
    return Mailbox(out, x.pairs.received, 2 if keepdim and dims[0] == 1 else 1)


def _reduction(name: str) -> Handler:
    def handler(x: PairBox, *args: Any, **kwargs: Any) -> TensorLike:
        return _reduce_pairs(name, x, *args, **kwargs)

    return handler


OVER_PAIRS = {
    name: _reduction(name)
    for name in ("sum", "mean", "prod", "amax", "amin", "any", "all", "logsumexp", "softmax", "log_softmax")
}
"""The handlers of reductions over pairs, by name."""
