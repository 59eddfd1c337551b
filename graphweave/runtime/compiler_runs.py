"""Runs of the C++ compiler that can be stopped: when a user interrupts a compilation, or a process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from graphweave.core import locks
from graphweave.core.errors import CompileError

_running: dict[int, subprocess.Popen[str]] = {}
"""The process for which each thread waits, by the number of the thread."""
_lock = locks.lock()
_refused: set[int] = set()
"""Numbers of threads that may run no compiler any more."""
_all_refused = False
_STOPPED = "the compilation was stopped. Call the function again to compile it."


def run(
    command: Sequence[str], text: str, environment: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run `command` with `text` as its input, and wait for its end.

    The process is stopped, with those that it has started, if this is interrupted, or takes longer than `seconds`
    (TimeoutExpired), or is stopped by another thread (CompileError).
    """
    own, process = threading.get_ident(), None
    try:
        with _interrupts_later(), _lock:
            _check(own)
            # in a group of its own, since g++ starts the compiler proper as a process
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=environment, start_new_session=True,
            )  # fmt: skip
            _running[own] = process
        out, err = process.communicate(text, timeout=seconds)
    except BaseException:
        if process is not None:
            _kill(process)
            process.communicate()
        raise
    finally:
        with _lock:
            _running.pop(own, None)
    _check(own)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Hold back Ctrl-C until the end: between the start of a process and its entry in `_running` it would lose it."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        before(signal.SIGINT, came[0])


class Stoppable:
    """Work in several threads that can be stopped together, with the compilers that it runs."""

    def __init__(self) -> None:
        self._threads: set[int] = set()
        self._stopped = False

    def do(self, work: Callable[[], None]) -> None:
        """Do `work` in this thread. Raises CompileError if it is stopped, or was before it began."""
        own = threading.get_ident()
        with _lock:
            if self._stopped:
                raise CompileError(_STOPPED)
            self._threads.add(own)
        try:
            work()
        finally:
            with _lock:  # other work may follow in this thread
                self._threads.discard(own)
                _refused.discard(own)

    def stop(self) -> None:
        """Stop what is done, and do no more."""
        with _lock:
            self._stopped = True
            _refuse(self._threads)


def refuse_compilers() -> None:
    """Stop all runs, and start no other one, since the process ends."""
    global _all_refused
    with _lock:
        _all_refused = True
        _refuse([*_running])


def _refuse(threads: Iterable[int]) -> None:
    """Stop what these threads run, under the lock."""
    _refused.update(threads)
    for number in threads:
        if number in _running:
            _kill(_running[number])


def _check(thread: int) -> None:
    if _all_refused or thread in _refused:
        raise CompileError(_STOPPED)


def _kill(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _in_child() -> None:
    _running.clear()
    _refused.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
