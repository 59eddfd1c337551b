"""The thread that compiles functions while their users call them (`graphweave.compile(f, background=True)`).

There is one thread for the process, since PyTorch compiles one function at a time anyway. It exists while there is
work.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from graphweave.core import locks
from graphweave.core.log import logger
from graphweave.runtime.compiler_runs import refuse_compilers

_SWITCH_SECONDS = 0.0005
"""The thread holds Python's lock for this long while another thread wants it. With Python's own 5 ms, each call of
PyTorch that another thread makes meanwhile could take 5 ms, as PyTorch gives the lock up while it computes."""

_log = logger(__name__)

_jobs: deque[Callable[[], None]] = deque()
_lock = locks.lock()
_thread: threading.Thread | None = None
_stops = False
_at_exit = False
_loads = False


class _Stopped(BaseException):
    """Raised in the thread when the process ends."""


def submit(job: Callable[[], None]) -> None:
    """Run `job`, which raises nothing, in the thread after those that wait there. It is dropped if the process ends
    before."""
    global _thread, _at_exit
    with _lock:
        if _stops:
            return
        _jobs.append(job)
        if _thread is not None:
            return
        if not _at_exit:
            _at_exit = True
            threading._register_atexit(_stop)  # type: ignore[attr-defined]  # atexit is too late: threads are joined before
        _thread = threading.Thread(target=_work, name="graphweave-compile")
        _thread.start()


def is_this_thread() -> bool:
    """Whether the caller runs in the thread."""
    return threading.current_thread() is _thread


def is_at_work() -> bool:
    """Whether the thread has work."""
    return _thread is not None


@contextmanager
def loading() -> Iterator[None]:
    """Within the block, in the thread, the end of the process waits: an import that is cut short leaves files open."""
    global _loads
    if not is_this_thread():
        yield
        return
    with _lock:
        _loads = True
    try:
        yield
    finally:
        with _lock:
            _loads = False
    if _stops:
        raise _Stopped


def _work() -> None:
    global _thread
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _SWITCH_SECONDS))
    try:
        while (job := _next()) is not None:
            try:
                job()
            except Exception:  # told by `graphweave.ready`, which does in its own thread what has failed here
                _log.info("work behind calls failed", exc_info=True)
            del job  # holds arguments of the user's call
    except _Stopped:
        pass
    finally:
        if sys.getswitchinterval() <= _SWITCH_SECONDS:  # else the user has set another one meanwhile
            sys.setswitchinterval(before)


def _next() -> Callable[[], None] | None:
    """The next job. None if there is none, and then the thread ends."""
    global _thread
    with _lock:
        if _jobs:
            return _jobs.popleft()
        _thread = None
        return None


def _stop() -> None:
    """Stop what is compiled, so that the process ends at once."""
    global _stops
    with _lock:
        _stops = True
        _jobs.clear()
        thread = None if _loads else _thread
    if thread is not None and thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Stopped))
        refuse_compilers()


def _in_child() -> None:
    global _thread
    _thread = None
    _jobs.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
