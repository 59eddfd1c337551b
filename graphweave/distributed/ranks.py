"""The ranks of a job: how they meet, what each takes of a batch, and sums over all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from graphweave.core.errors import DataError, GraphweaveError, RanksError
from graphweave.distributed.environment import RankPlace, export, place, restarts
from graphweave.distributed.watch import RingWatch

TIMEOUT = 600.0
"""Seconds that a rank waits for another, unless the user says otherwise."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process is `rank` of `size`. The methods are collective: every rank calls them in the same order.

    A job of one process needs no torch.distributed.
    """

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the rank that prints and writes."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """The rows that this rank takes of `count`: consecutive ones, as many as others take or one more or less, and
        in the order of ranks all of them. Not collective."""
        least, more = divmod(count, self.size)
        first = self.rank * least + min(self.rank, more)
        return slice(first, first + least + (self.rank < more))

    def sum(self, *numbers: float) -> tuple[float, ...]:
        """The sums over all ranks, in float64."""
        if self.size == 1:
            return numbers
        total = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(total)
        return tuple(total.tolist())

    def gathered(self, rows: Tensor) -> Tensor:
        """`rows` [n of this rank, ...] of all ranks, joined in their order; every rank gets all of them."""
        if self.size == 1:
            return rows
        counts = torch.zeros(self.size, dtype=torch.int64)
        counts[self.rank] = rows.size(0)
        dist.all_reduce(counts)
        padded = rows.new_zeros(int(counts.max()), *rows.shape[1:])
        padded[: rows.size(0)] = rows
        found = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(found, padded)
        return torch.cat([part[:count] for part, count in zip(found, counts.tolist(), strict=True)])

    def objects(self, value: T) -> list[T]:
        """`value` of each rank. Values are pickled."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    @contextmanager
    def together(self) -> Iterator[None]:
        """Within the block, which makes no collective call, errors of the user are those of all ranks.

        Rank 0 raises them as one RanksError; the others end with status 2 and say nothing.
        """
        said: str | None = None
        try:
            yield
        except GraphweaveError as error:
            if self.size == 1:
                raise
            said = str(error)
        if self.size == 1:
            return
        told = self.objects(said)
        if not any(told):
            return
        ranks_of: dict[str, list[int]] = {}
        for rank, message in enumerate(told):
            if message:
                ranks_of.setdefault(message, []).append(rank)
        if len(ranks_of) == 1 and all(told):
            self.refuse(next(iter(ranks_of)))
        self.refuse("; ".join(f"rank {', '.join(map(str, ranks))}: {said}" for said, ranks in ranks_of.items()))

    def refuse(self, message: str) -> NoReturn:
        """End the work of all ranks, which all call this: rank 0 raises RanksError, the others end with status 2."""
        if self.first:
            raise RanksError(message)
        raise SystemExit(2)


ALONE = Ranks()
"""A job of one process."""


@contextmanager
def started(timeout: float = TIMEOUT) -> Iterator[Ranks]:
    """Within the block this process is one of those that torchrun, srun or variables of the environment tell of.

    Tensors on the CPU travel by gloo, those on a GPU by NCCL: rank r of a machine uses its r-th GPU. `timeout` is the
    time in seconds that a rank waits for another. A rank that is lost within the block ends all ranks, with one message
    that names it (`watch.py`). A process group that the caller has made, as Ray Train does, is used as it is.

    DataError for variables that do not go together, and where ranks do not meet.
    """
    if dist.is_initialized():
        yield Ranks(dist.get_rank(), dist.get_world_size())
        return
    where = place()
    if where is None:
        yield ALONE
        return
    export(where)
    _meet(where, timeout)
    watch = RingWatch(where, timeout)
    try:
        yield Ranks(where.rank, where.size)
    except (RanksError, SystemExit):
        watch.done()
        raise
    except (GraphweaveError, KeyboardInterrupt):
        watch.failed(fault_of_another=False)
        raise
    except BaseException:
        watch.failed(fault_of_another=True)
        raise
    watch.done()
    dist.destroy_process_group()


def _meet(where: RankPlace, timeout: float) -> None:
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(where.local_rank)
    wait = timedelta(seconds=timeout)
    try:
        store, _, _ = next(rendezvous("env://", timeout=wait))
        # torchrun may keep its store over restarts, with the addresses of ranks that have ended.
        fresh = PrefixStore(f"attempt {restarts()}", store)
        dist.init_process_group(backend, store=fresh, rank=where.rank, world_size=where.size, timeout=wait)
    except (dist.DistError, RuntimeError, ValueError) as error:
        raise DataError(
            f"rank {where.rank} of {where.size} did not meet the others within {timeout:.0f} s (got"
            f" {str(error).splitlines()[0]}). Check MASTER_ADDR and MASTER_PORT, and that all ranks were started."
        ) from error
