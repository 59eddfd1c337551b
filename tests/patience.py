"""How long tests wait for what they have started: decided here alone, by how slow the machine is at the moment.

A limit only has to end what hangs. On a quiet machine `PROCESS` and `RANK` are several times what any test needs;
`seconds` multiplies them by how much longer than there a fixed piece of work takes here and now, so that a machine that
is slow, or on which others work, gets the time that it needs. `tests/house/test_patience.py` finds limits that are
written elsewhere.
"""

from __future__ import annotations

import os
import subprocess
import time

PROCESS = 120.0
"""Seconds that a test gives a process on a quiet machine. The longest takes about 30 there."""
RANK = 60.0
"""Seconds that a rank waits for the others on a quiet machine. A message that gloo loses costs as much."""

REFERENCE_SECONDS = 0.05
"""Seconds that `_reference` takes on a quiet core of an AMD EPYC of 2023."""


def seconds(quiet: float = PROCESS) -> float:
    """The seconds to allow here and now for what takes at most `quiet` seconds on a quiet machine."""
    return quiet * slowness()


def slowness() -> float:
    """How many times as long as on a quiet machine work takes here and now, 1 at least.

    Measured by work that takes a moment, and by the number of processes that wanted a core during the last minute: a
    process that has just begun to compute is served before others.
    """
    begun = time.perf_counter()
    _reference()
    measured = (time.perf_counter() - begun) / REFERENCE_SECONDS
    return max(1.0, measured, os.getloadavg()[0] / (os.cpu_count() or 1))


def _reference() -> None:
    sum(i * i for i in range(1_000_000))


def outputs(process: subprocess.Popen[str], quiet: float = PROCESS) -> tuple[str, str]:
    """Waits for the end of a process and returns what it wrote. subprocess.TimeoutExpired if it does not end in time.

    If the machine has become slower meanwhile, the process gets the time that it would have been given now.
    """
    begun = time.perf_counter()
    allowed = seconds(quiet)
    while True:
        left = allowed - (time.perf_counter() - begun)
        try:
            return process.communicate(timeout=max(left, 0.0))
        except subprocess.TimeoutExpired:
            now = seconds(quiet)
            if now <= time.perf_counter() - begun:
                raise
            allowed = now
