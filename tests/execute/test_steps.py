"""Steps of programs: where they end, and what is measured in them."""

from __future__ import annotations

import gc
import mmap
import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave
from graphweave.core.counters import bump
from graphweave.execute.watched import watcher
from graphweave.frontends.dynamo import step_profile
from graphweave.frontends.dynamo.explain_measured import measured_step, step_text
from graphweave.frontends.dynamo.step_profile import StepClock
from graphweave.frontends.dynamo.steps import StepCounter, listeners
from graphweave.pages.explained.data import ShownMeasured, ShownWork
from graphweave.pages.explained.page import explained_page


def optimizer() -> torch.optim.Optimizer:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return torch.optim.SGD([parameter], 0.1)


def call(function: object) -> None:
    """A call of a compiled function, as `Captured` tells of it."""
    for tell in listeners:
        tell(function)


def counted(program: Callable[[], Any], limit: int | None = None) -> list[int]:
    """The numbers of the steps that ended."""
    ended: list[int] = []
    with StepCounter(limit, ended.append).counted():
        program()
    assert not listeners
    return ended


def test_steps_are_those_of_the_optimizer_that_makes_the_first_one() -> None:
    first, second = optimizer(), optimizer()

    def program() -> None:
        for _ in range(3):
            call("encoder")
            call("decoder")
            first.step()
            second.step()

    assert counted(program) == [1, 2, 3]
    assert counted(program, limit=2) == [1, 2]


def test_calls_before_the_first_step_of_an_optimizer_are_parts_of_it() -> None:
    one = optimizer()

    def accumulate() -> None:
        for _ in range(2):
            for _ in range(3):
                call("model")
            one.step()

    assert counted(accumulate) == [1, 2, 1, 2]  # two ended before it was known that an optimizer steps


def test_without_an_optimizer_a_call_of_the_first_function_ends_the_step_before() -> None:
    def program() -> None:
        for _ in range(3):
            call("encoder")
            call("decoder")

    assert counted(program) == [1, 2]
    assert counted(program, limit=1) == [1]


def test_an_error_of_the_program_passes() -> None:
    def program() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        counted(program)
    assert not listeners


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in milliseconds that steps are measured by."""
    clock = [0.0]
    monkeypatch.setattr(step_profile, "time", SimpleNamespace(perf_counter=lambda: clock[0] / 1e3))
    return clock


def work(label: str, now: list[float], milliseconds: float) -> None:
    around = watcher()
    assert around is not None
    with around(label):
        now[0] += milliseconds


def test_a_step_is_the_median_of_those_without_compilation(now: list[float]) -> None:
    clock, steps = StepClock(), StepCounter()
    with clock.running():
        work("graph0.prelude_0", now, 7)
        work("graph0.forward_0", now, 30)
        clock.end(1)
        for number, milliseconds in enumerate((2, 3, 30, 3, 4), 2):
            if milliseconds == 30:
                bump("compilations")
            for _ in range(2):
                work("graph0.forward_0", now, milliseconds)
            now[0] += 9
            clock.end(number)
    found = clock.profile(steps)
    assert found is not None and (found.steps, found.warm, found.trains) == (4, True, False)
    assert found.seconds == pytest.approx(0.015)
    (forward,) = found.work
    assert (forward.label, forward.runs) == ("graph0.forward_0", 2)
    assert forward.seconds == pytest.approx(0.006)
    # those of once-a-graph kernels are known from the first step
    assert clock.per_run() == pytest.approx({"graph0.prelude_0": 0.007, "graph0.forward_0": 0.004})
    text = step_text(found, ())
    assert "== time of a step: 15.000 ms\n-- the median of 4 steps" in text
    assert re.search(r"graph0.forward_0 x2 +6.000 ms +40 %", text) and re.search(r"all else.* 9.000 ms +60 %", text)


def test_a_program_of_one_step_shows_that_one_with_what_it_compiled(now: list[float]) -> None:
    clock = StepClock()
    with clock.running():
        work("graph0.forward_0", now, 1)
        clock.end(1)
    found = clock.profile(StepCounter())
    assert found is not None and (found.steps, found.warm) == (1, False)
    assert "includes compilation" in step_text(found, ())


def test_peak_memory_of_a_step_is_that_above_its_beginning() -> None:
    gc.collect()  # so that no garbage of other tests is freed during the step, in place of what the step takes
    size = 128 << 20
    clock = StepClock()
    with clock.running():
        clock.end(1)
        # pages of the system: the heap may still hold as many that other tests freed, and give out those
        with mmap.mmap(-1, size) as large:
            for page in range(0, size, mmap.PAGESIZE):
                large[page] = 1
        clock.end(2)
    found = clock.profile(StepCounter())
    assert found is not None
    if found.peak is not None and found.above is not None:
        assert found.above >= 100 << 20 and found.peak > found.above


def test_no_step_gives_no_profile(now: list[float]) -> None:
    clock = StepClock()
    with clock.running():
        work("graph0.forward_0", now, 1)
    assert clock.profile(StepCounter()) is None
    assert clock.per_run() == pytest.approx({"graph0.forward_0": 0.001})


def test_short_calls_are_told_together(now: list[float]) -> None:
    clock = StepClock()
    with clock.running():
        clock.end(1)
        for label, milliseconds in (("graph0.mm %3", 50), ("graph0.view %4", 0.1), ("graph0.view %5", 0.2)):
            work(label, now, milliseconds)
        now[0] += 50
        clock.end(2)
    found = clock.profile(StepCounter())
    assert found is not None
    work_of_step = measured_step(found, (), names={"graph0": " of graph 1"}).work
    assert [w.name for w in work_of_step[:2]] == ["mm %3 of graph 1", "2 short calls of PyTorch's"]
    assert work_of_step[1].runs == 2
    assert work_of_step[1].seconds == pytest.approx(0.0003)


def test_the_page_shows_each_work_of_a_step_next_to_its_time() -> None:
    def doubled(x: Tensor, edge_index: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, edge_index[1], 2 * x[edge_index[0]])

    data = graphweave.explain(doubled, torch.ones(4, 3), torch.tensor([[0, 1], [2, 3]])).data()
    kernel = data.kernels[-1]
    work_of_step = (
        ShownWork("kernel", "graph0.inference_0", kernel.does, 2, 0.003, kernel.key),
        ShownWork("call", "mm %3", "", 1, 0.001, ""),
        ShownWork("other", "all else", "", 1, 0.006, ""),
    )
    page = explained_page(
        replace(data, measured=ShownMeasured("measured so", 0.01, work_of_step, 5_000_000, 1_000_000))
    )
    section = page[page.index('<h2 id="step">') : page.index('<h2 id="source">')]
    assert f'href="#kernel-{kernel.key.replace("_", "-")}"' in section
    for shown in ("30 %", "10 %", "60 %", "mm %3", "Work of a step: measured so", "5 MB", "10 ms"):
        assert shown in section
