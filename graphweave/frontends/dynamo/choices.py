"""Guards on choices made by cost: a graph for which another form of the program is better compiles anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from graphweave.core.types import UNIT, Space
from graphweave.frontends.dynamo.captured_sizes import Size, unbacked
from graphweave.passes.rewritten import Step

SLACK = 2e-3
"""Seconds by which the other form must be better: below, compiling anew would cost more than it gains."""

_MOST = 4  # guards of one graph: each is checked at every call
_UNIT = 1e12  # seconds are counted in whole picoseconds


def guard_choices(steps: Iterable[Step], rows: Mapping[Space, Size]) -> None:
    """Adds a guard for each choice that a graph of other sizes would turn around, the closest ones first.

    Sizes that data decides cannot be guarded; their choices stay as they are.
    """
    found: dict[tuple[tuple[Space, float], ...], float] = {}
    for step in steps:
        sign = 1 if step.taken else -1
        slopes = tuple((s, sign * d) for s, d in step.per_row if s != UNIT)
        known = all(s in rows and not unbacked(rows[s]) for s, _ in slopes)
        if known and any(d < 0 for _, d in slopes):
            found[slopes] = abs(step.seconds)
    for slopes in sorted(found, key=lambda s: found[s])[:_MOST]:
        _guard(slopes, rows)


def _guard(slopes: Iterable[tuple[Space, float]], rows: Mapping[Space, Size]) -> None:
    gain: Size = 0
    for space, seconds in slopes:
        gain = gain + round(seconds * _UNIT) * rows[space]
    bool(gain >= -round(SLACK * _UNIT))
