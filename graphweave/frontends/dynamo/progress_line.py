"""The line that a terminal shows while a compilation takes long."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time

_SECONDS = 0.2
"""The line is drawn again after so many seconds."""
_CELLS = 20
"""Width of the bar in characters."""
_CLEARED = "\r\x1b[2K"
"""Moves to the first column and clears the line."""


class ProgressLine:
    """The line of one block, hidden until `show`."""

    def __init__(self, what: str) -> None:
        self._what, self._more = what, ""
        self._share: float | None = None
        self._begin = time.monotonic()
        self._out = sys.stderr
        self._lock, self._over, self._drawn = threading.Lock(), threading.Event(), False

    def show(self) -> None:
        """Draw the line until `hide`, in a thread of its own. A terminal that cannot clear a line shows nothing."""
        if os.environ.get("TERM", "") in ("", "dumb", "unknown"):
            return
        self._draw()
        while not self._over.wait(_SECONDS):
            self._draw()

    def tell(self, what: str, share: float) -> None:
        """Add `what` to the line, and a bar that is filled to this share."""
        self._more, self._share = f", {what}", share

    def hide(self) -> None:
        self._over.set()
        with self._lock:
            if self._drawn:
                self._write(_CLEARED)

    def _draw(self) -> None:
        seconds = int(time.monotonic() - self._begin)
        bar = "" if self._share is None else f" [{'=' * round(_CELLS * self._share):<{_CELLS}}]"
        line = f"graphweave: {self._what}{self._more}{bar} {seconds // 60}:{seconds % 60:02}"
        with self._lock:
            if not self._over.is_set():
                self._drawn = True
                self._write(_CLEARED + line[: shutil.get_terminal_size().columns - 1])

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except (OSError, ValueError):  # the terminal is gone, or the stream is closed: nobody reads the line
            self._over.set()
