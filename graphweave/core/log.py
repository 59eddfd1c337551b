"""`GRAPHWEAVE_LOGS=passes,+codegen` on the standard logging module: one logger per room, named as its package."""

from __future__ import annotations

import logging

from graphweave.core import locks
from graphweave.core.errors import SettingsError
from graphweave.core.settings import settings

ROOMS = (
    "core", "ir", "analysis", "passes", "schedule", "lower", "codegen", "runtime", "graph", "ops", "nn", "sampling",
    "data", "compiler", "frontends", "testing", "cli",
)  # fmt: skip

_lock = locks.lock()
_configured = False
_warned: set[str] = set()


def parse_logs(text: str) -> dict[str, int]:
    """`passes,+codegen` -> {"passes": INFO, "codegen": DEBUG}; `all` stands for every room, later parts win."""
    levels: dict[str, int] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        level = {"+": logging.DEBUG, "-": logging.ERROR}.get(part[0], logging.INFO)
        name = part.lstrip("+-")
        if name != "all" and name not in ROOMS:
            raise SettingsError(f"GRAPHWEAVE_LOGS must list rooms out of all, {', '.join(ROOMS)} (got {name!r}).")
        levels.update(dict.fromkeys(ROOMS if name == "all" else (name,), level))
    return levels


def configure(text: str) -> None:
    """Sets the level of each room's logger; rooms not named keep reporting warnings only."""
    global _configured
    levels = parse_logs(text)
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
    """The logger of a module: `log = logger(__name__)`. The first call applies GRAPHWEAVE_LOGS."""
    with _lock:
        if not _configured:
            configure(settings().logs)
    return logging.getLogger(name)


def warn_once(log: logging.Logger, message: str) -> None:
    """Logs a warning the first time this text is seen in the process, and never again."""
    with _lock:
        if message in _warned:
            return
        _warned.add(message)
    log.warning("%s", message)
