"""Times calls in turns and drops the slow ones early: successive halving under a deadline."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from statistics import median

from graphweave.tuning.deadline import Deadline

_TURN = 2e-3
"""A turn has as many calls as fill about this many seconds."""

_MOST_CALLS = 50
"""A turn has at most this many calls."""

_HOPELESS = 2.0
"""A call that takes this many times the best after its first turn is not timed again."""

_ROUNDS = (1, 2, 3, 5)
"""Turns of those that are left in each round; after each round half of them are dropped, the last few never."""

_FEWEST = 3
"""So many calls are kept for the last round."""


def race(
    calls: Mapping[str, Callable[[], object]], expected: dict[str, float], deadline: Deadline, kept: str
) -> dict[str, float]:
    """The median seconds of each call that stayed to the end, `kept` among them in any case.

    `expected` has the seconds of one run of each call, and gets the best ones. The machine's slow moments affect all
    alike, since they run in turns. Where the deadline allows no turn, that one run is what counts.
    """
    times = {name: [expected[name]] for name in calls}
    left = [kept, *(name for name in calls if name != kept)]
    for turns in _ROUNDS:
        for _ in range(turns):
            _turn({name: calls[name] for name in left}, expected, times, deadline)
        left = [name for name in left if name == kept or _hopes(name, left, times)]
        in_order = sorted(left, key=lambda name: min(times[name]))
        best = in_order[: max(_FEWEST, (len(in_order) + 1) // 2)]
        left = [name for name in left if name in best or name == kept]
    return {name: median(times[name]) for name in left}


def _hopes(name: str, left: list[str], times: Mapping[str, list[float]]) -> bool:
    return min(times[name]) < _HOPELESS * min(min(times[other]) for other in left)


def _turn(
    calls: Mapping[str, Callable[[], object]], expected: dict[str, float], times: Mapping[str, list[float]],
    deadline: Deadline,
) -> None:  # fmt: skip
    """One turn of each call, as long as the deadline allows it. The garbage collector is off meanwhile."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        for name, call in calls.items():
            count = max(1, min(_MOST_CALLS, int(_TURN / max(expected[name], 1e-7))))
            if deadline.left < 1.5 * count * expected[name]:
                return
            seconds = timed(call, count)
            times[name].append(seconds)
            expected[name] = min(seconds, expected[name])
    finally:
        if was_on:
            gc.enable()


def timed(call: Callable[[], object], count: int) -> float:
    """Mean seconds of `count` calls."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count
