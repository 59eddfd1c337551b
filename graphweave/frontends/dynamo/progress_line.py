"""The line that a terminal shows while a compilation takes long."""

from __future__ import annotations

import threading
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text


class _Bar(BarColumn):
    """A bar for work whose end is known."""

    def render(self, task: Task) -> Any:
        return Text("") if task.total is None else super().render(task)


class ProgressLine:
    """The line of one block, hidden until `show`."""

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
