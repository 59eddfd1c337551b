"""A schedule never changes a result: functions over edges, and random programs, under schedules drawn at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import graphweave
from graphweave.compiler.compile import optimise
from graphweave.core.options import options_for
from graphweave.core.schedule import Schedule
from graphweave.core.types import DType
from tests.program_support import ZOO, assert_computes, compiled, large
from tests.programs.graphs import EdgeList
from tests.programs.random_programs import random_program
from tests.tuning.schedule_cases import (
    FUNCTIONS,
    Function,
    attention,
    copied,
    difference,
    dots,
    largest,
    mlp,
    schedules,
    taken,
    tensors,
    weighted,
)

SOME = [g for g in ZOO if len(g.src)][:3]


def check_function(function: Function, schedule: Schedule, graphs: Sequence[EdgeList]) -> Schedule:
    """Values and gradients equal eager's in float64 up to the order of sums; gives what kernels took of `schedule` for
    all graphs. Another graph may lead to other kernels, such as for a single edge, which take less."""
    first, *others = graphs
    torch.compiler.reset()
    made: dict[Schedule, Function] = {}

    def run_on(graph: EdgeList) -> Callable[[Schedule], None]:
        def run(wanted: Schedule) -> None:
            if wanted not in made:
                made[wanted] = graphweave.compile(function, options={"schedule": wanted})
            compare(made[wanted], function, graph)

        return run

    schedule, _ = taken(schedule, run_on(first))
    common = schedule.given
    for graph in others:
        used, _ = taken(schedule, run_on(graph))
        common = {name: value for name, value in common.items() if name in used.given}
    return Schedule(**common)


def compare(made: Function, function: Function, graph: EdgeList) -> None:
    ours, theirs = tensors(graph), tensors(graph)
    got, expected = made(ours, graph.src, graph.dst), function(theirs, graph.src, graph.dst)
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11, msg=lambda m: f"{graph.name}: {m}")
    weight = torch.cos(torch.arange(got.numel(), dtype=got.dtype)).reshape(got.shape)
    got.backward(weight)
    expected.backward(weight)
    for name, t in ours.items():
        if theirs[name].grad is not None:
            torch.testing.assert_close(
                t.grad, theirs[name].grad, rtol=1e-10, atol=1e-10, msg=lambda m, n=name: f"{graph.name}, {n}: {m}"
            )


@settings(max_examples=1, deadline=None)
@given(schedules(), st.sampled_from(FUNCTIONS))
def test_schedule_never_changes_a_function(schedule: Schedule, function: Function) -> None:
    check_function(function, schedule, SOME)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(schedules(), st.sampled_from(FUNCTIONS))
def test_more_schedules_never_change_a_function(schedule: Schedule, function: Function) -> None:
    check_function(function, schedule, ZOO)


CHOSEN: list[tuple[Function, Schedule]] = [
    (copied, Schedule(row_order="locality", edge_order="degree", unroll=2)),
    (copied, Schedule(source_partitions=3, edge_order="hilbert", chunks=5, threads=2)),
    (weighted, Schedule(feature_tile=(1, 2), row_order="degree")),
    (difference, Schedule(feature_tile=4, register_tile=2, vector_bytes=16)),
    (largest, Schedule(source_partitions=2, feature_tile=2, register_tile=1, row_order="degree")),
    (mlp, Schedule(product_tile=3, walk="rows", chunks=2)),
    (dots, Schedule(edge_order="hilbert")),
    (attention, Schedule(source_partitions=50, row_order="locality", unroll=3)),
]
"""Functions and schedules. Every field of a schedule is taken by at least one kernel of its function."""


_QUICK = (copied, dots)
"""Functions with few enough kernels for the default run."""


@pytest.mark.parametrize(
    ("function", "schedule"),
    [
        pytest.param(f, s, id=f"{f.__name__}{i}", marks=() if f in _QUICK else pytest.mark.slow)
        for i, (f, s) in enumerate(CHOSEN)
    ],
)
def test_chosen_schedules(function: Function, schedule: Schedule) -> None:
    assert check_function(function, schedule, ZOO) == schedule


# ---------------------------------------------------------------- random programs


@settings(max_examples=2, deadline=None)
@given(schedules(), st.integers(0, 400))
def test_schedule_never_changes_a_program(schedule: Schedule, number: int) -> None:
    check_program(schedule, number)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(schedules(), st.integers(0, 4000))
def test_more_schedules_never_change_a_program(schedule: Schedule, number: int) -> None:
    check_program(schedule, number)


def check_program(schedule: Schedule, number: int) -> None:
    """`assert_computes` compares with the interpreter, and the bits of one thread with those of two."""
    program = random_program(number, DType.f64 if number % 2 else DType.f32)
    wanted = optimise(program).program if number % 3 else program
    _, made = taken(schedule, lambda s: compiled(wanted, options_for("cpp", schedule=s)))
    assert_computes(made, program, (*ZOO, large()))
