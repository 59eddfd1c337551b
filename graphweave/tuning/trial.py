"""One form of a captured graph, ready to be compiled by any schedule and run on the arguments of the call at hand.

Programs write to no argument, and what they compute is dropped, so a run changes nothing that the user sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from graphweave.compiler.request import Halves
from graphweave.core.counters import kept_as_they_are
from graphweave.core.options import Options, by_schedule
from graphweave.core.schedule import Schedule
from graphweave.execute.executable import Executable
from graphweave.ir.message.nodes import Input, Ref
from graphweave.tuning.choice import ProgramForm
from graphweave.tuning.deadline import Deadline, OutOfTime


class NotMeasurable(Exception):
    """The graph cannot be run apart from the user's call. The message says why."""


@dataclass(frozen=True, slots=True)
class PreparedForm:
    """A program in one form: a text that is equal for equal programs, and its forward and perhaps its backward.
    `seconds` is the cost model's prediction for a call."""

    form: ProgramForm
    text: str
    halves: Halves
    seconds: float


class Workshop:
    """Compiles halves and runs them on `values`, the arguments and tangents by the names of inputs."""

    def __init__(self, options: Options, values: Mapping[str, object], deadline: Deadline) -> None:
        self._options, self._values, self.deadline = options, values, deadline
        self.longest = 0.0
        """Seconds of the longest compilation so far."""

    def options_by(self, schedule: Schedule) -> Options:
        """The options of kernels by a schedule."""
        return by_schedule(self._options, schedule)

    def compile(self, made: Sequence[Executable], deadline: Deadline, *, known: bool = False) -> None:
        """Compile all kernels at once. OutOfTime if they are not expected to be ready before the deadline, or are not.

        Kernels that are `known` were compiled before, and are expected at once.
        """
        deadline.allow(0.0 if known else self.longest)
        before = deadline.passed
        pool = ThreadPoolExecutor(max(1, torch.get_num_threads()))
        try:
            for future in [f for one in made for f in one.steps.build(pool)]:
                try:
                    future.result(timeout=max(0.0, deadline.left))
                except TimeoutError:
                    raise OutOfTime("kernels were not ready") from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        self.longest = max(self.longest, deadline.passed - before)

    def call(self, form: PreparedForm, forward: Executable, backward: Executable | None) -> Callable[[], object]:
        """A function that runs a forward, and a backward on what it saved."""
        first = self.forward(forward)
        if backward is None:
            return first
        second = self.backward(form, backward)
        return lambda: backward(second(first()))

    def forward(self, made: Executable) -> Callable[[], list[Any]]:
        """A function that runs a forward, or an inference. NotMeasurable if an argument is not known."""
        program = made.plan.program
        names = [n.name for n in program.nodes if isinstance(n, Input) and n.name not in made.plan.constants]
        args = [self._value(name) for name in names]
        return lambda: made(list(args))

    def backward(self, form: PreparedForm, made: Executable) -> Callable[[Sequence[object]], list[object]]:
        """A function from the results of a forward to the arguments of the backward. NotMeasurable if one of them is
        neither saved nor known."""
        cut = form.halves.split
        assert cut is not None
        back: dict[Ref, Ref] = {new: old for old, new in cut.backward.where.items()}
        saved = {ref: cut.num_forward + i for i, ref in enumerate(cut.saved)}
        takes: list[tuple[int | None, object]] = []
        for ref, node in enumerate(made.plan.program.nodes):
            if isinstance(node, Input) and node.name not in made.plan.constants:
                at = saved.get(back[ref])
                takes.append((at, self._value(node.name) if at is None else None))
        return lambda given: [value if at is None else given[at] for at, value in takes]

    def _value(self, name: str) -> object:
        if name not in self._values:
            raise NotMeasurable(f"the argument {name} is not known before the call")
        return self._values[name]


@contextmanager
def unseen() -> Iterator[None]:
    """Within the block no gradient is recorded, and afterwards neither the state of PyTorch's random generator nor any
    counter is different."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]), kept_as_they_are():
        yield
