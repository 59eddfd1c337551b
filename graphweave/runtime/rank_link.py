"""Rows that ranks read of each other, and sums over ranks: one call of `torch.distributed` for each.

A link belongs to a process group and to the nodes of one type. It knows which of the rank's rows go to which other
rank, and how many rows each other one sends. Rows travel as bytes in one `all_to_all_single`, whatever their dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from graphweave.core.counters import bump
from graphweave.core.errors import ShardError
from graphweave.runtime import arena
from graphweave.runtime.agreed import SteadyRows
from graphweave.runtime.halo_room import take_room

_REDUCED = {"sum": dist.ReduceOp.SUM, "mul": dist.ReduceOp.PRODUCT, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
_ROWS_REDUCED = {"mul": "prod", "max": "amax", "min": "amin"}


@dataclass(frozen=True, slots=True)
class SentRows:
    """Which rows travel: `send: [n] i64` are own rows that others read, ordered by reader, `send_counts` of each; the
    halo rows come in the order of their owners, `halo_counts` of each."""

    send: Tensor
    send_counts: Sequence[int]
    halo_counts: Sequence[int]

    @property
    def num_halo(self) -> int:
        """Rows of other ranks that this one reads."""
        return sum(self.halo_counts)


class RankGroup:
    """The ranks of a job. Without a process group there is one rank, and nothing travels."""

    def __init__(self, group: dist.ProcessGroup | None, size: int) -> None:
        """`group` is a process group of `size` ranks, None for a single rank."""
        self.group, self.size = group, size
        self.dry = False
        """While true, nothing is sent, and what would come is zero."""

    def all_reduce(self, x: Tensor, fold: str) -> Tensor:
        """The fold of `x` over all ranks."""
        if self.size == 1 or self.dry:
            return x
        bump("all_reduces")
        out = x.to(torch.uint8) if x.dtype is torch.bool else x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(out, _REDUCED[fold], group=self.group)
        return out.to(x.dtype)

    def all_gather(self, value: object) -> list[Any]:
        """The Python objects that the ranks give, in the order of the ranks."""
        out: list[Any] = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(out, value, group=self.group)
        return out

    def all_agree(self, good: bool) -> bool:
        """Whether all ranks say yes."""
        if self.size == 1 or self.dry:
            return good
        said = torch.tensor(int(good), device="cpu")
        dist.all_reduce(said, dist.ReduceOp.MIN, group=self.group)
        return bool(said)


@dataclass(frozen=True, slots=True)
class Travelling:
    """Own and halo rows whose halo rows are on their way. A call waits for these and gives the rows; before, the own
    ones may be read."""

    rows: Tensor
    wait: Callable[[], Tensor]

    def __call__(self) -> Tensor:
        return self.wait()


class RankLink(RankGroup):
    """`core.ranks.Link` for the nodes of one type. `halo_dtype` is the float type in which halo rows travel, if theirs
    is wider."""

    def __init__(
        self, group: dist.ProcessGroup | None, size: int, rows: SentRows, halo_dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(group, size)
        self.rows, self.halo_dtype = rows, halo_dtype
        self._last: dict[int, tuple[Callable[[], None], Tensor]] = {}  # what the last call of each slot has sent for
        self._steady = SteadyRows()

    @property
    def num_halo(self) -> int:
        """Rows of other ranks that this one reads."""
        return self.rows.num_halo

    def begin(self, x: Tensor, slot: int = 0, *, in_place: bool = False) -> Travelling:
        """Begin to exchange; the result waits and gives `x` [own rows, ...] followed by the halo rows.

        With a `slot` above 0, these are the rows of the last such call, and of this one if it is the first. `in_place`
        says that the memory behind `x` in its storage may be written: the result is there, if it is large enough.
        """
        own, halo = x.shape[0], self.rows.num_halo
        out = _with_room(x, halo) if in_place else None
        if out is None:
            out = _empty(x, own + halo)
            out[:own] = x
        into = out.data[own:]  # with a version of its own, since the rows of x do not change
        if self.dry:
            into.zero_()
            return Travelling(out, lambda: out)
        sent = self._narrow(_chosen(x, self.rows.send))
        direct = sent.dtype is x.dtype and not slot
        received = into if direct else _empty(sent, halo)
        wait = self._travel(sent, self.rows.send_counts, received, self.rows.halo_counts)
        if slot:
            last, self._last[slot] = self._last.get(slot, (wait, received)), (wait, received)
            fits = last[1].shape == received.shape and last[1].dtype is received.dtype
            wait, received = last if fits else (wait, received)

        def finish() -> Tensor:
            wait()
            if not direct:
                into.copy_(received)
            return out

        return Travelling(out, finish)

    def begin_sum(self, x: Tensor, fold: str, *, in_place: bool = False) -> Callable[[], Tensor]:
        """Begin to send halo rows to their owners; the result waits and gives `x` [own rows, ...] folded with what has
        come. `in_place` says that the result may be the own rows of `x` themselves."""
        own = x.shape[0] - self.rows.num_halo
        if self.dry:
            return lambda: x[:own].clone()
        sent = self._narrow(x[own:].contiguous())
        received = _empty(sent, self.rows.send.shape[0])
        wait = self._travel(sent, self.rows.halo_counts, received, self.rows.send_counts)

        def finish() -> Tensor:
            mine = x[:own] if in_place else x[:own].clone()
            wait()
            rows, send = received.to(x.dtype), self.rows.send.to(x.device)
            if fold != "sum":
                return mine.index_reduce_(0, send, rows, _ROWS_REDUCED[fold])
            where = send.reshape(-1, *(1,) * (x.dim() - 1)).expand_as(rows)
            return mine.scatter_add_(0, where, rows)  # index_add_ takes twice as long

        return finish

    def steady(self, x: Tensor) -> Tensor:
        """Like `begin`, but waits for the rows; or the result of an earlier call, if x has changed on no rank. Halo
        rows are received behind the rows of x, if its memory has room for them (`runtime/halo_room.py`)."""

        def exchanged(rows: Tensor) -> Tensor:
            return self.begin(rows, in_place=take_room(x, self))()

        return self._steady(x, self.all_agree, exchanged)

    def _narrow(self, x: Tensor) -> Tensor:
        narrow = self.halo_dtype
        if narrow is None or not x.is_floating_point() or x.itemsize <= narrow.itemsize:
            return x
        return x.to(narrow)

    def _travel(
        self, sent: Tensor, to_each: Sequence[int], received: Tensor, from_each: Sequence[int]
    ) -> Callable[[], None]:
        """Begin to send rows; the result waits for those that come."""
        bump("exchanges")
        if self.size == 1:
            return lambda: None
        row = math.prod(sent.shape[1:]) * sent.itemsize
        bump("halo_bytes", sent.shape[0] * row)
        work = dist.all_to_all_single(
            _as_bytes(received), _as_bytes(sent), [n * row for n in from_each], [n * row for n in to_each],
            group=self.group, async_op=True,
        )  # fmt: skip
        if work is None:
            raise ShardError(
                "this rank is none of the process group's (torch.distributed gave no work). Pass the part's group."
            )

        def wait(sent: Tensor = sent) -> None:  # what is sent must live until then
            work.wait()

        return wait


def _empty(like: Tensor, rows: int) -> Tensor:
    """A tensor of `rows` rows such as those of `like`, with undefined contents."""
    shape = (rows, *like.shape[1:])
    return arena.empty(shape, like.dtype) if like.device.type == "cpu" else like.new_empty(shape)


def _with_room(x: Tensor, more: int) -> Tensor | None:
    """`x` and the `more` rows of its storage that follow; None if the storage ends before."""
    rows = x.shape[0] + more
    needed = (x.storage_offset() + rows * math.prod(x.shape[1:])) * x.itemsize
    if not x.is_contiguous() or x.untyped_storage().nbytes() < needed:
        return None
    return x.as_strided((rows, *x.shape[1:]), x.stride())


def _chosen(x: Tensor, rows: Tensor) -> Tensor:
    """`x[rows]`."""
    return torch.index_select(x, 0, rows.to(x.device), out=_empty(x, rows.shape[0]))


def _as_bytes(x: Tensor) -> Tensor:
    return x.reshape(-1).view(torch.uint8)
