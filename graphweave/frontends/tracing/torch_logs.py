"""Replaces PyTorch's page-long log messages during calls of functions that we compile by one line or none. Also skips
work that PyTorch does for log messages that are not enabled."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch._dynamo import convert_frame, guards, output_graph, symbolic_convert
from torch._dynamo.variables import tensor
from torch._subclasses import fake_tensor

from graphweave.compiler.report import record_eager
from graphweave.core.log import logger, warn_once
from graphweave.frontends.tracing.call_under_way import under_way

_log = logger(__name__)


@contextmanager
def refusals_untold() -> Iterator[None]:
    """Within the block, PyTorch does not log the traceback of a call that refuses its operands (features of another
    width, an index of floats). The error itself is raised, and says the same."""
    log = logging.getLogger(fake_tensor.__name__)
    log.addFilter(_no_refusal)
    try:
        yield
    finally:
        log.removeFilter(_no_refusal)


def _no_refusal(record: logging.LogRecord) -> bool:
    if record.levelno != logging.ERROR or record.exc_info is None:
        return True
    _log.debug("%s", record.getMessage(), exc_info=record.exc_info)
    return False


def _shortened(record: logging.LogRecord) -> bool:
    if under_way.get() is None or record.levelno != logging.WARNING:
        return True
    said = record.getMessage()
    limit = re.search(r"hit config\.\w*recompile_limit \((\d+)\)\s+function: '([^']*)' \((.*)\)", said)
    if limit is not None:
        number, name, where = limit.groups()
        last = re.search(r"last reason: (?:\d+/\d+: )?([^\n#]*)", said)
        why = f" The last was made because this did not hold: {last[1].strip()}." if last else ""
        text = f"{name} ({where}) was compiled {number} times, for arguments of as many kinds; others run eagerly."
        record_eager(f"{text}{why}")
        warn_once(f"graphweave: {text}{why} Compile the kinds apart, each by a graphweave.compile of its own.")
        return False
    if said.startswith("Graph break from `Tensor.item()`"):  # counted as a break; its advice is about other settings
        _log.info("%s", said.splitlines()[0])
        return False
    return True


_TRACES = [
    getattr(module, name)
    for module in (symbolic_convert, output_graph)
    for name in ("trace_call_log", "trace_source_log")
    if hasattr(module, name)
]
"""PyTorch's logs of traces."""
_find_name: Any = getattr(symbolic_convert, "get_funcname", None)


def _name_if_logged(filename: str, line: int) -> str | None:
    """The name of the function around a traced line; None unless traces are logged.

    PyTorch asks for the name at each call that it traces, even if nothing is logged, and reads whole files to find it.
    This takes 0.3 s of the first compilation of a process (PyTorch 2.13).
    """
    logged = any(log.isEnabledFor(logging.DEBUG) for log in _TRACES)
    return _find_name(filename, line) if logged else None


_time_guards: Any = getattr(guards, "profile_guard_manager", None)
_GUARDS: logging.Logger | None = getattr(guards, "guards_log", None)
"""PyTorch's log of guards; None in a version that has none."""


def _time_if_logged(manager: object, scope: object, times: int) -> float:
    """The time of guards with cold caches, in microseconds; 0 for functions that we compile, unless it is logged.

    PyTorch measures it after each compilation and flushes the processor's caches for it, which takes 0.02 to 0.15 s.
    """
    logged = _GUARDS is None or _GUARDS.isEnabledFor(logging.DEBUG)
    return 0.0 if under_way.get() is not None and not logged else _time_guards(manager, scope, times)


if _find_name is not None and _TRACES:
    vars(symbolic_convert)["get_funcname"] = _name_if_logged
if _time_guards is not None:
    vars(guards)["profile_guard_manager"] = _time_if_logged

for _module in (convert_frame, tensor):
    logging.getLogger(_module.__name__).addFilter(_shortened)
