"""`graphweave.explain`: a report of what the compiler made of a function."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, get_args

import torch
import torch._dynamo

from graphweave.compiler.kernels_text import kernels_text
from graphweave.compiler.report import (
    CaptureNote,
    FormsNote,
    GraphNote,
    MemoryBudgetNote,
    PassNote,
    RewriteNote,
    TuningNote,
    collect,
)
from graphweave.core.break_even import BreakEven
from graphweave.core.counters import counters
from graphweave.core.errors import SettingsError
from graphweave.core.spans import FirstCall, time_text, timed
from graphweave.frontends.dynamo.breaks import (
    Break,
    Recompilation,
    breaks_seen,
    breaks_since,
    recompilations,
)
from graphweave.frontends.dynamo.captured import name_of
from graphweave.frontends.dynamo.compile import compile
from graphweave.frontends.dynamo.explain_data import explained_data
from graphweave.frontends.dynamo.explain_details import break_even_text, costs_text, ir_text, loops_text, passes_text
from graphweave.frontends.dynamo.explain_measured import step_text
from graphweave.frontends.dynamo.explain_summary import Row, as_table, as_text, summary
from graphweave.frontends.dynamo.step_profile import StepProfile
from graphweave.frontends.dynamo.step_times import break_even
from graphweave.frontends.dynamo.uncompiled import original_of
from graphweave.frontends.tracing.reasons import line_of
from graphweave.pages.explained.data import ExplainedData
from graphweave.pages.explained.page import explained_page
from graphweave.tuning.rates import rates

Detail = Literal["short", "kernels", "loops", "costs", "ir", "passes", "time", "break-even", "all"]
"""How much `explain` prints: only the short form, or also each kernel's code, each kernel's loop IR, the choices made
by cost, the message IR, the passes that ran, the seconds of each stage, when compiling has paid, or all of these."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A record of how a function was compiled. It prints as the short form (on a terminal as a table), followed by
    `detail`.

    `captures` and `rewrites` have one entry for each captured graph, `graphs` one for each compiled graph (forward,
    backward, inference), `tunings` one for each graph that was tuned. `passes` are those that ran, in order, and `left`
    the graphs that run as PyTorch's own, since they would gain nothing. `eager` says what runs eagerly and why.
    `breaks` are the graph breaks whose lines PyTorch reports; `graph_breaks` counts all of them. `recompiled` lists
    what was compiled again, before and during `explain`. `time` has the seconds of the call by stage. `break_even` is
    measured with `detail="break-even"` only, as that takes more calls. `step` is measured by `graphweave profile` only.
    `budgets` has one for each graph whose step has to fit into some memory. `forms` are the decisions between forms of
    a graph's program, with the price of each for the graph at hand.
    """

    what: str
    where: str
    captures: tuple[CaptureNote, ...]
    rewrites: tuple[RewriteNote, ...]
    graphs: tuple[GraphNote, ...]
    eager: tuple[str, ...]
    graph_breaks: int
    breaks: tuple[Break, ...]
    recompiled: tuple[Recompilation, ...]
    detail: Detail = "short"
    tunings: tuple[TuningNote, ...] = ()
    passes: tuple[PassNote, ...] = ()
    left: tuple[str, ...] = ()
    time: FirstCall = field(default_factory=FirstCall)
    break_even: BreakEven | None = None
    step: StepProfile | None = None
    budgets: tuple[MemoryBudgetNote, ...] = ()
    forms: tuple[FormsNote, ...] = ()

    def rows(self) -> list[Row]:
        """The lines of the short form."""
        return summary(self)

    def text(self, detail: Detail = "short") -> str:
        """The short form as text, followed by `detail`. Raises SettingsError for an unknown detail."""
        return "\n".join([as_text(self.rows()), *self._details(checked(detail))])

    def data(self) -> ExplainedData:
        """All of it as plain data (`dataclasses.asdict` gives JSON), which the page is made from. Bounds of kernels are
        those of this machine, or of the CUDA device, whose rates the first call on a machine measures."""
        device = next((g.device for g in self.graphs if g.device != "cpu"), "cpu")
        return explained_data(self, rates(device))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the explanation to a file, and return its path. The ending says in which form: ".html" is one page
        with all that it needs, ".json" its data, ".txt" the text with all details. Raises SettingsError for others."""
        path = Path(path)
        match path.suffix:
            case ".html":
                text = explained_page(self.data())
            case ".json":
                text = json.dumps(asdict(self.data()), indent=1)
            case ".txt":
                text = self.text("all")
            case _:
                raise SettingsError(
                    f"save: {str(path)!r} does not say which form is wanted. Let it end in .html, .json or .txt."
                )
        path.write_text(text, encoding="utf-8")
        return path

    def __str__(self) -> str:
        if sys.stdout is not None and sys.stdout.isatty():
            return "\n".join([as_table(self.rows()), *self._details(self.detail)])
        return self.text(self.detail)

    def _details(self, detail: Detail) -> list[str]:
        parts = [] if self.step is None else [step_text(self.step, self.graphs)]
        if detail in ("costs", "all"):
            parts += [costs_text(r) for r in self.rewrites]
        if detail in ("passes", "all"):
            parts += [passes_text(self.passes)]
        if detail in ("time", "all"):
            parts += [time_text(self.time)]
        if detail == "break-even" or (detail == "all" and self.break_even is not None):
            parts += [break_even_text(self.break_even, compiled=bool(self.graphs))]
        if detail in ("ir", "all"):
            parts += [ir_text(self)]
        if detail in ("loops", "all"):
            parts += [loops_text(g) for g in self.graphs]
        if detail in ("kernels", "all"):
            parts += [kernels_text(g, wrapper=detail == "all") for g in self.graphs]
        return parts


