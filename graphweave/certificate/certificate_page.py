"""A certificate as a web page that stands by itself."""

from __future__ import annotations

from graphweave.certificate.certificate_text import (
    about,
    machine_rows,
    most_wrong,
    title,
    value_row,
    verdict,
)
from graphweave.certificate.findings import Findings
from graphweave.certificate.judge import ValueCheck
from graphweave.core.break_even import seconds_text
from graphweave.pages.elements import Content, Html, facts, join, section, table, tag
from graphweave.pages.frame import page


def as_page(found: Findings) -> str:
    """All values, everything else that was found, and the limits by which values are judged."""
    return page(f"Certificate of {title(found)}", [_summary(found), _errors(found), _rest(found), _machine(found)])


def _summary(found: Findings) -> Html:
    times, steps = found.break_even, found.break_even.steps
    body = facts({
        "verdict": verdict(found),
        "largest relative error": max((value.compiled.relative for value in found.values), default=0.0),
        "that of eager mode": max((value.eager.relative for value in found.values), default=0.0),
        "a step, compiled": seconds_text(times.compiled_step_seconds),
        "a step, eagerly": seconds_text(times.eager_step_seconds),
        "compiling has paid after": "never" if steps is None else f"{steps:,} step{'s' if steps > 1 else ''}",
    })  # fmt: skip
    problems = tag("ul", *(tag("li", problem) for problem in found.problems)) if found.problems else Html("")
    note = "It passes if every value is within its limit, and two runs with the same seed give the same bits."
    return section("Verdict", join([body, problems]), note)


def _errors(found: Findings) -> Html:
    note = (
        f"Compared with {found.reference}. An error is allowed up to {found.limits_text()}. Relative errors are those "
        "of the largest number of a tensor; ulps are units in the last place of each number. The worst stand first."
    )
    header = (
        "value", "verdict", "relative", "relative (eager)", "allowed", "absolute", "absolute (eager)", "ulps",
        "ulps (eager)", "of",
    )  # fmt: skip
    rows = map(_row, most_wrong(found.values))
    return section("Errors", table(header, rows, "Errors of the compiled program and of eager mode"), note)


def _row(value: ValueCheck) -> tuple[Content, ...]:
    name, of, *_ = value_row(value)
    ours, eager = value.compiled, value.eager
    said = tag("strong", "wrong") if value.problem else f"ok, {value.ties:,} by ties" if value.ties else "ok"
    return (name, said, ours.relative, eager.relative, value.allowed, ours.absolute, eager.absolute, ours.ulps,
            eager.ulps, of)  # fmt: skip


def _rest(found: Findings) -> Html:
    return section("What else was found", table(("about", "found"), about(found).items(), "Everything but the errors"))


def _machine(found: Findings) -> Html:
    return section("Measured on", table(("what", "which"), machine_rows(found).items(), "Versions and machine"))
