"""The list of cases that are slow by what they take (tests/slow_cases.py)."""

from __future__ import annotations

import ast
from pathlib import Path

from tests import slow_cases

HERE = Path(__file__).parents[1]

RUN = """\
============================= slowest durations ==============================
3.00s call     tests/test_a.py::test_one[x-1]
2.50s setup    tests/test_a.py::test_one[y 2]
0.10s call     tests/test_a.py::test_one[y 2]
2.20s call     tests/test_a.py::test_one[z]
0.20s call     tests/test_a.py::test_two[x]
0.25s call     tests/test_a.py::test_two[y]
5.00s call     tests/test_a.py::test_alone
31.0s call     tests/test_a.py::test_alone_and_long
99.0s call     tests/docs/test_doc_blocks.py::test_a_program_runs[README.md#1]
==== 7 passed in 140.00s ====
"""


def test_of_each_test_the_quickest_case_stays_and_what_is_quick() -> None:
    assert slow_cases.too_long(RUN.splitlines()) == [
        "tests/test_a.py::test_alone_and_long",
        "tests/test_a.py::test_one[x-1]",
        "tests/test_a.py::test_one[y 2]",
    ]


def test_in_the_interpreter_a_case_may_take_longer_and_other_cases_are_long() -> None:
    assert slow_cases.too_long(RUN.splitlines(), 2.8) == [
        "tests/test_a.py::test_alone_and_long",
        "tests/test_a.py::test_one[x-1]",
    ]
    assert slow_cases.listed() < slow_cases.listed(interpreted=True)


def test_what_is_listed_exists() -> None:
    """The lists name cases, and the function of each is in its file; a parameter that no longer exists does no harm."""
    for function in sorted(set(map(slow_cases.function_of, slow_cases.listed(interpreted=True)))):
        file, _, name = function.partition("::")
        tree = ast.parse((HERE.parent / file).read_text())
        assert name in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, f"{function} is gone: list anew"
