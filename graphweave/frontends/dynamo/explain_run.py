"""An explanation of a whole program: of everything that is compiled while it runs, as it is compiled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from graphweave.compiler.report import GraphNote, KernelNote, Report, collect
from graphweave.core.counters import counters
from graphweave.core.spans import FirstCall, timed
from graphweave.frontends.dynamo.breaks import breaks_seen, breaks_since, every_recompilation
from graphweave.frontends.dynamo.explain import Explanation
from graphweave.frontends.dynamo.step_profile import StepClock
from graphweave.frontends.dynamo.steps import StepCounter


class ExplainedRun:
    """Within `running`, notes what is compiled; `explanation` is made of it afterwards.

    The program `what` ends after `limit` steps. With `measured`, steps are timed.
    """

    def __init__(self, what: str, limit: int | None = None, *, measured: bool = False) -> None:
        self._what = what
        self._clock = StepClock() if measured else None
        self._steps = StepCounter(limit) if self._clock is None else StepCounter(limit, self._clock.end)
        self._report, self._spent = Report(), FirstCall()
        self._breaks, self._seen = 0, 0

    @contextmanager
    def running(self) -> Iterator[None]:
        self._breaks, self._seen = counters()["graph_breaks"], breaks_seen()
        with ExitStack() as held:
            self._report, self._spent = held.enter_context(collect()), held.enter_context(timed())
            held.enter_context(self._steps.counted())
            if self._clock is not None:
                held.enter_context(self._clock.running())
            yield

    @property
    def compiled(self) -> bool:
        """Whether a function was called that is compiled, or could not be."""
        report = self._report
        return bool(report.captures or report.left or report.eager)

    @property
    def num_steps(self) -> int:
        return self._steps.number

    def explanation(self) -> Explanation:
        """The explanation of all that was compiled. Its `time` is that of compilations alone."""
        report, spent = self._report, self._spent
        seconds = sum(span.own for span in spent.spans if span.thread == spent.thread)
        clock = self._clock
        return Explanation(
            self._what, "", tuple(report.captures), tuple(report.rewrites),
            tuple(report.graphs) if clock is None else _measured(report.graphs, clock.per_run()),
            tuple(dict.fromkeys(report.eager)), counters()["graph_breaks"] - self._breaks, breaks_since(self._seen),
            every_recompilation(), tunings=tuple(report.tunings), passes=tuple(report.passes),
            budgets=tuple(report.budgets), left=tuple(dict.fromkeys(report.left)), time=replace(spent, seconds=seconds),
            forms=tuple(report.forms),
            step=None if clock is None else clock.profile(self._steps),
        )  # fmt: skip


def _measured(graphs: Sequence[GraphNote], seconds: Mapping[str, float]) -> tuple[GraphNote, ...]:
    """`graphs` with the seconds of one run of each kernel."""

    def timed_kernel(note: KernelNote) -> KernelNote:
        return note if note.cost is None else replace(note, cost=replace(note.cost, seconds=seconds.get(note.label)))

    return tuple(
        replace(g, kernels=tuple(map(timed_kernel, g.kernels)), once=tuple(map(timed_kernel, g.once))) for g in graphs
    )
