"""Shows a line on a terminal while a compilation takes long."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from graphweave.core.settings import settings
from graphweave.frontends.dynamo.progress_line import ProgressLine

AFTER = 3.0
"""The line appears after this many seconds."""

_line: ContextVar[ProgressLine | None] = ContextVar("_line", default=None)
"""The line of the block that the thread is in."""


@contextmanager
def shown(what: str) -> Iterator[None]:
    """After `AFTER` seconds in the block, show a line that says `what` and counts seconds, until the block ends.

    Nothing is shown if standard error is not a terminal, if GRAPHWEAVE_PROGRESS=0, or inside another block of this
    kind.
    """
    if _line.get() is not None or not settings().progress or not sys.stderr.isatty():
        yield
        return
    line = ProgressLine(what)
    token = _line.set(line)
    timer = threading.Timer(AFTER, line.show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        line.hide()
        _line.reset(token)


def told(what: str, share: float) -> None:
    """Add `what` to the line of the block that this is called in, and a bar that is filled to this share."""
    line = _line.get()
    if line is not None:
        line.tell(what, share)
