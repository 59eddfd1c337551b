"""Locks that are open in a forked process.

A fork copies the locks that other threads of the parent hold, but not the threads, so the child would wait for ever.
All locks of the package are made here, and are opened again in the child.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, TypeVar

T = TypeVar("T")

_made: weakref.WeakSet[Any] = weakref.WeakSet()


def lock() -> threading.Lock:
    """A lock that its thread must not take twice."""
    return _remembered(threading.Lock())


def reentrant_lock() -> threading.RLock:
    """A lock that its thread may take again."""
    return _remembered(threading.RLock())


def _remembered(made: T) -> T:
    _made.add(made)
    return made


def _open_all() -> None:
    for made in list(_made):
        made._at_fork_reinit()  # what Python does for the locks of its own modules


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_all)
