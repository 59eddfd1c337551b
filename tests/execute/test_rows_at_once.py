"""Rows of one tensor that a program selects one by one are made by one call."""

from __future__ import annotations

import pytest
import torch

from graphweave.analysis.facts import Facts
from graphweave.compiler.contract import Contract
from graphweave.compiler.plan import Plan, PlanName, make_plan
from graphweave.core.options import Options
from graphweave.execute.calls import NodeCalls
from graphweave.execute.executable import Executable, Steps
from graphweave.execute.rows_at_once import rows_at_once
from graphweave.execute.tape_of import tape_of
from graphweave.ir.message.layouts import Promise
from graphweave.ir.message.parse import parse
from graphweave.ir.tape import nodes as tape

HEADS = {"rows": "space R = 3\n%0: R[2] f32 = input w\n", "index": 'space E = s0\n%0: any "i64[2, s0]" = input i\n'}
PUSH = """space E = s0
space R = 3
%0: E[2] f32 = input x
%1: E[] i64 = input relation
%2: E -> R = map %1 to R
%3: R[2] f32 = push.sum %0, %2
"""
PART = "%{}: unit[2] f32 = part %0 of=[unit, unit, unit] at={}\n"
SELECT = "%{}: E[] i64 = call aten.select.int(%0, 0, {})\n"


def program_of(head: str, line: str, rows: list[int]) -> str:
    """The text of a program that selects these rows of its input."""
    lines = [line.format(at, row) for at, row in enumerate(rows, 1)]
    return "".join([head, *lines, f"return {', '.join(f'%{at}' for at in range(1, len(rows) + 1))}\n"])


def plan_of(text: str) -> Plan:
    return make_plan(PlanName("test"), Facts(parse(text)), Options(), {})


def steps_of(plan: Plan, contract: Contract) -> tuple[tape.Step, ...]:
    steps = Steps.of(plan)
    return tape_of(plan, steps.kernels, NodeCalls(plan), contract, prelude=steps.prelude).steps


@pytest.mark.parametrize(
    ("kind", "line", "rows", "expected"),
    [
        ("rows", PART, [1, 0, 2], {1: (2, 1, 3)}),
        ("index", SELECT, [1, 0], {1: (2, 1)}),
        ("rows", PART, [1, 0], {}),
        ("rows", PART, [1, 0, 1], {}),
        ("index", SELECT, [-1, 0], {}),
    ],
    ids=["rows", "index", "a row is missing", "a row twice", "a row from the end"],
)
def test_all_rows_that_are_selected_are_made_by_one_call(
    kind: str, line: str, rows: list[int], expected: dict[int, tuple[int, ...]]
) -> None:
    plan = plan_of(program_of(HEADS[kind], line, rows))
    assert rows_at_once(steps_of(plan, Contract()), plan.program) == expected
    x = torch.tensor([[0, 1], [2, 3]]) if kind == "index" else torch.randn(3, 2)
    run = Executable(plan)
    calls = run.text.count("= c")
    assert calls == (1 if expected else len(rows))
    torch.testing.assert_close(run([x]), [x[row] for row in rows])


def test_rows_that_vary_in_number_are_selected_one_by_one() -> None:
    plan = plan_of(program_of(HEADS["index"].replace("[2,", "[s1,"), SELECT, [1, 0]))
    assert not rows_at_once(steps_of(plan, Contract()), plan.program)


def test_rows_that_a_kernel_has_written_lie_as_gradients_may() -> None:
    """No step looks at their memory when the program runs, unless they must not share it."""
    rows = [PART.replace("%0", "%3").format(at + 4, at) for at in range(3)]
    plan = plan_of("".join([PUSH, *rows, "return %4, %5, %6\n"]))
    for promise, settled in ((Promise((0,), own=False, loose=True), 0), (Promise((0,)), 3)):
        steps = steps_of(plan, Contract(promises=(promise,) * 3))
        assert sum(isinstance(step, tape.Settle) for step in steps) == settled
