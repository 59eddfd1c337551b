"""Notes of loaders about a data file, as lines of the command."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_LOADERS = "graphweave.data"


@contextmanager
def told_after(command: str, *, tell: bool = True) -> Iterator[None]:
    """Within the block, what loaders warn of is held back. Where the block ends without an error, it is written to
    stderr, a line each, if `tell`: so an error of bad input stands alone."""
    held: list[logging.LogRecord] = []
    handler, log = logging.Handler(logging.WARNING), logging.getLogger(_LOADERS)
    handler.emit = held.append  # type: ignore[method-assign]
    propagate, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = propagate
    if tell:
        for record in held:
            sys.stderr.write(f"graphweave {command}: note: {record.getMessage()}\n")
