"""The code that Dynamo could not trace or traced again, with reasons and lines, for `explain`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from torch._dynamo.utils import graph_break_reasons, guard_failures

from graphweave.core.lines import NOWHERE, Location, is_frontend, own_frame, shown_code
from graphweave.frontends.dynamo.argument_names import in_user_names, parameters_of
from graphweave.frontends.tracing.dropped_frames import LOOP_IN_PYTHON
from graphweave.frontends.tracing.reasons import function_name, line_of, one_line


@dataclass(frozen=True, slots=True)
class Break:
    """A graph break: `why` in one line, `where` its line, and `reason` as Dynamo gives it, with its hints.

    `times` counts how often it was met, over all calls of the line and all settings that were tried.
    """

    why: str
    where: Location
    reason: str
    times: int


@dataclass(frozen=True, slots=True)
class Recompilation:
    """A function that was compiled again, the guard that had failed, and the line of the function."""

    what: str
    why: str
    where: str


def breaks_since(seen: int) -> tuple[Break, ...]:
    """The graph breaks that Dynamo has listed after the first `seen`, one for each line."""
    found: dict[Location, list[str]] = {}
    for reason in graph_break_reasons[seen:]:
        found.setdefault(_where(reason.user_stack), []).append(str(reason.reason).strip())
    # Dynamo lists a break at a branch twice, once as plain text.
    longest = {
        where: max(texts, key=lambda text: (LOOP_IN_PYTHON in text, len(text))) for where, texts in found.items()
    }
    return tuple(Break(_why(text), where, text, len(found[where])) for where, text in longest.items())


def _why(reason: str) -> str:
    """A reason in one line. For a call of a rewritten function, PyTorch writes our reason in brackets."""
    _, ours, rest = reason.partition(LOOP_IN_PYTHON)
    return ours + rest.partition("\n")[0].rstrip(" )") if ours else one_line(reason)


def breaks_seen() -> int:
    return len(graph_break_reasons)


def recompilations(target: Callable[..., object], name: str, *, of_others: bool) -> tuple[Recompilation, ...]:
    """The recompilations since Dynamo's last reset, with the guard that failed first at each compiled version.

    Only `target`, whose traced wrapper is called `name`, is reported, unless `of_others` asks for other functions too.
    """
    out: dict[Recompilation, None] = {}
    parameters = parameters_of(target)
    for code, reasons in guard_failures.items():
        mine = code.co_name == name
        if mine or of_others:
            where = line_of(target) if mine else shown_code(code)
            out.update((one, None) for one in _recompiled(code, reasons, where, parameters))
    return tuple(out)


def every_recompilation() -> tuple[Recompilation, ...]:
    """The same for every function. Those behind `graphweave.compile` have no line."""
    found: dict[Recompilation, None] = {}
    for code, reasons in guard_failures.items():
        where = "" if is_frontend(code.co_filename) else shown_code(code)
        found.update((one, None) for one in _recompiled(code, reasons, where, ()))
    return tuple(found)


def _recompiled(
    code: CodeType, reasons: Sequence[object], where: str, parameters: Sequence[str]
) -> Iterator[Recompilation]:
    first: dict[str, str] = {}
    for reason in reasons:  # one for each compiled version that did not fit
        version, _, why = str(reason).partition(": ")
        first.setdefault(version, why.partition("\n")[0])
    what = function_name(code.co_name)
    for why in first.values():
        yield Recompilation(what, in_user_names(why, parameters), where)


def _where(stack: Sequence[Any]) -> Location:
    """The innermost line, and the user's own if that is another."""
    if not stack:
        return NOWHERE
    inner, own = stack[-1], own_frame(stack)
    return Location(inner.filename, inner.lineno, called_from=own and Location(own.filename, own.lineno))
