"""Kernels that are being compiled, at the same time: those that are needed first come first."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial

from graphweave.core.errors import GraphweaveError
from graphweave.core.log import logger
from graphweave.core.spans import WAIT, span
from graphweave.execute.region_step import RegionStep
from graphweave.runtime import kernel_cache
from graphweave.runtime.compiler_runs import Stoppable
from graphweave.runtime.together import runs_of

_log = logger(__name__)


@dataclass(eq=False)
class Begun:
    """The kernels of some halves while they are compiled. `wait` returns when all are ready, and raises the error of
    one that could not be compiled. Interrupted, it may be called again."""

    names: list[str] = field(default_factory=list)
    _futures: list[tuple[Future[None], list[RegionStep]]] = field(default_factory=list)
    _work: Stoppable = field(default_factory=Stoppable)
    _process: int = field(default_factory=os.getpid)
    _start: float = field(default_factory=time.perf_counter)

    def add(self, name: str, steps: Sequence[RegionStep], *, later: bool = False) -> None:
        """Start to compile `steps`. Those that are needed `later` begin when the others leave a core free."""
        self.names.append(name)
        for group in compiler_runs(steps):
            build = partial(self._work.do, partial(build_all, group))
            self._futures.append((_pools(self._process).submit(build, later=later), group))

    def wait(self) -> None:
        with span(WAIT):
            for future, group in self._futures:
                if os.getpid() != self._process:  # a fork has no threads of its parent
                    build_all(group)
                    continue
                try:
                    future.result()
                except (GraphweaveError, OSError):
                    build_all(group)  # an interrupt that was meant for the user's program may have ended the compiler
        kernels = {step.plan.code for _, group in self._futures for step in group}
        ready = ", ".join(self.names), len(kernels), time.perf_counter() - self._start
        _log.info("%s: %d kernels ready in %.2f s", *ready)

    def stop(self) -> None:
        """Stop the compilers, and start no others."""
        for future, _ in self._futures:
            future.cancel()
        self._work.stop()


def compiler_runs(steps: Sequence[RegionStep]) -> list[list[RegionStep]]:
    """`steps` in groups, each for one thread: those of one kernel, and in C++ those whose kernels are compiled as one
    text."""
    groups: dict[str, list[RegionStep]] = {}
    for step in steps:
        groups.setdefault(step.plan.code, []).append(step)
    texts = [code for code, (first, *_) in groups.items() if first.plan.target == "cpp"]
    alone = [[code] for code in groups if code not in texts]
    return [[step for code in run for step in groups[code]] for run in (*runs_of(texts), *alone)]


def build_all(steps: Sequence[RegionStep]) -> None:
    """Compile the kernels of `steps`, those in C++ as one text, or find them in the cache."""
    kernel_cache.libraries([step.plan.code for step in steps if step.plan.target == "cpp"])
    for step in steps:
        step.build()


class _Pools:
    """Threads for kernels that are needed now, and others for those that are needed later, which begin where the first
    leave a core free."""

    def __init__(self) -> None:
        self._threads = threads = os.cpu_count() or 1
        self._now = ThreadPoolExecutor(threads, thread_name_prefix="graphweave-compiler")
        self._later = ThreadPoolExecutor(threads, thread_name_prefix="graphweave-compiler-later")
        self._waiting, self._changed = 0, threading.Condition()

    def submit(self, build: Callable[[], None], *, later: bool) -> Future[None]:
        if later:
            return self._later.submit(self._build_later, build)
        with self._changed:
            self._waiting += 1
        future = self._now.submit(build)
        future.add_done_callback(self._done)
        return future

    def _done(self, future: Future[None]) -> None:
        with self._changed:
            self._waiting -= 1
            self._changed.notify_all()

    def _build_later(self, build: Callable[[], None]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting < self._threads)
        build()

    def drop_later(self) -> None:
        """Do not begin what is needed later, since the process ends."""
        self._later.shutdown(wait=False, cancel_futures=True)


@cache
def _pools(process: int) -> _Pools:
    """The threads of this process: those of a parent do not exist in its forks."""
    made = _Pools()
    threading._register_atexit(made.drop_later)  # type: ignore[attr-defined]  # atexit comes after these threads' end
    return made
