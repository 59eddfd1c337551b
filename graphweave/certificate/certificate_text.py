"""A certificate as text: the verdict, a table of errors, and a line for everything else."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from graphweave.certificate.findings import Findings, Repeats
from graphweave.certificate.judge import ValueCheck
from graphweave.core.break_even import seconds_text

_MAX_VALUES = 16
"""The text shows this many values, those that come closest to their limits. JSON and the page have all."""
_WIDTH = 110
"""Width in characters of a line of text. What is longer goes on in the next line."""

_LEAST_BYTES = 1 << 17
"""A peak below this many bytes tells more of the allocator than of the program."""

HEADER = ("value", "of", "absolute", "relative", "ulps", "eager's relative", "eager's ulps", "allowed", "")
"""Columns of the table of errors. Errors without a name of their own are those of the compiled program."""


def as_text(found: Findings) -> str:
    shown = most_wrong(found.values)[:_MAX_VALUES]
    lines = [f"{title(found)}: {verdict(found)}", *(f"  {problem}" for problem in found.problems), ""]
    lines += _aligned([HEADER, *map(value_row, shown)])
    if len(found.values) > len(shown):
        lines.append(f"and {len(found.values) - len(shown):,} more values, which are further from their limits")
    lines.append("")
    rows = {**about(found), **machine_rows(found)}
    left = max(map(len, rows))
    for name, text in rows.items():
        first, *others = textwrap.wrap(text, _WIDTH - left, break_on_hyphens=False) or [""]
        lines += [f"{name:<{left}}  {first}", *(f"{'':<{left}}    {more}" for more in others)]
    return "\n".join(lines) + "\n"


def title(found: Findings) -> str:
    return f"{found.what} ({found.where})" if found.where else found.what


def verdict(found: Findings) -> str:
    number = len(found.problems)
    return "passed" if found.ok else f"FAILED, {number} problem{'s' if number > 1 else ''}"


def most_wrong(values: Sequence[ValueCheck]) -> list[ValueCheck]:
    """Values with problems first, then those whose errors take the largest shares of what is allowed."""

    def share(value: ValueCheck) -> float:
        return value.compiled.relative / value.allowed if value.allowed else value.compiled.relative

    return sorted(values, key=lambda value: (value.ok, -share(value)))


def value_row(value: ValueCheck) -> tuple[str, ...]:
    on = f" (other data {value.data})" if value.data else ""
    shape = " x ".join(map(str, value.shape)) or "number"
    ours, eager = value.compiled, value.eager
    numbers = (f"{ours.absolute:.2g}", f"{ours.relative:.2g}", _ulps(ours.ulps), f"{eager.relative:.2g}",
               _ulps(eager.ulps), f"{value.allowed:.2g}")  # fmt: skip
    ties = f"{value.ties:,} tie{'s' if value.ties > 1 else ''}" if value.ties else ""
    said = "wrong" if value.problem else ties or "ok"
    return (value.name + on, f"{shape}, {value.dtype}", *numbers, said)


def _ulps(number: float) -> str:
    return f"{number:.1f}" if number < 10 else f"{number:,.0f}" if number < 1e6 else f"{number:.1g}"


def about(found: Findings) -> dict[str, str]:
    """The facts to print besides errors, by heading."""
    rows = {"compared with": found.reference, "random numbers": found.randomness}
    ties = sum(value.ties for value in found.values)
    if ties:
        rows["ties"] = f"{ties:,} numbers differ since rounding decides a comparison the other way; that is no mistake"
    rows["repeated"] = _repeated(found.repeats)
    parts = found.compiled
    rows["compiled"] = f"{_many(parts.graphs, 'graph')} as {_many(parts.kernels, 'kernel')}"
    rows["left to PyTorch"] = _listed([f"{x.what}: {x.why}{_at(x.where)}" for x in parts.left_to_pytorch])
    rows["runs eagerly"] = _listed(parts.eager)
    rows["graph breaks"] = _listed([f"{x.why}{_at(x.where)}" for x in parts.breaks], parts.graph_breaks)
    rows["compiled again"] = _compiled_again(found)
    rows["a step"] = _step(found)
    rows["break-even"] = found.break_even.text()
    own, eager = found.peak_bytes
    if own is not None and eager is not None:
        rows["peak memory"] = f"{_bytes(own)} for a step, {_bytes(eager)} in eager mode"
        if max(own, eager) < _LEAST_BYTES:
            rows["peak memory"] = "a step takes too little to measure"
    for name, why in found.uncopied.items():
        rows[f"shared: {name}"] = why
    return rows


def machine_rows(found: Findings) -> dict[str, str]:
    cpu = found.machine["cpu"]
    devices = [device["name"] for device in found.machine["cuda"]["devices"]]
    return {
        "versions": ", ".join(f"{name} {version}" for name, version in found.versions.items()),
        "machine": ", ".join([f"{cpu['model']}, {cpu['usable']} of {cpu['cores']} cores, "
                              f"{_many(cpu['threads'], 'thread')}", *devices]),
    }  # fmt: skip


def _repeated(repeats: Repeats) -> str:
    if not repeats.eager_twice:
        return "not judged, as eager mode itself does not repeat its numbers"
    twice = f"two runs give {'the same bits' if repeats.twice else 'DIFFERENT bits'}"
    if repeats.across_threads is None:
        return f"{twice}; there is no other number of threads to try"
    own, other = repeats.threads
    across = "the same bits" if repeats.across_threads else "other bits"
    eager = "the same" if repeats.eager_across_threads else "others"
    return f"{twice}; {own} and {other} threads give {across} (in eager mode {eager})"


def _compiled_again(found: Findings) -> str:
    _, second, *others = found.compiled.compilations
    calls = {"a second call": second, **{f"other data {i + 1}": number for i, number in enumerate(others)}}
    said = ", ".join(f"{_many(number, 'graph') if number else 'nothing'} by {call}" for call, number in calls.items())
    return "; ".join([said, *(f"{x.what}{_at(x.where)}: {x.why}" for x in found.compiled.recompiled)])


def _step(found: Findings) -> str:
    times = found.break_even
    ratio = times.eager_step_seconds / times.compiled_step_seconds if times.compiled_step_seconds else 0.0
    own, eager = seconds_text(times.compiled_step_seconds), seconds_text(times.eager_step_seconds)
    said = f"{own} compiled, {eager} in eager mode: {ratio:.2f} times as fast"
    other = found.inductor
    if other.step_seconds is None or other.first_call_seconds is None:
        return f"{said}; torch.compile's own backend: {other.why}"
    return (
        f"{said}; {seconds_text(other.step_seconds)} by torch.compile's own backend, whose first took "
        f"{seconds_text(other.first_call_seconds)}"
    )


def _listed(reasons: Sequence[str], number: int | None = None) -> str:
    number = len(reasons) if number is None else number
    if not number:
        return "nothing" if not reasons else "; ".join(reasons)
    return f"{number}: " + "; ".join(reasons) if reasons else str(number)


def _at(where: str) -> str:
    return f" ({where})" if where else ""


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _bytes(number: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number} bytes"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The rows as lines, with the first two columns and the last set to the left, and numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if i in (0, 1, len(row) - 1) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
