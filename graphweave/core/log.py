"""`GRAPHWEAVE_LOGS=passes,+codegen` on the standard logging module: one logger per room, named as its package."""

from __future__ import annotations

import logging
import warnings
from contextlib import suppress

from graphweave.core import locks
from graphweave.core.errors import SettingsError
from graphweave.core.settings import LOGGED, log_levels, settings

_lock = locks.lock()
_configured = False
_warned: set[str] = set()


def configure(text: str) -> None:
    """Sets the level of each room's logger. Rooms that `text` does not name report warnings only, whatever level
    Python's root logger has, unless the user sets the level of the logger `graphweave`."""
    global _configured
    root = logging.getLogger("graphweave")
    if root.level == logging.NOTSET:
        root.setLevel(logging.WARNING)
    levels = log_levels(text)
    _configured = True
    if levels and not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
        root.addHandler(handler)
        root.propagate = False  # Python's root logger may have a handler too, which would write each line again
    for room in LOGGED:
        logging.getLogger(f"graphweave.{room}").setLevel(levels.get(room, logging.NOTSET))


def logger(name: str) -> logging.Logger:
    """The logger of a module: `log = logger(__name__)`. The first call applies GRAPHWEAVE_LOGS.

    An environment variable with a bad value does not make the import fail: `settings` refuses it where it is needed.
    """
    with _lock:
        if not _configured:
            with suppress(SettingsError):
                configure(settings().logs)
    return logging.getLogger(name)


def warn_once(message: str, log: logging.Logger | None = None) -> None:
    """Warns the first time this text is seen in the process, and never again.

    Without `log` it is a UserWarning, which the user may filter or turn into an error: meant for what the user's own
    code causes. With `log` it is a line of that logger: meant for what the machine causes.
    """
    with _lock:
        if message in _warned:
            return
        _warned.add(message)
    if log is None:
        warnings.warn(message, stacklevel=2)
    else:
        log.warning("%s", message)
