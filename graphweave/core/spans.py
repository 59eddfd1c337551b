"""Seconds of a first call by stage: what `explain(...).text("time")` and `GRAPHWEAVE_LOGS=time` show."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import get_ident

DYNAMO = "PyTorch: Dynamo"
AOT_AUTOGRAD = "PyTorch: AOTAutograd"
RESTORE = "restore from disk"
IMPORT = "import of the captured graph"
PASSES = "passes"
SEARCH = "search of the tuner"
PLAN = "plan of the kernels"
PRINT = "text of the kernels"
WAIT = "wait for kernels"
STORE = "store on disk"
LOAD = "load kernels and the library"
COMPILER = "C++ compiler"
STAGES = (DYNAMO, RESTORE, AOT_AUTOGRAD, IMPORT, PASSES, SEARCH, PLAN, PRINT, WAIT, LOAD, STORE, COMPILER)
"""The stages of a first call, in the order in which they are shown."""


@dataclass(slots=True, eq=False)
class Span:
    """A piece of work: its stage, `what` it worked on, the thread it ran in, and the clock when it began and ended.

    `inner` are the seconds of the spans within it, so that `own` seconds of all spans of one thread add up. `counts`
    says how much a search looked at.
    """

    stage: str
    what: str
    thread: int
    begun: float
    ended: float = 0.0
    inner: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def seconds(self) -> float:
        return self.ended - self.begun

    @property
    def own(self) -> float:
        return self.seconds - self.inner


@dataclass(slots=True, eq=False)
class FirstCall:
    """The spans that ended while a call was timed, in any thread, and the seconds of the whole call."""

    thread: int = field(default_factory=get_ident)
    spans: list[Span] = field(default_factory=list)
    seconds: float = 0.0


_within: ContextVar[Span | None] = ContextVar("_within", default=None)
"""The innermost span of the thread."""
_timed: list[FirstCall] = []
"""The calls that are timed now."""


@contextmanager
def span(stage: str, what: str = "") -> Iterator[Span]:
    """Time the block. It is kept by the calls that are timed when it ends."""
    outer = _within.get()
    made = Span(stage, what, get_ident(), time.perf_counter())
    token = _within.set(made)
    try:
        yield made
    finally:
        _within.reset(token)
        made.ended = time.perf_counter()
        if outer is not None:
            outer.inner += made.seconds
        for call in list(_timed):
            call.spans.append(made)


def count(what: str, number: int = 1) -> None:
    """Add to what the innermost span counts."""
    within = _within.get()
    if within is not None:
        within.counts[what] += number


@contextmanager
def timed() -> Iterator[FirstCall]:
    """Time the block, and keep the spans that end in it."""
    call, begun = FirstCall(), time.perf_counter()
    _timed.append(call)
    try:
        yield call
    finally:
        _timed.remove(call)
        call.seconds = time.perf_counter() - begun


def at_once(spans: list[Span]) -> tuple[int, float]:
    """The largest number of spans that ran at the same time, and the seconds in which at least one ran."""
    edges = sorted([(s.begun, 1) for s in spans] + [(s.ended, -1) for s in spans])
    running, most, busy, since = 0, 0, 0.0, 0.0
    for at, step in edges:
        busy += at - since if running else 0.0
        running, since = running + step, at
        most = max(most, running)
    return most, busy


def time_text(call: FirstCall) -> str:
    """The seconds of each stage in the thread of the call, then what ran in other threads meanwhile."""
    own = [s for s in call.spans if s.thread == call.thread]
    lines = [f"== time of the first call: {call.seconds:.3f} s"]
    for stage in STAGES:
        of_stage = [s for s in own if s.stage == stage]
        seconds = sum(s.own for s in of_stage)
        lines += _line(stage, seconds, call.seconds) if of_stage else []
        if stage == PASSES:
            for name in dict.fromkeys(s.what for s in of_stage):
                spans = [s for s in of_stage if s.what == name]
                spent, counts = sum(s.own for s in spans), sum((s.counts for s in spans), Counter[str]())
                looked = ", ".join(f"{number:,} {what}" for what, number in counts.items())
                if spent >= 0.001:
                    lines.append(f"--   {name:<24} {spent:9.3f} s  {looked}".rstrip())
    lines += _line("the call itself, and the rest", call.seconds - sum(s.own for s in own), call.seconds)
    runs = [s for s in call.spans if s.stage == COMPILER]
    if runs:
        most, busy = at_once(runs)
        slow = max(runs, key=lambda s: s.seconds)
        total = sum(s.seconds for s in runs)
        lines.append(
            f"-- the C++ compiler ran {len(runs)} times, {total:.3f} s in {busy:.3f} s, up to {most} at once; "
            f"the longest: {slow.what}, {slow.seconds:.3f} s"
        )
    return "\n".join(lines) + "\n"


def _line(stage: str, seconds: float, whole: float) -> list[str]:
    return [f"-- {stage:<32} {seconds:7.3f} s  {100 * seconds / whole:3.0f} %" if whole else f"-- {stage}"]