def explain(fn: Callable[..., object], *args: object, detail: Detail = "short", **kwargs: object) -> Explanation:
    """Compile `fn` again for `args`, run it once, and report with the user's lines what was captured, the kernels,
    launches and bytes compared to eager mode, what was left to PyTorch and why, graph breaks, and recompilations.

    `fn` is a module or function. If it is compiled already, its options are kept. If its result requires a gradient, a
    backward is compiled too, but not run. All compiled code, including that of other functions, is dropped and built
    again at the next call. `detail` says what is printed besides the short form: "short" adds nothing, "kernels" the
    code of each kernel, "loops" its loop IR and the fields of a schedule that it ignores, "costs" what the rewriting
    chose and refused with both costs, "ir" the message IR, "passes" what each pass changed and how long it took,
    "time" where the seconds of the call went, and "all" all of these. "break-even" also measures a step, forward and
    backward, compiled and by PyTorch's own calls, and says after how many steps the first call has paid: `fn` then runs
    up to a dozen times, with gradients, buffers and random state left as they were.
    """
    checked(detail)
    target, dynamic, options = original_of(fn)
    name = f"traced_{name_of(target)}"
    before = recompilations(target, name, of_others=False)
    torch._dynamo.reset()
    count, seen = counters()["graph_breaks"], breaks_seen()
    compiled = compile(target, dynamic=dynamic, options=options)
    with collect() as report, timed() as call:
        compiled(*args, **kwargs)
    explanation = Explanation(
        name_of(target), line_of(target), tuple(report.captures), tuple(report.rewrites), tuple(report.graphs),
        tuple(dict.fromkeys(report.eager)), counters()["graph_breaks"] - count, breaks_since(seen),
        before + recompilations(target, name, of_others=True), detail,
        tuple(report.tunings), tuple(report.passes), tuple(dict.fromkeys(report.left)),
        call, break_even(target, compiled, args, kwargs, call.seconds) if detail == "break-even" else None,
        budgets=tuple(report.budgets),
        forms=tuple(report.forms),
    )  # fmt: skip
    torch._dynamo.reset()
    return explanation


def checked(detail: str) -> Detail:
    if detail not in get_args(Detail):
        known = ", ".join(map(repr, get_args(Detail)))
        raise SettingsError(
            f"explain: unknown detail {detail!r}; expected one of {known}. Leave it out for the short form."
        )
    return detail  # type: ignore[return-value]
