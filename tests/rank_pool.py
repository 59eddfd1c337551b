"""Processes that stand for ranks: a pool of them runs functions of `tests/ranks_cases.py`, one call on every rank."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist

from tests import patience

_STALLED = "Timed out waiting"
"""What gloo says when a message did not arrive."""


class RankError(Exception):
    """A rank failed: the traceback of that process."""


class RankPool:
    """`size` processes with a gloo group. `run(function, *args)` gives the results of `function(rank, *args)` in the
    order of the ranks, or raises RankError.

    On some machines gloo loses a message once in a few hundred, with nothing but PyTorch in the processes: both ranks
    then wait for one another until the time is up. Such a call is made once more by new processes, unless `retry` is
    false. A rank waits `quiet` seconds for the others, or longer on a slow machine (`tests/patience.py`). With `apart`
    each rank is an interpreter of its own, which orders sets differently, as those that torchrun starts do.
    """

    def __init__(self, size: int, quiet: float = patience.RANK, *, retry: bool = True, apart: bool = False) -> None:
        self.size, self._quiet, self._retry, self._apart = size, quiet, retry, apart
        self._start()

    def restart(self) -> None:
        """Takes new processes, for ranks that no longer stand at the same place."""
        self.close()
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn" if self._apart else "forkserver")
        if not self._apart:
            context.set_forkserver_preload(["tests.ranks_cases"])
        store = str(Path(tempfile.mkdtemp()) / "store")
        self.timeout = patience.seconds(self._quiet)
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        for rank in range(self.size):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, rank, self.size, store, self.timeout), daemon=True)
            with _hash_seed(str(rank + 1) if self._apart else None):
                process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        try:
            return self._run(function, args)
        except RankError as error:
            if _STALLED not in str(error) or not self._retry:
                raise
            return self._run(function, args)

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
        for pipe in self._pipes:
            pipe.send((function, args))
        waiting = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        results, failed = dict[int, Any](), list[str]()
        while waiting:
            ready = wait(
                waiting, patience.seconds(2) if failed else 4 * self.timeout
            )  # others may wait for a rank that failed
            if not ready:
                failed.append(f"ranks {list(waiting.values())}: {_STALLED} for an answer")
                break
            for pipe in cast(list[Connection], ready):
                rank = waiting.pop(pipe)
                try:
                    good, result = pipe.recv()
                except EOFError:
                    good, result = False, "the process ended"
                if good:
                    results[rank] = result
                else:
                    failed.append(f"rank {rank}: {result}")
        if failed:
            self.restart()
            raise RankError("\n".join(failed))
        return [results[rank] for rank in range(self.size)]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(2)
            if process.is_alive():
                process.kill()
                process.join()


@contextmanager
def _hash_seed(seed: str | None) -> Iterator[None]:
    """Processes that are started within have this order of sets."""
    before = os.environ.get("PYTHONHASHSEED")
    if seed is not None:
        os.environ["PYTHONHASHSEED"] = seed
    yield
    if before is None:
        os.environ.pop("PYTHONHASHSEED", None)
    else:
        os.environ["PYTHONHASHSEED"] = before


def _serve(pipe: Connection, rank: int, size: int, store: str, timeout: float) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, size), rank=rank, world_size=size,
        timeout=datetime.timedelta(seconds=timeout),
    )  # fmt: skip
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            break
        try:
            pipe.send((True, function(rank, *args)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()


@contextmanager
def ranks(size: int) -> Iterator[RankPool]:
    """A pool of `size` ranks for the block."""
    pool = RankPool(size)
    try:
        yield pool
    finally:
        pool.close()
