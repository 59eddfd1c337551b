"""`GRAPHWEAVE_LOGS=passes,+codegen` on the standard logging module: one logger per room, named as its package."""

from __future__ import annotations

import logging
import warnings
from contextlib import suppress

from graphweave.core import locks
from graphweave.core.errors import SettingsError
from graphweave.core.settings import ROOMS, log_levels, settings

_lock = locks.lock()
_configured = False
_warned: set[str] = set()


def configure(text: str) -> None:
    """Sets the level of each room's logger; rooms not named keep reporting warnings only."""
    global _configured
    levels = log_levels(text)
    _configured = True
    root = logging.getLogger("graphweave")
    if levels and not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
        root.addHandler(handler)
        root.propagate = False  # the root logger may have a handler too: each line once
    for room in ROOMS:
        logging.getLogger(f"graphweave.{room}").setLevel(levels.get(room, logging.NOTSET))


def logger(name: str) -> logging.Logger:
    """The logger of a module: `log = logger(__name__)`. The first call applies GRAPHWEAVE_LOGS.

    A variable that cannot be used is no reason for an import to fail: it is refused where the settings are needed.
    """
    with _lock:
        if not _configured:
            with suppress(SettingsError):
                configure(settings().logs)
    return logging.getLogger(name)


def warn_once(message: str, log: logging.Logger | None = None) -> None:
    """Warns the first time this text is seen in the process, and never again.

    Where the user's own code is what to look at, it is a UserWarning, which they may filter or turn into an error; of
    the machine that it runs on a line of `log` tells.
    """
    with _lock:
        if message in _warned:
            return
        _warned.add(message)
    if log is None:
        warnings.warn(message, stacklevel=2)
    else:
        log.warning("%s", message)
