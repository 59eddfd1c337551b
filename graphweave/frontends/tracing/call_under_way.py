"""A call, under way, of a function behind `graphweave.compile`, as compilations in it see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch._dynamo
from torch._dynamo.utils import graph_break_reasons

BreakCounts = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """PyTorch's settings for one compilation: those of `torch._dynamo.config`, and those of symbolic shapes.

    With `any_rows`, nothing is decided by the numbers of rows at hand, since other ranks have others: the whole graph
    has rows, whether this rank has any or not. With `all_keys`, dictionaries have all keys that calls give in part.
    """

    dynamo: Mapping[str, Any]
    shapes: Mapping[str, Any]
    any_rows: bool = False
    all_keys: bool = False


@dataclass(slots=True)
class CallUnderWay:
    """A call, under way, of a function behind `graphweave.compile`, for frames that have to be compiled in it.

    `backend` is that of the function. `settings` are tried for each frame in turn, of which `attempt` counts.
    `outermost` is the code of the frame in which the call begins: before it is compiled, nothing of the user's has run.
    `last` says that no call with other settings follows if this frame cannot be traced.
    """

    backend: Callable[..., Any]
    settings: Sequence[CaptureSettings]
    outermost: CodeType
    last: bool
    floats: dict[tuple[CodeType, str], float] = field(default_factory=dict)
    """The value of each Python float that has been traced for the function, by its frame and its place there; not a
    number if it has had several, so that it is a symbol."""
    inner_leaves: set[tuple[CodeType, str]] = field(default_factory=set)
    """The arguments by which the function takes gradients inside itself, without having said so: frame and source."""
    compile_whole: CompileWhole | None = None
    """Compiles the outermost frame, given PyTorch's arguments, this call, and how PyTorch compiles it."""
    arguments: tuple[Any, ...] = ()
    attempt: int = 0
    breaks_before: BreakCounts | None = None
    """PyTorch's counts before the first compilation in this call. None if the call has compiled nothing."""
    failed: Exception | None = None
    """Why the outermost frame could not be traced."""
    left: dict[CodeType, Exception] = field(default_factory=dict)
    """Frames that this call runs as Python, and why."""


CompileWhole = Callable[[Mapping[str, Any], CallUnderWay, Callable[[], Any]], Any]

under_way: ContextVar[CallUnderWay | None] = ContextVar("under_way", default=None)
"""The call that is under way in this thread, for what is traced and logged in it."""


def breaks_so_far() -> BreakCounts:
    """PyTorch's counts of operations that it could not trace, of graph breaks, and of reasons that it has listed.

    Branches and loops are counted only in the first. Breaks that depend on data are counted only in the last, which may
    list a break twice.
    """
    counts = torch._dynamo.utils.counters
    return sum(counts["unimplemented"].values()), sum(counts["graph_break"].values()), len(graph_break_reasons)


def breaks_since(before: BreakCounts) -> int:
    now = breaks_so_far()
    counted = max(now[0] - before[0], now[1] - before[1], 0)
    lines = {str(r.user_stack[-1]) for r in graph_break_reasons[before[2] :] if r.user_stack}
    return max(counted, len(lines))
