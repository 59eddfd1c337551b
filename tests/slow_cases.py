"""Decides which cases run by default: long cases of a test are slow tests, except for the quickest.

`slow_cases.txt` lists the cases that are left out, by measurement. After tests have been added, or have grown:

    python -m pytest -n 2 -m "not zoo" --durations=0 --durations-min=0.5 | python -m tests.slow_cases

writes the list anew from what that run took, slow tests included. Cases that are marked where they stand need no entry.

In Triton's interpreter other cases are long. `slow_interpreted.txt` lists those that it leaves out as well, and

    make test-triton PYTEST_ARGS="-n 2 --durations=0 --durations-min=0.5" | python -m tests.slow_cases --interpreted

adds what that run found. (Slow tests are not among them, since some take the interpreter hours.)
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

LIST = Path(__file__).with_suffix(".txt")
INTERPRETED = LIST.with_name("slow_interpreted.txt")

SECONDS = 0.25
"""Seconds that a default case may take if its test function has a quicker case."""

INTERPRETED_SECONDS = 1.0
"""The same in Triton's interpreter, which takes longer for most cases, and has a minute or two for all."""

ALONE_SECONDS = 6.0
"""Seconds that any default case may take. Longer cases are slow tests even if their function has no other case."""

ALWAYS = (
    "tests/docs/test_doc_blocks.py::test_a_program_runs[", "tests/codegen/test_native.py::test_native[",
    "tests/codegen/test_vectorised.py::test_tails", "tests/runtime/test_toolchain.py::test_sanitized",
    "tests/runtime/test_kernel_cache.py::test_processes_racing", "tests/house/",
)  # fmt: skip
"""Tests that run by default however long they take: the programs of all pages, native headers and kernels under
sanitizers, processes that build one kernel at the same time, and the rules of the repository."""

_LINE = re.compile(r"\s*(\d+\.\d+)s (?:call|setup|teardown)\s+(tests/\S.*)$")


def listed(*, interpreted: bool = False) -> frozenset[str]:
    """The ids of the cases that are left out by default, and in Triton's interpreter if `interpreted`."""
    return _cases(LIST) | _cases(INTERPRETED) if interpreted else _cases(LIST)


def _cases(path: Path) -> frozenset[str]:
    return frozenset(line for line in path.read_text().splitlines() if line and not line.startswith("#"))


def function_of(case: str) -> str:
    """The id of the test function: "tests/test_a.py::test_b" of "tests/test_a.py::test_b[c]"."""
    return case.partition("[")[0]


def too_long(lines: Iterable[str], allowed: float = SECONDS) -> list[str]:
    """The cases to leave out, from the lines that `pytest --durations=0` writes, where a case may take `allowed`
    seconds if its test function has a quicker one."""
    seconds: dict[str, float] = defaultdict(float)
    for line in lines:
        if found := _LINE.match(line):
            seconds[found[2].strip()] += float(found[1])
    cases: dict[str, list[str]] = defaultdict(list)
    for case in sorted(seconds, key=lambda case: (seconds[case], case)):
        cases[function_of(case)].append(case)
    left_out = [case for several in cases.values() for case in several[1:] if seconds[case] > allowed]
    alone = [case for several in cases.values() for case in several[:1] if seconds[case] > ALONE_SECONDS]
    return sorted(case for case in {*left_out, *alone} if not case.startswith(ALWAYS))


def write(interpreted: bool, lines: Iterable[str]) -> None:
    """Writes the list of cases that are long by the lines of a run, or adds them to that of the interpreter."""
    head = "# Cases that are slow tests by what they take; `python -m tests.slow_cases` says how this list is made."
    if interpreted:
        path, cases = INTERPRETED, sorted({*too_long(lines, INTERPRETED_SECONDS), *_cases(INTERPRETED)})
    else:
        path, cases = LIST, too_long(lines)
    path.write_text("\n".join([head, *cases]) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interpreted", action="store_true", help="the run was one in Triton's interpreter")
    write(parser.parse_args().interpreted, sys.stdin)
