"""Where the time of a step goes: kernels, calls that compiled code leaves to PyTorch, and what runs outside of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

import torch

from graphweave.core import process_memory
from graphweave.core.counters import counters
from graphweave.execute.watched import watching
from graphweave.frontends.dynamo.steps import StepCounter
from graphweave.runtime.cuda_stream import wait_for_gpu


@dataclass(frozen=True, slots=True)
class TimedWork:
    """The kernel or call `label`: how often it ran in a step, and the seconds of all its runs in a step."""

    label: str
    runs: float
    seconds: float


@dataclass(frozen=True, slots=True)
class StepProfile:
    """A step, as the median of `steps` steps in which nothing was compiled; if there was none, the last step, which is
    not `warm`.

    `trains` says that steps end with those of an optimizer; else each call of the first compiled function begins one.
    `peak` are the most bytes that were in use at once, and `above` those of them that were not when the step began:
    memory of the process, or of the CUDA device. They are None if the system does not tell.
    """

    steps: int
    warm: bool
    trains: bool
    seconds: float
    work: tuple[TimedWork, ...]
    peak: int | None
    above: int | None


@dataclass(slots=True)
class _Step:
    """A step in progress, or one that has ended: `work` has the number of runs and the seconds of each label."""

    begun: float
    compiled: int
    base: int | None
    work: dict[str, list[float]] = field(default_factory=dict)
    seconds: float = 0.0
    peak: int | None = None
    warm: bool = False


class StepClock:
    """Measures steps: within `running`, it watches all kernels and calls, and `end` ends a step and begins the next."""

    def __init__(self) -> None:
        self._ended: list[_Step] = []
        self._now = self._begin()

    @contextmanager
    def running(self) -> Iterator[None]:
        self._now = self._begin()
        with watching(self._around):
            yield

    def end(self, number: int) -> None:
        """End a step, the `number`th of its kind: the first ends the start of the program as well, and is not warm."""
        step = self._now
        wait_for_gpu()
        step.seconds = time.perf_counter() - step.begun
        step.peak = _peak()
        step.warm = number > 1 and step.compiled == _compilations()
        self._ended = [step] if number == 1 else [*self._ended, step]
        self._now = self._begin()

    def profile(self, steps: StepCounter) -> StepProfile | None:
        """The step that was measured; None if none has ended."""
        if not self._ended:
            return None
        warm = [step for step in self._ended if step.warm]
        shown = warm or self._ended[-1:]
        labels = dict.fromkeys(label for step in shown for label in step.work)
        work = []
        for label in labels:
            each = [step.work.get(label, [0, 0.0]) for step in shown]
            work.append(TimedWork(label, median(runs for runs, _ in each), median(seconds for _, seconds in each)))
        known = [(s.peak, s.peak - s.base) for s in shown if s.peak is not None and s.base is not None]
        peak, above = (None, None) if not known else (max(p for p, _ in known), max(a for _, a in known))
        seconds = median(step.seconds for step in shown)
        return StepProfile(len(shown), bool(warm), steps.optimizer is not None, seconds, tuple(work), peak, above)

    def per_run(self) -> dict[str, float]:
        """Seconds of one run of each kernel and call, those that ran in no warm step included."""
        found: dict[str, float] = {}
        for step in sorted([*self._ended, self._now], key=lambda step: step.warm):
            found |= {label: seconds / runs for label, (runs, seconds) in step.work.items()}
        return found

    def _begin(self) -> _Step:
        base = _begin_peak()
        return _Step(time.perf_counter(), _compilations(), base)

    @contextmanager
    def _around(self, label: str) -> Iterator[None]:
        wait_for_gpu()
        begun = time.perf_counter()
        try:
            yield
        finally:
            wait_for_gpu()
            spent = self._now.work.setdefault(label, [0, 0.0])
            spent[0] += 1
            spent[1] += time.perf_counter() - begun


def _compilations() -> int:
    return counters()["compilations"]


def _begin_peak() -> int | None:
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    return process_memory.begin_peak() if process_memory.is_told() else None


def _peak() -> int | None:
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    return process_memory.peak_bytes() if process_memory.is_told() else None
