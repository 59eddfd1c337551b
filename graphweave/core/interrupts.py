"""Exceptions that a signal's handler raised: a time limit, an interrupt. They say nothing about what was running."""

from __future__ import annotations

import functools
import signal
from types import CodeType
from typing import Any

from graphweave.core.errors import MemoryBudgetError, ScheduleError, ShardError


def interrupt_in(error: BaseException) -> BaseException | None:
    """The exception that the handler of a signal raised, or the refusal of the user's schedule (`refusal_in`), if it is
    `error` or led to `error`; None for any other error.

    Python runs a handler between two instructions of the running code, so the handler stands in the traceback.
    """
    codes = _handlers()
    return (_find(error, codes, set()) if codes else None) or refusal_in(error)


def refusal_in(error: BaseException) -> BaseException | None:
    """The refusal of the user's schedule, of a budget of memory, or of a model over parts, if it is `error` or led to
    `error`. It is raised, never worked around."""
    seen: set[int] = set()
    todo: list[Any] = [error]
    while todo:
        found = todo.pop()
        if not isinstance(found, BaseException) or id(found) in seen:
            continue
        if isinstance(found, ScheduleError | ShardError | MemoryBudgetError):
            return found
        seen.add(id(found))
        todo += [getattr(found, "inner_exception", None), found.__cause__, found.__context__]
    return None


def _find(error: object, codes: set[CodeType], seen: set[int]) -> BaseException | None:
    """The first exception in the chain behind `error` that was raised while one of `codes` ran; None if there is none.

    The chain is searched from its oldest exception on, because PyTorch's wrappers take over the traceback of the
    exception they wrap.
    """
    if not isinstance(error, BaseException) or id(error) in seen:
        return None
    seen.add(id(error))
    for behind in (getattr(error, "inner_exception", None), error.__cause__, error.__context__):
        found = _find(behind, codes, seen)
        if found is not None:
            return found
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return error
        trace = trace.tb_next
    return None


def _handlers() -> set[CodeType]:
    found = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        if callable(handler) and not hasattr(handler, "__code__"):  # an object with a method __call__
            handler = type(handler).__call__
        code = getattr(handler, "__code__", None)  # a method has the code of its function
        if isinstance(code, CodeType):
            found.add(code)
    return found
