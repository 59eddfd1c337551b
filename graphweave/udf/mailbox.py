"""The messages that a row receives, as a tensor with one ragged dim: [rows, mailbox, *features].

A reduce function of DGL is written for a dense tensor of rows that all received equally many messages. Here it is
called once for all rows: messages stay [edges, *features], and an operation along the mailbox dim becomes a push along
the edges' destinations, or a push and a pull. It is traced as plain PyTorch operations, so it is compiled, or runs,
like any other code. (Graphiler, section 4.1: the spaces on which operands reside decide how operations move data.)
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.tensorlike.answers import NotExpressible, TensorLike


class Misaligned(NotExpressible, DataError):
    """A tensor does not align with a mailbox. This is an error unless all nodes received equally many messages."""


class Received:
    """The row to which each message goes: `dst` [messages], and a tensor `rows` of shape [number of rows, 0].

    `zero_if_empty` lists results of reductions that are already 0 in rows that received nothing.
    """

    def __init__(self, dst: Tensor, rows: Tensor) -> None:
        self.dst, self.rows = dst, rows
        self.zero_if_empty: list[Tensor] = []
        self.pairs: Any = None
        """The pairs of messages of one row (`graphweave.udf.message_pairs.Pairs`); None until they are first needed."""

    def num_rows(self) -> int:
        return self.rows.shape[0]

    def count(self, dtype: torch.dtype) -> Tensor:
        """Number of messages of each row, [rows]."""
        ones = torch.ones(self.dst.shape[0], dtype=dtype, device=self.dst.device)
        return ones.new_zeros(self.num_rows()).index_add(0, self.dst, ones)

    def pull(self, x: Tensor) -> Tensor:
        """[rows, ...] -> [messages, ...]: each message gets the value of its row."""
        return x.index_select(0, self.dst)


def grown(x: Tensor, dims: int) -> Tensor:
    """[n, ...] -> [n, ..., 1, 1] with `dims` dims, so that it broadcasts over features."""
    for _ in range(dims - x.dim()):
        x = x.unsqueeze(-1)
    return x


class Mailbox(TensorLike):
    """Messages as [rows, ..., mailbox, ...features]. `messages` is [messages, *features], `axis` is the mailbox dim.

    It may be combined with other mailboxes of the same messages, with tensors [rows, 1, *features] (values of the row),
    and with tensors of feature dims only (shared data). Its methods are those of a tensor.
    """

    called = "a mailbox"

    def __init__(self, messages: Tensor, received: Received, axis: int = 1) -> None:
        self.messages, self.received, self.axis = messages, received, axis

    @property
    def outer(self) -> tuple[int, ...]:
        return (0, self.axis)

    @property
    def data(self) -> Mailbox:
        return self.like(self.messages.detach())

    @property
    def ndim(self) -> int:
        return self.messages.dim() + 1

    @property
    def dtype(self) -> torch.dtype:
        return self.messages.dtype

    @property
    def device(self) -> torch.device:
        return self.messages.device

    def tensor(self) -> Tensor:
        return self.messages

    def like(self, messages: Tensor, axis: int | None = None) -> Mailbox:
        """A mailbox of the same messages."""
        return Mailbox(messages, self.received, self.axis if axis is None else axis)

    def moved(self, data: Tensor, outer: tuple[int, ...]) -> Mailbox:
        return self.like(data, outer[1])

    def __repr__(self) -> str:
        sizes = ["rows", *map(str, self.messages.shape[1:])]
        sizes.insert(self.axis, "messages")
        return f"Mailbox({', '.join(sizes)}; {self.messages.dtype})"

    def __len__(self) -> int:
        return self.received.num_rows()

    def __bool__(self) -> bool:
        raise NotExpressible("a branch on the values of a mailbox")

    def __iter__(self) -> NoReturn:
        raise NotExpressible("a loop over a mailbox")


def first(*args: object) -> Mailbox:
    """The first mailbox among arguments."""
    for a in args:
        if isinstance(a, Mailbox):
            return a
    raise NotExpressible("a mailbox inside a container")


def aligned(x: object, box: Mailbox) -> Any:
    """`x` in the form in which it takes part in row-wise operations on the messages of `box`: [messages or 1,
    *features].

    Dims align from the right, as in PyTorch. Raises Misaligned if `x` has a value for each position in a mailbox (rows
    need not have equally many), or more dims than the mailbox, so that its rows would meet other dims.
    """
    if isinstance(x, Mailbox):
        if x.ndim != box.ndim or x.axis != box.axis or x.received is not box.received:
            raise NotExpressible("mailboxes of different shapes or nodes in one operation")
        return x.messages
    if not isinstance(x, Tensor) or x.dim() <= box.ndim - 1 - box.axis:
        return x  # a number, or feature dims only
    if x.dim() > box.ndim:
        raise Misaligned(
            f"a tensor of {x.dim()} dims meets a mailbox of {box.ndim} ({box!r}): dims align from the right, so nodes "
            "would meet messages. Give the mailbox the missing dims: m.unsqueeze(-1)."
        )
    for _ in range(box.ndim - x.dim()):
        x = x.unsqueeze(0)
    if x.shape[box.axis] != 1:
        raise Misaligned(
            f"a tensor of shape {tuple(x.shape)} has {x.shape[box.axis]} values along dim {box.axis}, where each node "
            "has its own number of messages: expected 1. Write values of nodes as x.unsqueeze(1)."
        )
    x = x.squeeze(box.axis)
    return x if x.shape[0] == 1 else box.received.pull(x)
