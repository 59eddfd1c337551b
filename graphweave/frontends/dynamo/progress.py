"""Shows a line on a terminal while a compilation takes long."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from graphweave.core.settings import settings

AFTER = 3.0
"""The line appears after this many seconds."""

_line: ContextVar[_Line | None] = ContextVar("_line", default=None)
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
    line = _Line(what)
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


class _Bar(BarColumn):
    """A bar for work whose end is known."""

    def render(self, task: Task) -> Any:
        return Text("") if task.total is None else super().render(task)


class _Line:
    def __init__(self, what: str) -> None:
        text = TextColumn("graphweave: {task.description}", markup=False)
        columns = SpinnerColumn(), text, _Bar(bar_width=20), TimeElapsedColumn()
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._what = what
        self._task = self._progress.add_task(what, total=None)  # the clock starts here
        self._lock, self._over = threading.Lock(), False

    def show(self) -> None:
        with self._lock:
            if not self._over:
                self._progress.start()

    def tell(self, what: str, share: float) -> None:
        self._progress.update(self._task, description=f"{self._what}, {what}", total=1.0, completed=share)

    def hide(self) -> None:
        with self._lock:
            self._over = True
            self._progress.stop()
