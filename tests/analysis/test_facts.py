"""Facts about a program are found once, by the program's own `Facts`, and disappear with them."""

from __future__ import annotations

import gc
import weakref

import pytest

from graphweave.analysis.cones import Cones, Needs
from graphweave.analysis.facts import Facts
from graphweave.analysis.remembered import remembered
from graphweave.compiler.compile import optimise
from graphweave.compiler.plan import PlanName, make_plan
from graphweave.core.options import Options
from graphweave.lower.schedule import schedule
from tests.programs.random_programs import random_program


class Squares:
    def __init__(self, factor: int) -> None:
        self.factor = factor
        self.asked: list[int] = []

    @remembered
    def of(self, n: int, *, negative: bool = False) -> int:
        """The square."""
        self.asked.append(n)
        return n * n * self.factor * (-1 if negative else 1)


def test_a_remembered_method_runs_once_for_the_same_arguments_of_an_object() -> None:
    one, two = Squares(1), Squares(2)
    assert [one.of(3), one.of(3), two.of(3), one.of(4)] == [9, 9, 18, 16]
    assert one.of(3, negative=True) == -9
    assert one.asked == [3, 4, 3] and two.asked == [3]


def test_what_is_remembered_goes_with_its_object() -> None:
    squares = Squares(1)
    assert squares.of(2) == 4
    gone = weakref.ref(squares)
    del squares
    gc.collect()
    assert gone() is None


def test_needs_are_found_once_for_the_schedule_and_all_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule asks for what a node needs, then each draft of a kernel: found is it once for what is stored."""
    needs = Cones.__dict__["needs"]
    found: list[tuple[Cones, int, frozenset[int], bool]] = []
    method = needs._method

    def counted(cones: Cones, ref: int, stored: frozenset[int], *, through: bool) -> Needs:
        found.append((cones, ref, stored, through))
        return method(cones, ref, stored, through=through)

    monkeypatch.setattr(needs, "_method", counted)
    for number in range(20):
        facts = Facts(optimise(random_program(number)).program)
        plan = make_plan(PlanName("test"), facts, Options(), {})
        before = len(found)
        assert schedule(facts, (*facts.hoist.values, *facts.hoist.checks), Options()) == plan.schedule
        assert len(found) == before
    assert found and len(set(found)) == len(found)
