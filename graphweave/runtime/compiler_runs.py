"""Runs of the C++ compiler that can be stopped: when a user interrupts a compilation, or a process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from graphweave.core import locks
from graphweave.core.errors import CompileError

_running: dict[int, subprocess.Popen[str]] = {}
"""The process for which each thread waits, by the number of the thread."""
_lock = locks.lock()
_refused: set[int] = set()
"""Numbers of threads that may run no compiler any more."""
_all_refused = False


def run(
    command: Sequence[str], text: str, environment: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run `command` with `text` as its input, and wait for its end.

    The process is stopped, with those that it has started, if this is interrupted, or takes longer than `seconds`
    (TimeoutExpired), or is stopped by another thread (CompileError).
    """
    own = threading.get_ident()
    with _lock:
        _check(own)
        # in a group of its own, since g++ starts the compiler proper as a process
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
            start_new_session=True,
        )  # fmt: skip
        _running[own] = process
    try:
        out, err = process.communicate(text, timeout=seconds)
    except BaseException:
        _kill(process)
        process.communicate()
        raise
    finally:
        with _lock:
            del _running[own]
    _check(own)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@contextmanager
def stopped_on_error(pool: ThreadPoolExecutor) -> Iterator[ThreadPoolExecutor]:
    """Like `with pool`, but if the block raises, what `pool` runs is stopped and what waits there is dropped."""
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        _refuse([thread.ident for thread in pool._threads if thread.ident is not None])
        raise
    finally:
        pool.shutdown(wait=True)
        with _lock:  # other threads may get the same numbers
            _refused.difference_update(thread.ident for thread in pool._threads)


def refuse_compilers() -> None:
    """Stop all runs, and start no other one, since the process ends."""
    global _all_refused
    _all_refused = True
    _refuse(list(_running))


def _refuse(threads: Sequence[int]) -> None:
    with _lock:
        _refused.update(threads)
        for number in threads:
            if number in _running:
                _kill(_running[number])


def _check(thread: int) -> None:
    if _all_refused or thread in _refused:
        raise CompileError("the compilation was stopped. Call the function again to compile it.")


def _kill(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _in_child() -> None:
    _running.clear()
    _refused.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
