"""Guards on choices made by cost: a call whose sizes make another form of the program better is compiled again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from graphweave.core.types import UNIT, Space
from graphweave.frontends.calls.captured_sizes import Size, unbacked
from graphweave.passes.rewritten import Step

SLACK = 2e-3
"""The other form must be better by this many seconds. For less, compiling again would cost more than it gains."""

_MAX_GUARDS = 4
"""A graph has at most this many guards on choices, since each is checked at every call."""
_PICOSECONDS = 1e12
"""Picoseconds in a second: guards count whole picoseconds."""


def gains_enough(seconds: float) -> bool:
    """Whether another form that is better by so many seconds is worth being compiled."""
    return seconds > SLACK


def guard_choices(steps: Iterable[Step], rows: Mapping[Space, Size]) -> None:
    """Add guards for choices that would be made differently for other sizes, the closest choices first.

    Sizes that data decides cannot be guarded, so choices that depend on them stay.
    """
    found: dict[tuple[tuple[Space, float], ...], float] = {}
    for step in steps:
        sign = 1 if step.taken else -1
        slopes = tuple((s, sign * d) for s, d in step.per_row if s != UNIT)
        known = all(s in rows and not unbacked(rows[s]) for s, _ in slopes)
        if known and any(d < 0 for _, d in slopes):
            found[slopes] = abs(step.seconds)
    for slopes in sorted(found, key=lambda s: found[s])[:_MAX_GUARDS]:
        _guard(slopes, rows)


def _guard(slopes: Iterable[tuple[Space, float]], rows: Mapping[Space, Size]) -> None:
    gain: Size = 0
    for space, seconds in slopes:
        gain = gain + round(seconds * _PICOSECONDS) * rows[space]
    bool(gain >= -round(SLACK * _PICOSECONDS))
