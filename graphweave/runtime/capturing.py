"""Cached values that programs read while they are captured as a CUDA graph, which records work instead of doing it.

A CUDA graph reads the memory that it read when it was captured, so every tensor that a cache returned must be kept
alive with it. A cache must not make a missing value during a capture: it would keep the value although nothing has
computed it. Each thread has its own state, since autograd captures a backward in a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from graphweave.core.errors import CaptureError


class _Capture(threading.local):
    read: list[Tensor] | None = None
    refuses: bool = False


_state = _Capture()


@contextmanager
def capturing(*, refuses: bool = True) -> Iterator[list[Tensor]]:
    """Collect the tensors that caches return to this thread inside the block.

    If a cache has to make a tensor, it raises CaptureError, unless `refuses` is false, in which case the block is a
    rehearsal.
    """
    found: list[Tensor] = []
    _state.read, _state.refuses = found, refuses
    try:
        yield found
    finally:
        _state.read, _state.refuses = None, False


def active() -> bool:
    """Whether this thread's work is being captured or rehearsed for a capture."""
    return _state.read is not None


def read(tensors: tuple[Tensor, ...]) -> None:
    """Called by a cache with the tensors that it returns."""
    if _state.read is not None:
        _state.read.extend(tensors)


def refuse(what: str) -> None:
    """Called by a cache that has to make `what`; raises CaptureError during a capture."""
    if _state.refuses:
        raise CaptureError(
            f"expected {what} to be cached by the calls before the capture (it is not). Raise GRAPHWEAVE_FORMAT_BYTES."
        )
