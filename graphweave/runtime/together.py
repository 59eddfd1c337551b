"""Which texts the compiler gets as one: starting it and reading the headers takes as long as three small kernels."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

_WORTH_A_RUN = 3
"""Texts are divided among several runs of the compiler, which take place at once, if each gets at least this many."""


def runs_of(texts: Iterable[str]) -> list[Sequence[str]]:
    """Different texts in groups, each for one run of the compiler, of about equal length, and at most one a core."""
    longest_first = sorted(dict.fromkeys(texts), key=len, reverse=True)
    count = max(1, min(os.cpu_count() or 1, len(longest_first) // _WORTH_A_RUN))
    runs: list[list[str]] = [[] for _ in range(count)]
    for text in longest_first:
        min(runs, key=lambda run: sum(map(len, run))).append(text)
    return [run for run in runs if run]
