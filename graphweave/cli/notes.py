"""Notes of loaders about a data file, as lines of the command."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_LOADERS = "graphweave.data"


class _Held(logging.Handler):
    """Keeps the messages of warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextmanager
def told_after(command: str, *, tell: bool = True) -> Iterator[None]:
    """Within the block, what loaders warn of is held back. Where the block ends without an error, it is written to
    stderr, a line each, if `tell`: so an error of bad input stands alone."""
    held, log = _Held(), logging.getLogger(_LOADERS)
    propagate, log.propagate = log.propagate, False
    log.addHandler(held)
    try:
        yield
    finally:
        log.removeHandler(held)
        log.propagate = propagate
    if tell:
        for message in held.messages:
            sys.stderr.write(f"graphweave {command}: note: {message}\n")
