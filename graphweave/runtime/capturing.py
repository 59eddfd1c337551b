"""What programs read from caches while they are captured as a CUDA graph, which records work instead of doing it.

A graph reads the memory that was there when it was captured, so whatever a cache gave must be kept beside the graph.
What a cache lacks cannot be made meanwhile: it would be kept as made though nothing has run. Each thread has a state of
its own, since a backward is captured in a thread of autograd.
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
    """Collects the tensors that caches give to this thread meanwhile. CaptureError where a cache has to make one.

    Unless `refuses`: then it is a rehearsal, which may make them.
    """
    found: list[Tensor] = []
    _state.read, _state.refuses = found, refuses
    try:
        yield found
    finally:
        _state.read, _state.refuses = None, False


def active() -> bool:
    """Is this thread's work captured, or rehearsed for that?"""
    return _state.read is not None


def read(tensors: tuple[Tensor, ...]) -> None:
    """A cache says what it gives."""
    if _state.read is not None:
        _state.read.extend(tensors)


def refuse(what: str) -> None:
    """A cache says that it has to make `what`: CaptureError during a capture."""
    if _state.refuses:
        raise CaptureError(
            f"expected {what} to be cached by the calls before the capture (it is not). Raise GRAPHWEAVE_FORMAT_BYTES."
        )
