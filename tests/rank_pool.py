"""Processes that stand for ranks: a pool of them runs functions of `tests/ranks_cases.py`, one call on every rank."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = 120
"""Seconds that a rank waits for the others in a test."""


class RankError(Exception):
    """A rank failed: the traceback of that process."""


class RankPool:
    """`size` processes with a gloo group. `run(function, *args)` gives the results of `function(rank, *args)` in the
    order of the ranks, or raises RankError."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.ranks_cases"])
        store = str(Path(tempfile.mkdtemp()) / "store")
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        for rank in range(self.size):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, rank, self.size, store), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        for pipe in self._pipes:
            pipe.send((function, args))
        said = [pipe.recv() for pipe in self._pipes]
        failed = [f"rank {rank}: {result}" for rank, (good, result) in enumerate(said) if not good]
        if failed:  # the others may still wait for a rank that failed
            self.close()
            self._start()
            raise RankError("\n".join(failed))
        return [result for _, result in said]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(2)
            if process.is_alive():
                process.kill()


def _serve(pipe: Connection, rank: int, size: int, store: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, size), rank=rank, world_size=size,
        timeout=datetime.timedelta(seconds=TIMEOUT),
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
