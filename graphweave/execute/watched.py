"""Who watches the steps of compiled programs: PyTorch's profiler while it is on, or `graphweave profile`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

import torch
from torch._C._profiler import _RecordFunctionFast

Around: TypeAlias = Callable[[str], AbstractContextManager[Any]]
"""Makes what is entered before a step of the given name and left after it."""

_watchers: list[Around] = []


def watcher() -> Around | None:
    """The watcher of the call that begins now in this thread; None if there is none."""
    if _watchers:
        return _watchers[-1]
    return _in_profile if torch._C._autograd._profiler_enabled() else None


def _in_profile(name: str) -> AbstractContextManager[object]:
    return _RecordFunctionFast(f"graphweave::{name}")


@contextmanager
def watching(around: Around) -> Iterator[None]:
    """In this block, `around` watches the steps of all threads."""
    _watchers.append(around)
    try:
        yield
    finally:
        _watchers.remove(around)
