"""Shows a line on a terminal while a compilation takes long."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from graphweave.core.settings import settings

AFTER = 3.0
"""The line appears after this many seconds."""

_inside: ContextVar[bool] = ContextVar("_inside", default=False)


@contextmanager
def shown(what: str) -> Iterator[None]:
    """After `AFTER` seconds in the block, show a line that says `what` and counts seconds, until the block ends.

    Nothing is shown if standard error is not a terminal, if GRAPHWEAVE_PROGRESS=0, or inside another block of this
    kind.
    """
    if _inside.get() or not settings().progress or not sys.stderr.isatty():
        yield
        return
    token, line = _inside.set(True), _Line(what)
    timer = threading.Timer(AFTER, line.show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        line.hide()
        _inside.reset(token)


class _Line:
    def __init__(self, what: str) -> None:
        columns = SpinnerColumn(), TextColumn("graphweave: {task.description}", markup=False), TimeElapsedColumn()
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._progress.add_task(what, total=None)  # the clock starts here
        self._lock, self._over = threading.Lock(), False

    def show(self) -> None:
        with self._lock:
            if not self._over:
                self._progress.start()

    def hide(self) -> None:
        with self._lock:
            self._over = True
            self._progress.stop()
