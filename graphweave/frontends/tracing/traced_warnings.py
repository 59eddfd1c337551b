"""Warnings of traced code, which Dynamo alone leaves to Python, with a break of the graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch._dynamo.variables import ConstantVariable, VariableTracker

_Handler = Callable[..., VariableTracker]


def warns_while_tracing(original: _Handler) -> _Handler:
    """`warnings.warn` of a text that does not depend on data.

    It is issued while the function is traced, from the user's line. Compiled calls do not repeat it, as Python's own
    filter repeats no warning of a line. What a filter makes an error is left to Python, which raises it.
    """

    def call_function(
        self: Any, tx: object, args: Sequence[VariableTracker], kwargs: Mapping[str, VariableTracker]
    ) -> VariableTracker:
        if self.value is warnings.warn and all(a.is_python_constant() for a in (*args, *kwargs.values())):
            try:
                _warn(
                    tx,
                    *(a.as_python_constant() for a in args),
                    **{k: a.as_python_constant() for k, a in kwargs.items()},
                )
                return ConstantVariable.create(None)
            except Warning:
                pass
        return original(self, tx, args, kwargs)

    return call_function


def _warn(tx: Any, message: str, category: type[Warning] | None = None, stacklevel: int = 1, **others: object) -> None:
    """Issues a warning from the line that the tracer has reached, or `stacklevel` - 1 calls above it."""
    frame = tx
    for _ in range(stacklevel - 1):
        frame = frame.parent or frame
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    place = (frame.f_code.co_filename, frame.lineno, frame.f_globals.get("__name__"), registry)
    warnings.warn_explicit(message, category or UserWarning, *place, source=others.get("source"))
